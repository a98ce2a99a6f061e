"""Click logs with their original columns, as one number per field and row.

Every value of every field is a feature of its own. Criteo's counts (I1 to I13) become categories first: an
empty field, the number itself up to 2, and above it floor(log(number)^2) [I]. Avazu's `id` is left out, and
of `hour` the hour of the day is kept: a date would mean nothing to the last day [I].
"""

import csv
import gzip
import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from agdopt.race.task import MissingData, find_data

AVAZU = [
    *("id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id"),
    *("app_domain", "app_category", "device_id", "device_ip", "device_model", "device_type"),
    *("device_conn_type", *(f"C{i}" for i in range(14, 22))),
]
CRITEO = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
LOGS = {
    "avazu": (AVAZU, ("train", "train.csv", "train.gz"), "https://www.kaggle.com/c/avazu-ctr-prediction"),
    "criteo": (
        CRITEO,
        ("train.txt", "train.txt.gz"),
        "Criteo's Kaggle display advertising challenge, train.txt",
    ),
}


def fields(log: str) -> list[str]:
    return [c for c in LOGS[log][0] if c not in ("id", "click", "label")]


def rows(path: Path, log: str) -> Iterator[Sequence[str]]:
    """Tabs without a header (Criteo's own form), or commas with one."""
    columns = LOGS[log][0]
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else open(path, newline="") as f:
        first = f.readline()
        reader = csv.reader(itertools.chain([first], f), delimiter="\t" if "\t" in first else ",")
        for row in reader:
            if len(row) != len(columns):
                where = f"{path}, line {reader.line_num}"
                raise MissingData(f"{where}: {log} has {len(columns)} columns, this line {len(row)}")
            if row != columns:
                yield row


def category(field: str, value: str) -> str:
    if field == "hour":
        return value[-2:]
    if field[0] == "I" and value and int(value) > 2:
        return f"log {math.floor(math.log(int(value)) ** 2)}"
    return value


def prepare(root: Path | None, log: str, file: str = "") -> dict[str, np.ndarray]:
    """`ids` (rows, fields), `click`, `day`, and `sizes`: how many values each field has."""
    columns, files, where = LOGS[log]
    path = find_data(root, [f"{log}/{f}" for f in ([file] if file else files)], log, where)
    names = fields(log)
    places = [columns.index(n) for n in names]
    label, hour = columns.index("click" if log == "avazu" else "label"), columns.index(names[0])
    numbers = [dict[str, int]() for _ in names]
    ids, click, day = array("i"), array("b"), array("b")
    for row in rows(path, log):
        for number, name, place in zip(numbers, names, places, strict=True):
            ids.append(number.setdefault(category(name, row[place]), len(number)))
        click.append(int(row[label]))
        day.append(int(row[hour][4:6]) if log == "avazu" else 0)
    return {
        "ids": np.array(ids, np.int32).reshape(-1, len(names)),
        "click": np.array(click, np.uint8),
        "day": np.array(day, np.uint8),
        "sizes": np.array([len(n) for n in numbers], np.int32),
    }
