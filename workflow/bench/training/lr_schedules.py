"""Learning-rate schedules: pure functions of the step, times the optimizer's own rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def factor(schedule: Mapping[str, Any], step: int, steps: int) -> float:
    """Return what step ``step`` (from 0) of ``steps`` multiplies the learning rate with, in [0, 1].

    ``warmup`` is the share of the steps over which the factor rises linearly; the first step already moves.
    ``linear`` then falls to zero, ``polynomial`` as the remaining share of the run to ``power``, ``step`` is
    multiplied with ``factor`` from each milestone (a step) on.
    """
    rising = round(schedule.get("warmup", 0.0) * steps)
    if step < rising:
        return (step + 1) / rising
    remaining = max(0.0, (steps - step) / max(steps - rising, 1))
    match schedule["name"]:
        case "constant":
            return 1.0
        case "linear":
            return remaining
        case "polynomial":
            return remaining ** schedule["power"]
        case "step":
            return schedule["factor"] ** sum(step >= milestone for milestone in schedule["milestones"])
        case name:
            raise ValueError(f"schedule name={name!r} must be constant, linear, polynomial or step.")


def schedule_function(schedule: Mapping[str, Any], steps: int) -> Callable[[int], float]:
    """Return `factor` as a function of the step alone, as ``torch.optim.lr_scheduler.LambdaLR`` takes it."""
    return lambda step: factor(schedule, step, steps)
