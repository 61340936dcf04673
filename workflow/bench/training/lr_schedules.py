"""Learning-rate schedules: pure functions of the step that multiply the optimizer's rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def factor(schedule: Mapping[str, Any], step: int, steps: int) -> float:
    """Return the factor, in [0, 1], of the learning rate in step ``step`` (from 0) of ``steps``.

    During the first ``warmup`` share of the steps the factor rises linearly, from 1 / (number of those steps). After
    that ``constant`` stays at 1; ``linear`` falls to 0; ``polynomial`` is the remaining share of the steps to the power
    ``power``; ``step`` multiplies by ``factor`` at each of the steps in ``milestones``.
    """
    warmup_steps = round(schedule.get("warmup", 0.0) * steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    remaining = max(0.0, (steps - step) / max(steps - warmup_steps, 1))
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
