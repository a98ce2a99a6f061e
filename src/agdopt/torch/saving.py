"""Loading a state_dict: what does not fit is refused, what is not ours is named, averages stay exact."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from agdopt.torch.checks import check_group


class AsSaved:
    """Carries an average through torch's loader, which would cast a bare tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


# What schedulers and torch itself put into groups.
_FOREIGN = {
    "params",
    "param_names",
    "initial_lr",
    "max_lr",
    "min_lr",
    "max_momentum",
    "base_momentum",
    "swa_lr",
    "name",
}


def protect(unknown: list[str], optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Refuse what does not fit, list in `unknown` and leave out what is not ours, wrap the averages."""
    ours = optimizer.defaults.keys()
    found: set[str] = set()
    groups = []
    for saved in state_dict["param_groups"]:
        if "delta" not in saved:
            raise ValueError(
                f"this state_dict is not AGD's: its groups have no delta, only {sorted(set(saved))}; "
                "the averages of another optimizer have another scale"
            )
        group = dict(saved)
        if not group.keys() >= ours:  # not written by this version
            for key in group.keys() - ours - _FOREIGN:
                found.add(f"group option {key!r}")
                del group[key]
            if group.get("clip") is not None:
                found.add(f"clip={group['clip']} of that kind (here it bounds |mhat / max(bhat, delta)|)")
                group["clip"] = None
        check_group({**optimizer.defaults, **group})
        groups.append(group)
    ids = [i for group in groups for i in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    states = dict(state_dict["state"])
    for i, p in zip(ids, params, strict=False):  # torch's loader compares the lengths
        if i in states:
            found |= {f"state {key!r}" for key in states[i].keys() - set(_STATE)}
            states[i] = _wrapped(states[i], i, p)
    unknown += sorted(found)
    return {**state_dict, "state": states, "param_groups": groups}


_STATE = ("step", "exp_avg", "exp_avg_sq")


def _wrapped(state: dict[str, Any], i: int, p: Tensor) -> dict[str, Any]:
    for key in _STATE:
        value = state.get(key)
        if value is None or (key != "step" and not (isinstance(value, Tensor) and value.shape == p.shape)):
            told = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(
                f"{key} of parameter {i} is {told}, for a parameter of shape {tuple(p.shape)}: "
                "this state_dict belongs to another model, or was cut short"
            )
    return {key: state[key] if key == "step" else AsSaved(state[key]) for key in _STATE}
