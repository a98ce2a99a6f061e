"""Loading a state_dict: what does not fit is refused, what is not ours is named, averages stay exact."""

import warnings
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer


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


def protect(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Refuse what does not fit, name what is not ours, wrap the averages."""
    unknown: set[str] = set()
    saved_groups = state_dict["param_groups"]
    for group in saved_groups:
        if "delta" not in group:
            raise ValueError(
                f"this state_dict is not AGD's: its groups have no delta, only {sorted(set(group))}; "
                "the averages of another optimizer have another scale"
            )
        if not group.keys() >= optimizer.defaults.keys():  # not written by this version
            unknown |= {
                f"group option {key!r}" for key in group.keys() - optimizer.defaults.keys() - _FOREIGN
            }
            if group.get("clip") is not None:
                unknown.add(
                    f"clip={group['clip']} (here it bounds |mhat / max(bhat, delta)|; other versions differ)"
                )
    saved = [i for group in saved_groups for i in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    states = dict(state_dict["state"])
    for i, p in zip(saved, params, strict=False):  # torch's loader compares the lengths
        if i not in states:
            continue
        entry = dict(states[i])
        unknown |= {f"state {key!r}" for key in entry.keys() - {"step", "exp_avg", "exp_avg_sq"}}
        for key in ("exp_avg", "exp_avg_sq"):
            if key not in entry or entry[key].shape != p.shape:
                found = tuple(entry[key].shape) if key in entry else "nothing"
                raise ValueError(f"{key} of parameter {i} has shape {found}, the parameter {tuple(p.shape)}")
            entry[key] = AsSaved(entry[key])
        states[i] = {key: entry[key] for key in ("step", "exp_avg", "exp_avg_sq") if key in entry}
    if unknown:
        warnings.warn(f"AGD has no {', '.join(sorted(unknown))}: left out when loading", stacklevel=4)
    return {**state_dict, "state": states}
