"""Checks of a saved state before any of it is loaded, so that one that is refused changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mkor_core.method import FollowsLoss, Method, plain_hyperparameters

logger = logging.getLogger(__name__)

ENTRIES = ("method", "step", "switch_step", "layers")
"""What every saved state has."""
OTHER_ENTRIES = ("changed", "hyperparameters", "losses")
"""What a saved state may lack: older ones have no hyperparameters, few methods follow losses or change."""


def check_state(state: Mapping[str, Any], method: Method) -> None:
    """Refuse a state that cannot be one of a method, before its tensors are compared with those of the layers.

    Hyperparameters that only say what to do next may differ, which is logged.

    Raises:
        ValueError: another method's state, one that no `Preconditioner.state_dict` returns, or one saved with other
            hyperparameters of those that say what the tensors are.
    """
    # First what the other checks rely on: that it is a mapping with these entries, of this method.
    _check_entries(state, type(method).__name__)
    _check_number("step", state["step"])
    if state["switch_step"] is not None:
        _check_number("switch_step", state["switch_step"])
    _check_hyperparameters(state.get("hyperparameters"), method)
    _check_losses(state.get("losses"), method)
    _check_layers(state["layers"])


def saved_changes(state: object) -> Mapping[str, Any]:
    """Return the hyperparameters that had been changed while the saved method trained.

    Raises:
        ValueError: they are no mapping from names.
    """
    # No mapping at all is refused by `check_state`, which comes next; older states have no such entry.
    changed = state.get("changed", {}) if isinstance(state, Mapping) else {}
    if not isinstance(changed, Mapping) or not all(isinstance(key, str) for key in changed):
        raise ValueError(f"The saved state's changed hyperparameters are no mapping, but {_shown(changed)}.")
    return changed


def check_several(state: object, patterns: Sequence[str]) -> None:
    """Refuse a state that cannot be one of several methods, each of which `check_state` then checks.

    Raises:
        ValueError: it is no mapping with states of methods of these patterns, and of layers.
    """
    methods = state.get("methods") if isinstance(state, Mapping) else None
    if not isinstance(methods, Mapping) or not all(isinstance(one, Mapping) for one in methods.values()):
        raise ValueError("The saved state is not one of several methods.")
    # In order too: a layer belongs to the first pattern found in its name, so with ["conv", ".*"] turned around, other
    # layers would belong to each method.
    if list(methods) != list(patterns):
        raise ValueError(f"The state was saved with methods for {list(methods)}, not for {list(patterns)}.")


def _check_entries(state: object, method: str) -> None:
    if not isinstance(state, Mapping):
        raise ValueError(f"The saved state is no mapping, but {_shown(state)}.")
    if missing := [key for key in ENTRIES if key not in state]:
        raise ValueError(f"The saved state has no entry {missing[0]!r}.")
    if unknown := [key for key in state if key not in ENTRIES + OTHER_ENTRIES]:
        raise ValueError(f"The saved state has an unknown entry {unknown[0]!r}: a later version may have saved it.")
    if state["method"] != method:
        raise ValueError(
            f"The state was saved by {_name(state['method'])}, but this Preconditioner's method is {method}."
        )


def _check_number(key: str, value: object) -> None:
    if not _is_count(value):
        raise ValueError(f"The saved state's {key} is {_shown(value)}: it must be an integer of at least 0.")


def _check_hyperparameters(saved: object, method: Method) -> None:
    if saved is None:  # saved by an older version
        return
    if not isinstance(saved, Mapping):
        raise ValueError(f"The saved state's hyperparameters are no mapping, but {_shown(saved)}.")
    own = plain_hyperparameters(method)
    # An older version may have had other hyperparameters, and its tensors are compared anyway.
    differing = [key for key in own if key in saved and _differ(saved[key], own[key])]
    for key in differing:
        # Others, such as the damping, only decide what is done with the tensors from now on.
        if key in method.fixed_in_state:
            raise ValueError(
                f"The state was saved with {key}={_shown(saved[key])}, but this {type(method).__name__} has "
                f"{key}={own[key]!r}, for which its tensors mean something else."
            )
    if differing:
        changes = ", ".join(f"{key} from {_shown(saved[key])} to {own[key]!r}" for key in differing)
        logger.info("%s goes on from a saved state with other hyperparameters: %s.", type(method).__name__, changes)


def _check_losses(saved: object, method: Method) -> None:
    # MKOR-H has, for example, {"history": [(10, 2.3)], "steps": 4, "sum": 8.9}: a mean of 2.3 over 10 steps, and the
    # sum over the 4 since.
    if not isinstance(method, FollowsLoss) and saved is None:
        return
    # JSON makes lists of tuples, so either is accepted.
    match saved:
        case {"history": list() | tuple() as history, "steps": steps, "sum": int() | float()} if (
            isinstance(method, FollowsLoss) and _is_count(steps) and all(map(_is_record, history))
        ):
            return
    expected = "the history of a loss" if isinstance(method, FollowsLoss) else "None"
    raise ValueError(f"The saved state's losses are not {expected}, as a {type(method).__name__} has them.")


def _check_layers(saved: object) -> None:
    if not isinstance(saved, Mapping):
        raise ValueError(f"The saved state's layers are no mapping, but {_shown(saved)}.")
    non_finite = []
    for name, state in saved.items():
        if not isinstance(name, str) or not isinstance(state, Mapping):
            raise ValueError(f"The saved state of layer {_shown(name)} is not a mapping of a layer's tensors.")
        for key, tensor in state.items():
            if not isinstance(key, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
                raise ValueError(f"Entry {_shown(key)} of layer {name!r} is no dense tensor, but {_shown(tensor)}.")
        # A meta tensor has no values to test. For others on a GPU the host waits.
        if not all(tensor.is_meta or tensor.isfinite().all() for tensor in state.values()):
            non_finite.append(repr(name))
    if non_finite:
        # Not refused: factors of the rule `published` may overflow, and such a run goes on with plain gradients. What
        # it saves must resume it.
        logger.warning("The saved state of layers %s has a NaN or an infinity.", ", ".join(non_finite))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63  # isinstance would accept True


def _is_record(entry: object) -> bool:
    match entry:
        case (steps, float()):
            return _is_count(steps)
    return False


def _differ(saved: object, own: object) -> bool:
    """Return whether two values differ; anything but a plain number, text or None differs from all."""
    # A tensor or an array would be compared entry by entry. True == 1 in Python, but it is another hyperparameter.
    is_plain = saved is None or isinstance(saved, bool | int | float | str)
    return not is_plain or isinstance(saved, bool) != isinstance(own, bool) or saved != own


def _name(value: object) -> str:
    return value if isinstance(value, str) else _shown(value)


def _shown(value: object) -> str:
    """Return a value in one short line."""
    # Python raises a ValueError when it prints an integer of more than 4300 digits; texts may be as long.
    is_short = value is None or isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 64)
    if is_short or (isinstance(value, str) and len(value) < 80):
        return repr(value)
    return f"a value of type {type(value).__name__}"
