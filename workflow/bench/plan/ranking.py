"""How the trials of a tuning are ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workflow.bench.plan.targets import Target

TARGET: Final = "target"
"""The word in an experiment file that ranks trials by the steps to the block's target."""


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
        if self.target is not None and steps is not None:
            return False, steps
        return True, -value if self.highest else value
