"""The decision on a claim: its thresholds, the verdicts that estimates support, its parts, and the shared phrases."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pandas as pd

from workflow.bench.analysis.captions import INERT
from workflow.bench.analysis.estimates import Estimate, shown_level
from workflow.bench.analysis.wording import bound, number
from workflow.bench.results.columns import DIRECTION, ENDED
from workflow.bench.results.sources import NO_SOURCES, Sources, from_runs
from workflow.bench.results.tables import Results

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

    A claim of more or less (``>``, ``<``) whose interval lies within the margin around the threshold sees no
    difference that matters, even if the interval excludes the threshold itself. A claim of no worse (``>=``, ``<=``)
    holds up to the margin: non-inferiority.
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
        """Return no difference if the whole interval lies within the margin, whether or not it holds the threshold.

        Otherwise confirmed or refuted, if all of it is on one side of the threshold, or inconclusive. fall: see
        `Margin.around`.
        """
        # One run, or censored ones, cannot exclude either side.
        if not estimate.has_interval:
            return "inconclusive"
        # With >= or <= the bound has moved by the margin already (non-inferiority).
        if self.margin is not None and not self.comparison.endswith("="):
            least, most = self.margin.around(self.threshold, fall)
            if least <= estimate.low and estimate.high <= most:
                return "no difference"
        low, high = self.holds(estimate.low, fall), self.holds(estimate.high, fall)
        if low != high:
            return "inconclusive"
        return "confirmed" if low else "refuted"


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
        Condition(subject, comparison, float(threshold), declared)
        for (subject, comparison, threshold), declared in zip(comparisons, margins, strict=True)
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


@dataclass(frozen=True)
class Part:
    """The verdict on a claim for one workload, rival or contrast."""

    name: str
    """Empty for the only part of a claim."""
    verdict: Verdict
    measured: str
    interval: str = ""
    estimate: Estimate | None = None
    condition: Condition | None = None
    """The threshold that the estimate was compared with; None if none was."""
    fall: float = 1.0
    """What the loss falls by, for a margin that is a share of it (`Margin.around`)."""
    reason: str = ""
    """Why it was not tested, for `part_verdicts`."""
    narrowly: str = ""
    """In how many cases a decided verdict would be another with the mean without one tuning study, ``5 of 8``; empty if
    in none."""

    @classmethod
    def judged(cls, name: str, estimate: Estimate, condition: Condition, fall: float = 1.0, interval: str = "") -> Part:
        """Return the part that an estimate decides; interval: its text, if it is not the estimate's."""
        # A ratio is infinite if its target was not reached, a difference if a run diverged.
        measured = number(estimate.value) if estimate.is_ratio else bound(estimate.value)
        verdict = condition.judge(estimate, fall)
        return cls(name, verdict, measured, interval or interval_of(estimate), estimate, condition, fall)


@dataclass(frozen=True)
class Decision:
    """A claim's parts, of which each must hold, with the reason for the verdict and the sources of its numbers."""

    parts: tuple[Part, ...]
    """Empty for a claim that was not tested."""
    why: str
    """The reason, in one sentence."""
    details: str = ""
    """Further sentences: the statistics used, and numbers that do not enter the verdict."""
    seeds: str = ""
    evidence: str = ""
    """The kind of evidence; empty for that of the tier."""
    data: Sources = NO_SOURCES
    published_of: tuple[str, ...] | None = None
    """The parts whose quantity the paper's number states; None: all."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that the parts support."""
        return all_of([part.verdict for part in self.parts])

    @property
    def measured(self) -> str:
        """Every part's measured value: ``bert: 1.2; resnet: 2``."""
        return listed({part.name: part.measured for part in self.parts})

    @property
    def interval(self) -> str:
        """Every part's interval."""
        return listed({part.name: part.interval for part in self.parts})

    @property
    def estimates(self) -> Mapping[str, Estimate]:
        """The parts' estimates by name, without parts that have none."""
        return {part.name: part.estimate for part in self.parts if part.estimate is not None}

    def with_details(self, sentence: str, data: Sources = NO_SOURCES) -> Decision:
        """Return the decision with one more sentence of details and its sources; unchanged if it was not tested."""
        if self.verdict == "not tested" or not sentence:
            return self
        return replace(self, details=sentences(self.details, sentence), data=self.data + data)


def not_tested(why: str, details: str = "", data: Sources = NO_SOURCES) -> Decision:
    """Return the decision on a claim that the runs cannot decide; ``data`` are the sources of the details."""
    return Decision((), why, details, data=data)


