"""Tuning: the space that trials take their values from, and how finished trials are ranked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

from workflow.bench.plan.targets import Target

Space = Mapping[str, Mapping[str, Sequence[Any]]]
"""Hyperparameters' names, each with its values: the two ends of a ``log`` or ``linear`` range, ``choices``,
or the ``grid`` of the only name."""

_DIGITS: Final = 3
"""Significant digits of a trial's value: more would suggest a precision that a few trials do not have."""
NEAR: Final = 0.1
"""The share of a range's length within which a value lies at its end."""


def trial_values(space: Space, trials: int, seed: int) -> list[dict[str, Any]]:
    """Return the values of the ``trials`` trials of a study: those of ``fewer`` trials are the first of them.

    They are quasi-random points of the space, with one dimension for each name in alphabetical order (`points`).
    ``log`` is even in the logarithm; ``choices`` divide their dimension into equal parts. A ``grid`` is tried in turn.
    """
    # In alphabetical order: the order of a file's lines must not decide a trial's values.
    names = sorted(space)
    if grid := space[names[0]].get("grid"):
        return [{names[0]: value} for value in grid]
    return [
        {name: _value_at(space[name], share) for name, share in zip(names, point, strict=True)}
        for point, _ in zip(points(len(names), seed), range(trials), strict=False)
    ]


def points(dimensions: int, seed: int) -> Iterator[tuple[float, ...]]:
    """Yield the points of an endless quasi-random sequence in the unit cube [0, 1)^dimensions.

    Point n is ``(shift + n alpha) mod 1``, a Kronecker sequence. ``alpha_j = phi^-j``, where phi is the root of
    ``phi^(dimensions + 1) = phi + 1`` above 1: the golden ratio in one dimension, and its generalization R_d in several
    (M. Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018). Every beginning of the sequence
    fills the cube about as evenly as that many points can. ``shift`` is drawn from the seed, uniform in the cube (a
    Cranley-Patterson rotation): each point alone is uniform, and sequences of different seeds are independent.
    """
    # Found by iteration: beyond one dimension the root has no simple closed form.
    phi = 2.0
    for _ in range(64):  # a contraction: each pass at least halves the error
        phi = (1 + phi) ** (1 / (dimensions + 1))
    random = Random(seed)
    point = [random.random() for _ in range(dimensions)]
    alpha = [phi**-power for power in range(1, dimensions + 1)]
    while True:
        yield tuple(point)
        point = [(share + step) % 1 for share, step in zip(point, alpha, strict=True)]


def end_of(interval: Mapping[str, Sequence[Any]], value: Any) -> Literal["low", "high", ""]:
    """Return the end of its space at which a chosen value lies; empty if it lies inside.

    Within a tenth of a range's length, on its scale, or the first or last number of ``choices`` or a ``grid``. A 0, of
    which there is no less, is no end, nor is a choice that is no number.
    """
    ((kind, values),) = interval.items()
    if value is None or isinstance(value, bool | str) or value == 0:
        return ""
    if kind in ("choices", "grid"):
        numbers = [number for number in values if isinstance(number, int | float) and not isinstance(number, bool)]
        if value not in numbers or min(numbers) == max(numbers):
            return ""
        return "low" if value == min(numbers) else "high" if value == max(numbers) else ""
    low, high, here = (math.log(number) if kind == "log" else number for number in (*values, value))
    share = (here - low) / (high - low)
    return "low" if share < NEAR else "high" if share > 1 - NEAR else ""


def _value_at(interval: Mapping[str, Sequence[Any]], share: float) -> Any:
    """Return the value at a share in [0, 1) of the way through an interval."""
    ((kind, values),) = interval.items()
    if kind == "choices":
        return values[int(share * len(values))]
    low, high = values
    if kind == "log":
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    # Rounding must not leave the interval.
    return min(max(float(f"{value:.{_DIGITS}g}"), float(low)), float(high))


@dataclass(frozen=True)
class Ranking:
    """Ranks finished trials by steps to a target, if there is one, and by the last value of a metric."""

    split: str
    metric: str
    highest: bool
    """Whether the highest value is the best one."""
    target: Target | None = None
    """Trials that reach it rank before the others, those with fewer steps first."""

    @classmethod
    def parse(cls, given: str | Mapping[str, Any], target: Target | None) -> Ranking:
        """Return the ranking that an experiment file's checked ``metric`` describes, in a block with this target.

        Raises:
            ValueError: it is the word ``target``, and the block has none.
        """
        if not isinstance(given, str):
            return cls(given["split"], given["metric"], given.get("best") == "highest")
        if target is None:
            raise ValueError("needs a 'target' in this block")
        return cls(target.split, target.metric, target.direction == "above", target)

    def key(self, value: float, steps: float | None) -> tuple[bool, float]:
        """Return what sorts a trial by its last value and its steps to the target (None: not reached), best first."""
        # False sorts before True: whatever reaches the target comes before whatever does not.
        if self.target is not None and steps is not None:
            return False, steps
        return True, -value if self.highest else value
