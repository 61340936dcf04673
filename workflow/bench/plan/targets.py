"""Targets of runs, and when a run reaches one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


class Reached(NamedTuple):
    """The first evaluation at which a target holds: optimizer steps and training seconds so far."""

    step: int
    train_seconds: float


@dataclass(frozen=True)
class Target:
    """A metric of a split that must fall to ``limit`` or below, or rise to ``limit`` or above."""

    split: str
    metric: str
    direction: Literal["below", "above"]
    limit: float

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Target:
        """Return the target that an experiment file's checked ``target`` describes."""
        direction: Literal["below", "above"] = "below" if "below" in given else "above"
        return cls(given["split"], given["metric"], direction, float(given[direction]))

    def as_dict(self) -> dict[str, Any]:
        """Return the target in the form of an experiment file."""
        return {"split": self.split, "metric": self.metric, self.direction: self.limit}

    def describe(self) -> str:
        """Return the target in words: ``validation loss ≤ 5.2``."""
        return f"{self.split} {self.metric} {'≤' if self.direction == 'below' else '≥'} {self.limit:g}"

    def holds(self, value: float) -> bool:
        """Return whether ``value`` reaches the target; NaN never does."""
        return value <= self.limit if self.direction == "below" else value >= self.limit

    def first_reached(self, evaluations: Iterable[Mapping[str, Any]]) -> Reached | None:
        """Return the first of a run's evaluations, in order, that reaches the target; None if none does (censored)."""
        for row in evaluations:
            if (row["split"], row["metric"]) == (self.split, self.metric) and self.holds(float(row["value"])):
                return Reached(int(row["step"]), float(row["train_seconds"]))
        return None
