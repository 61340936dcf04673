"""The thresholds of claims, and the verdicts that estimates with intervals support."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from workflow.bench.analysis.estimates import Estimate

Verdict = Literal["confirmed", "refuted", "inconclusive", "not tested"]


_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Condition:
    """One threshold of a claim, such as ``KAISA >= 3``; ``subject`` is empty if the claim has only one threshold."""

    subject: str
    comparison: str
    threshold: float

    def holds(self, value: float) -> bool:
        """Return whether a number meets the condition."""
        return _COMPARISONS[self.comparison](value, self.threshold)

    def judge(self, estimate: Estimate) -> Verdict:
        """Return confirmed or refuted if the whole interval is on one side of the threshold, else inconclusive."""
        if not estimate.has_interval:
            return "inconclusive"
        low, high = self.holds(estimate.low), self.holds(estimate.high)
        if low != high:
            return "inconclusive"
        return "confirmed" if low else "refuted"


def parse_conditions(holds_when: str) -> tuple[Condition, ...]:
    """Return the thresholds of a ``holds_when`` entry: ``"KAISA >= 3 and MKOR <= 1.5"`` has two.

    Raises:
        ValueError: the entry has no comparison with a number.
    """
    comparisons = re.findall(r"(?:(\w[\w-]*)\s*)?(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", holds_when)
    if not comparisons:
        raise ValueError(f"{holds_when=} holds no comparison with a number, such as '> 1'.")
    return tuple(Condition(subject, comparison, float(number)) for subject, comparison, number in comparisons)


def agreement(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim judged in several places, such as workloads: inconclusive unless all agree."""
    tested = set(verdicts) - {"not tested"}
    if not tested:
        return "not tested"
    return tested.pop() if len(tested) == 1 else "inconclusive"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim that needs every part: one refuted part refutes it, all confirmed confirm it."""
    if all(verdict == "not tested" for verdict in verdicts):
        return "not tested"
    if "refuted" in verdicts:
        return "refuted"
    return "confirmed" if all(verdict == "confirmed" for verdict in verdicts) else "inconclusive"
