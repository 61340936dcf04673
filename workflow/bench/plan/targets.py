"""Targets of runs, and when a run reaches one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal, NamedTuple


class Reached(NamedTuple):
    """The first evaluation at which a target holds: optimizer steps and training seconds so far."""

    step: int
    train_seconds: float


class Crossing(NamedTuple):
    """Where the smoothed metric of a run crosses a target, interpolated between two evaluations."""

    step: float
    train_seconds: float


@dataclass(frozen=True)
class Target:
    """A metric of a split that must fall to ``limit`` or below, or rise to ``limit`` or above."""

    split: str
    metric: str
    direction: Literal["below", "above"]
    limit: float
    trivial: float | None = field(default=None, compare=False)
    """What the best constant prediction scores on the split, such as the mean image; None if nobody declared it. It
    decides nothing of when a run reaches the target."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Target:
        """Return the target that an experiment file's checked ``target`` describes."""
        direction: Literal["below", "above"] = "below" if "below" in given else "above"
        trivial = None if given.get("trivial") is None else float(given["trivial"])
        return cls(given["split"], given["metric"], direction, float(given[direction]), trivial)

    def as_dict(self) -> dict[str, Any]:
        """Return the target in the form of an experiment file."""
        declared = {} if self.trivial is None else {"trivial": self.trivial}
        return {"split": self.split, "metric": self.metric, self.direction: self.limit, **declared}

    def describe(self) -> str:
        """Return the target in words: ``validation loss ≤ 5.2``."""
        return f"{self.split} {self.metric} {'≤' if self.direction == 'below' else '≥'} {self.limit:g}"

    def holds(self, value: float) -> bool:
        """Return whether ``value`` reaches the target; NaN never does."""
        return value <= self.limit if self.direction == "below" else value >= self.limit

    @property
    def beats_trivial(self) -> bool:
        """Whether whoever reaches the target is better than the trivial predictor; true where none is declared."""
        if self.trivial is None:
            return True
        return self.limit < self.trivial if self.direction == "below" else self.limit > self.trivial

    def first_reached(self, evaluations: Iterable[Mapping[str, Any]]) -> Reached | None:
        """Return the first of a run's evaluations, in order, that reaches the target; None if none does (censored)."""
        for row in evaluations:
            # The rows of all splits and metrics are mixed, in the order of steps.
            if (row["split"], row["metric"]) == (self.split, self.metric) and self.holds(float(row["value"])):
                return Reached(int(row["step"]), float(row["train_seconds"]))
        return None

    def crossing(self, evaluations: Iterable[Mapping[str, Any]]) -> Crossing | None:
        """Return where a run's smoothed metric crosses the target; None if it never does (censored).

        The metric is smoothed by the monotone curve nearest to it (`monotone`), so that a noisy first hit, after which
        the metric falls back, does not count. Between two evaluations the curve is a straight line. Evaluations from
        the first one on that is not finite are left out: training had broken down.
        """
        rows = [row for row in evaluations if (row["split"], row["metric"]) == (self.split, self.metric)]
        rows = list(takewhile(lambda row: math.isfinite(float(row["value"])), rows))
        values = monotone([float(row["value"]) for row in rows], rising=self.direction == "above")
        at = next((index for index, value in enumerate(values) if self.holds(value)), None)
        if at is None:
            return None
        # A run whose first evaluation reaches the target crossed it there, for all that is known.
        before = max(at - 1, 0)
        share = (self.limit - values[before]) / (values[at] - values[before]) if at else 0.0
        ends = [(float(row["step"]), float(row["train_seconds"])) for row in (rows[before], rows[at])]
        return Crossing(*(start + share * (end - start) for start, end in zip(*ends, strict=True)))


def monotone(values: Sequence[float], *, rising: bool) -> list[float]:
    """Return the monotone sequence nearest to ``values`` in least squares (pool adjacent violators).

    A sequence that is monotone already is returned as it is.
    """
    sign = 1.0 if rising else -1.0
    pools: list[tuple[float, int]] = []  # mean and number of neighbors that have one value
    for value in values:
        mean, size = sign * value, 1
        # A value that falls back is pooled with its neighbors until the means rise: their mean is nearest to all.
        while pools and pools[-1][0] >= mean:
            previous, count = pools.pop()
            mean, size = (previous * count + mean * size) / (count + size), count + size
        pools.append((mean, size))
    return [sign * mean for mean, size in pools for _ in range(size)]
