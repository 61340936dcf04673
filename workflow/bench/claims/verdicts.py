"""Thresholds of claims, and the verdicts that an estimate with its interval supports."""

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
    """One threshold of a claim, such as ``KAISA >= 3``; ``subject`` is empty when the claim has but one."""

    subject: str
    comparison: str
    threshold: float

    def holds(self, value: float) -> bool:
        """Whether a number meets it."""
        return _COMPARISONS[self.comparison](value, self.threshold)

    def judge(self, estimate: Estimate) -> Verdict:
        """Confirmed or refuted where the whole interval is on one side of the threshold, else inconclusive."""
        if not estimate.has_interval:
            return "inconclusive"
        sides = {self.holds(bound) for bound in (estimate.low, estimate.high)}
        if len(sides) == 2:
            return "inconclusive"
        return "confirmed" if sides.pop() else "refuted"


def parse_conditions(holds_when: str) -> tuple[Condition, ...]:
    """Read the thresholds of a ``holds_when`` entry: ``"KAISA >= 3 and MKOR <= 1.5"`` gives two.

    Raises ValueError where no comparison with a number is found.
    """
    found = re.findall(r"(?:(\w[\w-]*)\s*)?(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", holds_when)
    if not found:
        raise ValueError(f"{holds_when=} holds no comparison with a number, such as '> 1'.")
    return tuple(Condition(subject, comparison, float(number)) for subject, comparison, number in found)


def agreement(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim seen in several places (workloads): theirs where all agree, else inconclusive."""
    seen = set(verdicts) - {"not tested"}
    if not seen:
        return "not tested"
    return seen.pop() if len(seen) == 1 else "inconclusive"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim that needs every part: one refuted part refutes it, all confirmed confirm it."""
    if not verdicts or all(verdict == "not tested" for verdict in verdicts):
        return "not tested"
    if "refuted" in verdicts:
        return "refuted"
    return "confirmed" if all(verdict == "confirmed" for verdict in verdicts) else "inconclusive"