@dataclass(frozen=True)
class Trained:
    """One experiment's runs and their evaluations."""

    name: str
    runs: pd.DataFrame
    metrics: pd.DataFrame

    @classmethod
    def of(cls, results: Results, name: str) -> Trained:
        """Read an experiment's results."""
        return cls(name, results.runs(name), results.metrics(name))

    @property
    def has_target(self) -> bool:
        """Whether a run has a target."""
        return bool(self.runs["target"].notna().any())

    def of_labels(self, *labels: str) -> pd.DataFrame:
        """Return the runs of some labels."""
        return self.runs[self.runs["optimizer"].isin(labels)]

    def sources(self, *labels: str) -> Sources:
        """Return the runs of some labels and their evaluations as sources."""
        used = self.of_labels(*labels)
        return from_runs(f"{self.name}.runs.csv", used) + from_runs(f"{self.name}.csv", used)

    def validation_losses(self) -> pd.DataFrame:
        """Return the evaluations of the validation loss, and the rows of runs that have no evaluation."""
        is_loss = (self.metrics["split"] == "validation") & (self.metrics["metric"] == "loss")
        # A run that broke down before its first evaluation has one row without a metric; it must count as broken.
        return self.metrics[is_loss | self.metrics["split"].isna()]

    def inert(self, label: str) -> str:
        """Return a clause that a label is inert, so that its base at another rate would be compared; else nothing.

        The median cosine of V and D over all steps that its finished runs compared is `INERT` or more.
        """
        finished = self.of_labels(label).query("status == 'finished'")["run"]
        split, metric = DIRECTION
        is_cosine = (self.metrics["split"] == split) & (self.metrics["metric"] == metric)
        cosines = self.metrics.loc[is_cosine & self.metrics["run"].isin(finished), "value"].dropna().astype(float)
        if cosines.empty or cosines.median() < INERT:
            return ""
        return f"{label} is inert: median cosine {cosines.median():.6f} over {len(cosines)} steps"

    def unless_inert(self, rival: str, part: Part) -> Part:
        """Return a part, not tested if the rival that it compares with is inert."""
        why = self.inert(rival)
        return Part(part.name, "not tested", "", reason=why) if why else part

    def lacking(self, *labels: str) -> str:
        """Return sentences on the labels without a run that has ended; empty if each label has one."""
        if self.runs.empty:
            return f"{self.name} has no results."
        reports = []
        for label in dict.fromkeys(labels):
            of_label = self.of_labels(label)
            if of_label.empty:
                reports.append(f"{self.name} has no run of {label}.")
            elif not of_label["status"].isin(ENDED).any():
                statuses = ", ".join(sorted(set(of_label["status"].astype(str))))
                # A skipped run's reason says what to fetch or free: the reader's next step.
                reasons = "; ".join(sorted({str(reason).rstrip(".") for reason in of_label["reason"].dropna()}))
                because = f" ({reasons})" if reasons else ""
                reports.append(f"No run of {label} in {self.name} has ended: {statuses}{because}.")
        return " ".join(reports)


def mkor_of(runs: pd.DataFrame) -> str:
    """Return the label of the MKOR by which claims about training are judged.

    It is ``mkor``, the exact rule, except at the paper tier: there it is the released rule, which made the published
    numbers.
    """
    is_released = (runs["tier"] == "paper") & (runs["optimizer"] == "mkor_released")
    return "mkor_released" if is_released.any() else "mkor"


def position(estimate: Estimate, condition: Condition) -> str:
    """Return a predicate that places an estimate relative to its threshold, the reason for the verdict."""
    if not estimate.has_interval:
        return "has no interval, being one value" if estimate.n == 1 else "has no interval, some runs being censored"
    # A claim of no worse holds up to its margin.
    bound = condition.bound()
    goal = f"{condition.comparison} {bound:g}"
    # An extreme is one of the cases themselves: to speak of its interval would suggest sampling.
    if estimate.interval_method == "range":
        return f"is {'' if condition.holds(estimate.value) else 'not '}{goal}"
    match condition.judge(estimate):
        case "confirmed":
            return f"is {goal} in its whole interval"
        case "refuted":
            return f"is not {goal} anywhere in its interval"
        case "no difference":
            return f"differs from {condition.threshold:g} by no more than the margin"
    return f"has {bound:g} inside its interval"


def part_verdicts(parts: Iterable[Part]) -> str:
    """Return the verdict on every part: ``bert confirmed; resnet not tested (its rival is inert)``."""
    return "; ".join(f"{part.name} {part.verdict}{f' ({part.reason})' if part.reason else ''}" for part in parts)


def interval_of(estimate: Estimate) -> str:
    """Return ``[low, high]``, or the reason why the estimate has no interval."""
    if not estimate.has_interval:
        return "none (one value)" if estimate.n == 1 else "none (censored runs)"
    return f"[{bound(estimate.low)}, {bound(estimate.high)}]"


def with_interval(estimate: Estimate) -> str:
    """Return an estimate's value and interval."""
    return f"{number(estimate.value)} {interval_of(estimate)}"


def statistics_used(parts: Iterable[Part | Estimate]) -> str:
    """Return the statistics and kinds of interval of the estimates, each once; empty if no part has one."""
    estimates = (one.estimate if isinstance(one, Part) else one for one in parts)
    return "; ".join(dict.fromkeys(_statistic(estimate) for estimate in estimates if estimate is not None))


def _statistic(estimate: Estimate) -> str:
    if estimate.interval_method == "none":
        return f"{estimate.statistic}, no interval"
    if estimate.interval_method == "range":
        return f"{estimate.statistic} of {estimate.n}"
    return f"{estimate.statistic}, {shown_level()} {estimate.interval_method} interval"


def left_out(runs: pd.DataFrame) -> str:
    """Return a sentence that counts the runs that have not ended, which decisions leave out; empty if all have."""
    unended = runs[~runs["status"].isin(ENDED)]
    if unended.empty:
        return ""
    # A verdict on half of the runs must show that it is one.
    kinds = unended["status"].astype(str) + " of " + unended["optimizer"].astype(str)
    return f"Left out: {', '.join(f'{count} {kind}' for kind, count in kinds.value_counts(sort=False).items())}."


def sentences(*parts: str) -> str:
    """Join sentences to one text; empty ones are left out."""
    return " ".join(filter(None, parts))


def listed(by_part: Mapping[str, str]) -> str:
    """Return texts by part: ``bert: yes; resnet: no``; empty ones are left out, and so is the name of an only part."""
    return "; ".join(f"{name}: {text}" if name else text for name, text in by_part.items() if text)


def extent(values: Iterable[float]) -> str:
    """Return ``[smallest, largest]`` of some numbers."""
    sample = np.asarray(list(values), float)
    return f"[{number(float(sample.min()))}, {number(float(sample.max()))}]"
