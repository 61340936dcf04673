"""Optimizer states in the form in which earlier versions saved a preconditioner's: as a third entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mkor_core.saving.entries import saved_counters, saved_tensors, without_preconditioner


def in_old_form(state: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """Return an optimizer's state in the old form; names: the layers by the indices of their weights."""
    counters = saved_counters(state)
    assert counters is not None
    del counters["begun"]
    layers = {names[index]: tensors for index, tensors in saved_tensors(state).items()}
    return {**without_preconditioner(state), "preconditioner": {**counters, "layers": layers}}
