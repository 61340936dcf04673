"""The thresholds of claims, and the verdicts that estimates with intervals support."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from workflow.bench.analysis.estimates import Estimate

Verdict = Literal["confirmed", "refuted", "no difference", "inconclusive", "not tested"]
"""``no difference``: none that is larger than the claim's margin."""

MEANINGS: Final[dict[Verdict, str]] = {
    "confirmed": "The whole interval lies where the claim holds.",
    "refuted": "The whole interval lies where the claim does not hold.",
    "no difference": "The whole interval lies within the margin around the threshold, declared before the runs.",
    "inconclusive": "The interval contains the threshold, or there is no interval: more or longer runs could decide.",
    "not tested": "These runs cannot decide the claim.",
}
"""What each verdict means; a claim about several models, layers or rivals must hold for each of them."""

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Margin:
    """A difference that is too small to matter, declared before the run."""

    size: float
    kind: Literal["ratio", "difference", "fall"]
    """``ratio``: of a ratio, .05 for 5 %; ``difference``: in the quantity's unit; ``fall``: a share of what the loss
    falls by in training."""

    def __str__(self) -> str:
        if self.kind == "difference":
            return f"{self.size:g}"
        return f"{100 * self.size:g} %{' of the fall' if self.kind == 'fall' else ''}"

    def around(self, threshold: float, fall: float) -> tuple[float, float]:
        """Return the interval in which nothing differs from a threshold.

        fall: what the loss falls by, for that kind.
        """
        if self.kind == "ratio":
            # As far on either side on the scale of logarithms: 5 % slower counts as much as 5 % faster.
            return threshold / (1 + self.size), threshold * (1 + self.size)
        half = self.size * (fall if self.kind == "fall" else 1)
        return threshold - half, threshold + half


@dataclass(frozen=True)
class Condition:
    """One threshold of a claim, such as ``KAISA >= 3``; ``subject`` is empty if the claim has only one threshold.

    A claim of more or less (``>``, ``<``) whose interval lies within the margin around the threshold, on both sides of
    it, sees no difference. A claim of no worse (``>=``, ``<=``) holds up to the margin: non-inferiority.
    """

    subject: str
    comparison: str
    threshold: float
    margin: Margin | None = None

    def bound(self, fall: float = 1.0) -> float:
        """Return the number beyond which the condition holds; fall: see `Margin.around`."""
        if self.margin is None or not self.comparison.endswith("="):
            return self.threshold
        low, high = self.margin.around(self.threshold, fall)
        return low if self.comparison.startswith(">") else high

    def holds(self, value: float, fall: float = 1.0) -> bool:
        """Return whether a number meets the condition; fall: see `Margin.around`."""
        return _COMPARISONS[self.comparison](value, self.bound(fall))

    def judge(self, estimate: Estimate, fall: float = 1.0) -> Verdict:
        """Return confirmed or refuted if the whole interval is on one side of the threshold.

        Otherwise no difference, if all of it lies within the margin, or inconclusive. fall: see `Margin.around`.
        """
        # One run, or censored ones, cannot exclude either side.
        if not estimate.has_interval:
            return "inconclusive"
        low, high = self.holds(estimate.low, fall), self.holds(estimate.high, fall)
        if low == high:
            return "confirmed" if low else "refuted"
        # With >= or <= the bound has moved by the margin already (non-inferiority).
        if self.margin is not None and not self.comparison.endswith("="):
            least, most = self.margin.around(self.threshold, fall)
            if least <= estimate.low and estimate.high <= most:
                return "no difference"
        return "inconclusive"


def parse_margin(text: str) -> Margin | None:
    """Return the margin that a claim declares: ``5 %``, ``0.01`` or ``2 % of the fall``; None for an empty entry.

    Raises:
        ValueError: the entry is none of these.
    """
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?: %( of the fall)?)?", text)
    if match is None:
        raise ValueError(f"margin={text!r} is none of '5 %', '0.01' and '2 % of the fall'.")
    size = float(match[1])
    if "%" not in text:
        return Margin(size, "difference")
    return Margin(size / 100, "fall" if match[2] else "ratio")


def parse_conditions(holds_when: str, margin: str = "") -> tuple[Condition, ...]:
    """Return the thresholds of a ``holds_when`` entry: ``"KAISA >= 3 and MKOR <= 1.5"`` has two.

    margin: the claim's entry of that name: one for all of them, or one for each, joined by ``and`` as they are.

    Raises:
        ValueError: the entry has no comparison with a number, or another number of margins.
    """
    comparisons = re.findall(r"(?:(\w[\w-]*)\s*)?(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", holds_when)
    if not comparisons:
        raise ValueError(f"{holds_when=} holds no comparison with a number, such as '> 1'.")
    # Margins stand beside the thresholds, both written before the runs: nobody fits them to results.
    margins = [parse_margin(text) for text in margin.split(" and ")]
    if len(margins) == 1:
        margins *= len(comparisons)
    if len(margins) != len(comparisons):
        raise ValueError(f"{margin=} must be one margin, or one for each comparison of {holds_when=}.")
    return tuple(
        Condition(subject, comparison, float(number), declared)
        for (subject, comparison, number), declared in zip(comparisons, margins, strict=True)
    )


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim that holds in every part: on all models, in every layer, against every rival.

    One refuted part refutes it, and all confirmed confirm it. If all are decided, one without a difference decides.
    """
    found = set(verdicts)
    if found <= {"not tested"}:
        return "not tested"
    # One counterexample refutes what is claimed of all; an open part only leaves it open.
    if "refuted" in found:
        return "refuted"
    if found & {"inconclusive", "not tested"}:
        return "inconclusive"
    return "no difference" if "no difference" in found else "confirmed"
