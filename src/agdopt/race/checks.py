"""Reading what people write: unknown names are errors that name the near one, types are checked."""

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any


class ParityError(Exception):
    """A body does not compute what the reference does, so its speed means nothing."""


class PlanError(ValueError):
    """Something asked for that cannot be run as written; the message says what to change."""


def unknown(what: str, name: str, known: Collection[str]) -> PlanError:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"
    return PlanError(f"unknown {what} {name!r}{hint}")


def need(ok: bool, message: str) -> None:
    if not ok:
        raise PlanError(message)


def seeds_of(text: str) -> list[int]:
    try:
        return [int(s) for s in text.split(",") if s]
    except ValueError as e:
        raise PlanError(f"--seeds wants whole numbers such as 1,2,3, got {text!r}") from e


def fields_of(
    cls: type, table: Mapping[str, Any], where: str, hidden: Collection[str] = ()
) -> dict[str, Any]:
    """The table's values as arguments of a dataclass: every key known, every type as declared."""
    need(isinstance(table, Mapping), f"{where} must be a table, got {table!r}")
    known = {f.name: f for f in dataclasses.fields(cls) if f.name not in hidden}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise unknown(f"key in {where}", key, known)
        declared = str(known[key].type)
        numbers = int | float if "float" in declared else int
        if isinstance(value, list) and "tuple" in declared:
            need(all(type(v) is int for v in value), f"{where}: {key} must be a list of whole numbers")
            value = tuple(value)
        elif "bool" in declared:
            need(isinstance(value, bool), f"{where}: {key} must be true or false, got {value!r}")
        elif "int" in declared or "float" in declared:
            ok = isinstance(value, numbers) and not isinstance(value, bool) and "tuple" not in declared
            need(ok, f"{where}: {key} must be of type {declared}, got {value!r}")
        elif "Mapping" in declared:
            need(isinstance(value, Mapping), f"{where}: {key} must be a table, got {value!r}")
        elif "str" in declared:
            need(isinstance(value, str), f"{where}: {key} must be text, got {value!r}")
        values[key] = value
    missing = [
        f.name
        for f in known.values()
        if f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
        and f.name not in values
    ]
    need(not missing, f"{where} lacks {', '.join(missing)}")
    return values
