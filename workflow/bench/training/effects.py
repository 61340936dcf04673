"""What a preconditioner does to the gradients, as metrics of an evaluation."""

from __future__ import annotations

import math
from statistics import median
from typing import Protocol

from mkor_core.engines.comparison import Comparison


class Compared(Protocol):
    """A preconditioner that has compared updates with gradients."""

    def comparisons(self) -> dict[str, Comparison]:
        """Return the comparisons by layer."""


def effects(preconditioner: Compared | None) -> dict[str, float]:
    """Return medians and extremes over layers of how V differs from D in the step before an evaluation.

    - ``cosine``, ``cosine_least``, ``cosine_most``: of V and D; a median of 1 means that the method is inert.
    - ``length``, ``length_least``, ``length_most``: ``|V| / |D|``.
    - ``cosine_left``, ``cosine_right``: medians of the cosine that one side alone gives.
    - ``start_weight``: the largest weight that the identity, from which the factors start, still has.

    Empty without a step that compared them: at step 0, without a preconditioner, after MKOR-H has switched.
    """
    layers = [] if preconditioner is None else list(preconditioner.comparisons().values())
    values: dict[str, list[float]] = {
        "cosine": [layer.cosine for layer in layers],
        "length": [layer.ratio for layer in layers],
    }
    for side in ("left", "right"):
        values[f"cosine_{side}"] = [layer.by_side[side] for layer in layers if side in layer.by_side]
    metrics: dict[str, float] = {}
    for name, found in values.items():
        finite = [value for value in found if math.isfinite(value)]
        if finite:
            metrics[name] = median(finite)
            if name in ("cosine", "length"):
                metrics |= {f"{name}_least": min(finite), f"{name}_most": max(finite)}
    starts = [layer.start_weight for layer in layers if layer.start_weight is not None]
    return metrics | ({"start_weight": max(starts)} if starts else {})
