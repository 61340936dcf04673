"""Compare saved states with those of new objects, because their own ``load_state_dict`` checks little."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mkor_core.saving.entries import without_preconditioner


class MisfitError(ValueError):
    """A saved state that is not of the object that is to take it; the message names the first difference."""


def require_like(saved: object, fresh: object, name: str) -> None:
    """Raise `MisfitError` unless a saved state has the keys, lengths, types and shapes of a new object's.

    Numbers must be finite, or those of the new object. name: where the state stands, for the message.
    """
    if isinstance(fresh, Tensor):
        if not isinstance(saved, Tensor) or (saved.shape, saved.dtype) != (fresh.shape, fresh.dtype):
            raise MisfitError(f"{name} is not a tensor of shape {tuple(fresh.shape)} and type {fresh.dtype}")
    elif type(saved) is not type(fresh):
        raise MisfitError(f"{name} is of type {type(saved).__name__}, not {type(fresh).__name__}")
    elif isinstance(fresh, Mapping) and isinstance(saved, Mapping):
        if differing := sorted(map(str, saved.keys() ^ fresh.keys())):
            raise MisfitError(f"{name} lacks or has in addition: {differing[0]}")
        for key, value in fresh.items():
            require_like(saved[key], value, f"{name}[{key!r}]")
    elif isinstance(fresh, (list, tuple)) and isinstance(saved, (list, tuple)):
        if len(saved) != len(fresh):
            raise MisfitError(f"{name} has {len(saved)} entries, not {len(fresh)}")
        for index, value in enumerate(fresh):
            require_like(saved[index], value, f"{name}[{index}]")
    elif isinstance(saved, float) and not math.isfinite(saved) and saved != fresh:
        raise MisfitError(f"{name} is {saved}")


def require_optimizer_state(saved: object, optimizer: Optimizer) -> None:
    """Raise `MisfitError` unless a saved state can be of an optimizer of the same parameters and settings.

    An optimizer fills its state in its first steps, so a new one shows only its groups. For the rest, tensors in a
    parameter's state are scalars or of the parameter's shape, and all parameters of a group have entries of the same
    names and types. A preconditioner's entries are left to it.
    """
    fresh = without_preconditioner(optimizer.state_dict())
    if not isinstance(saved, dict) or (saved := without_preconditioner(saved)).keys() != fresh.keys():
        raise MisfitError(f"the optimizer's state has not the entries {', '.join(sorted(fresh))}")
    groups, states = saved["param_groups"], saved["state"]
    if not isinstance(groups, list) or not isinstance(states, dict) or len(groups) != len(fresh["param_groups"]):
        raise MisfitError("the optimizer's state has other parameter groups")
    unknown = set(states)
    for number, (group, new) in enumerate(zip(groups, fresh["param_groups"], strict=True)):
        name = f"parameter group {number}"
        # Some optimizers count their steps in the group, from the first one on.
        if not isinstance(group, dict) or new.keys() - group.keys():
            raise MisfitError(f"{name} lacks an entry")
        require_like({key: group[key] for key in new}, new, name)
        if group["params"] != new["params"]:
            raise MisfitError(f"{name} is of other parameters")
        parameters = dict(zip(new["params"], optimizer.param_groups[number]["params"], strict=True))
        unknown -= parameters.keys()
        _require_states({index: states[index] for index in parameters if index in states}, parameters, name)
    if unknown:
        raise MisfitError(f"the optimizer's state is of an unknown parameter {min(map(str, unknown))}")


def _require_states(states: Mapping[int, Any], parameters: Mapping[int, Tensor], name: str) -> None:
    """Check the states of one group's parameters, by index."""
    first: dict[object, type] | None = None
    leaves: dict[object, set[type]] = {}
    for index, state in states.items():
        if not isinstance(state, dict):
            raise MisfitError(f"the state of parameter {index} in {name} is no mapping")
        entries = {key: type(value) for key, value in state.items()}
        first = entries if first is None else first
        if first != entries:
            raise MisfitError(f"the states of parameters in {name} have different entries")
        for key, value in state.items():
            leaves.setdefault(key, set()).update(_leaf_types(value))
            if len(leaves[key]) > 1:
                raise MisfitError(f"{key} of parameters in {name} has parts of different types")
            if isinstance(value, Tensor) and value.ndim and value.shape != parameters[index].shape:
                shapes = f"{tuple(value.shape)}, not {tuple(parameters[index].shape)}"
                raise MisfitError(f"{key} of parameter {index} in {name} has shape {shapes}")


def _leaf_types(value: object) -> set[type]:
    """Return the types of the values in a nest of mappings and lists."""
    if isinstance(value, Mapping):
        return set().union(*map(_leaf_types, value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_leaf_types, value))
    return {type(value)}


def require_preconditioner_state(saved: object, steps_done: int, switch_step: int | None) -> None:
    """Raise `MisfitError` unless a preconditioner's saved state is of a run that has done so many steps.

    The tensors of layers are left to `mkor_core.Preconditioner.load_state_dict`.

    switch_step: the step at which the run switched to the base optimizer; None if it did not.
    """
    if not isinstance(saved, dict) or type(step := saved.get("step")) is not int or not 0 <= step <= steps_done:
        raise MisfitError(f"the preconditioner's state is not of one of the first {steps_done} steps")
    if saved.get("switch_step") != switch_step:
        raise MisfitError("the preconditioner's state has another switch_step than the run")
    match saved.get("losses"):
        case None | {"history": [*_], "sum": float(), "steps": int()}:
            pass
        case _:
            raise MisfitError("the preconditioner's losses are no history")
    for entry in (saved["losses"] or {"history": []})["history"]:
        match entry:
            case (int(), float()):
                pass
            case _:
                raise MisfitError("the preconditioner's losses are no history")
