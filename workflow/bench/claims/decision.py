"""A decision on a claim, and the phrases that the decisions share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import Estimate, shown_level
from workflow.bench.analysis.wording import number
from workflow.bench.claims.verdicts import Condition, Verdict, all_of
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, Sources


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
    """What the loss falls by, for a margin that is a share of it (`verdicts.Margin.around`)."""

    @classmethod
    def judged(cls, name: str, estimate: Estimate, condition: Condition, fall: float = 1.0) -> Part:
        """Return the part that an estimate decides."""
        verdict, measured = condition.judge(estimate, fall), number(estimate.value)
        return cls(name, verdict, measured, interval_of(estimate), estimate, condition, fall)


@dataclass(frozen=True)
class Decision:
    """The verdict on one claim, with its reason, its numbers and their sources."""

    verdict: Verdict
    why: str
    """The reason, in one sentence."""
    measured: str = ""
    interval: str = ""
    seeds: str = ""
    evidence: str = ""
    """The kind of evidence; empty for that of the tier."""
    data: Sources = NO_SOURCES
    details: str = ""
    """Further sentences: the statistics used, and numbers that do not enter the verdict."""
    parts: tuple[Part, ...] = ()
    """What the verdict rests on."""
    published_of: tuple[str, ...] | None = None
    """The parts whose quantity the paper's number states; None: all."""

    @property
    def with_intervals(self) -> str:
        """Every part's measured value with its interval: ``bert: 1.2 [1, 1.4]; resnet: 2``."""
        shown = {part.name: f"{part.measured} {part.interval}".strip() for part in self.parts}
        return "; ".join(f"{name}: {text}" if name else text for name, text in shown.items() if text)

    @property
    def estimates(self) -> Mapping[str, Estimate]:
        """The parts' estimates by name, without parts that have none."""
        return {part.name: part.estimate for part in self.parts if part.estimate is not None}


def not_tested(why: str, details: str = "", data: Sources = NO_SOURCES) -> Decision:
    """Return the decision on a claim that the runs cannot decide; ``data`` are the sources of the details."""
    return Decision("not tested", why, details=details, data=data)


def decided_alone(
    estimate: Estimate,
    condition: Condition,
    why: str,
    details: str,
    *,
    seeds: str,
    data: Sources,
    interval: str = "",
    verdict: Verdict | None = None,
    evidence: str = "",
) -> Decision:
    """Return the decision on a claim with a single estimate.

    interval: its text, if it is not the estimate's; verdict: if it is not what the estimate supports.
    """
    part = Part.judged("", estimate, condition)
    part = replace(part, verdict=verdict or part.verdict, interval=interval or part.interval)
    return Decision(
        part.verdict,
        why,
        measured=part.measured,
        interval=part.interval,
        seeds=seeds,
        evidence=evidence,
        data=data,
        details=details,
        parts=(part,),
    )


def decided(
    parts: Sequence[Part],
    why: str,
    details: str,
    *,
    seeds: str,
    data: Sources,
    evidence: str = "",
    published_of: tuple[str, ...] | None = None,
) -> Decision:
    """Return the decision on a claim that needs all of its parts."""
    return Decision(
        all_of([part.verdict for part in parts]),
        why,
        measured="; ".join(f"{part.name}: {part.measured}" for part in parts if part.measured),
        interval="; ".join(f"{part.name}: {part.interval}" for part in parts if part.interval),
        seeds=seeds,
        evidence=evidence,
        data=data,
        details=details,
        parts=tuple(parts),
        published_of=published_of,
    )


def with_details(decision: Decision, sentence: str, data: Sources = NO_SOURCES) -> Decision:
    """Return a decision with one more sentence of details and its sources; unchanged if the claim was not tested."""
    if decision.verdict == "not tested" or not sentence:
        return decision
    return replace(decision, details=sentences(decision.details, sentence), data=decision.data + data)


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
    goal = f"{condition.comparison} {condition.threshold:g}"
    if estimate.interval_method == "range":
        return f"is {'' if condition.holds(estimate.value) else 'not '}{goal}"
    match condition.judge(estimate):
        case "confirmed":
            return f"is {goal} in its whole interval"
        case "refuted":
            return f"is not {goal} anywhere in its interval"
        case "no difference":
            return f"differs from {condition.threshold:g} by no more than the margin"
    return f"has {condition.threshold:g} inside its interval"


def part_verdicts(parts: Iterable[Part]) -> str:
    """Return the verdict on every part: ``bert confirmed; resnet refuted``."""
    return "; ".join(f"{part.name} {part.verdict}" for part in parts)


def interval_of(estimate: Estimate) -> str:
    """Return ``[low, high]``, or the reason why the estimate has no interval."""
    if not estimate.has_interval:
        return "none (one value)" if estimate.n == 1 else "none (censored runs)"
    return f"[{number(estimate.low, infinity='infinite')}, {number(estimate.high, infinity='infinite')}]"


def with_interval(estimate: Estimate) -> str:
    """Return an estimate's value and interval."""
    return f"{number(estimate.value)} {interval_of(estimate)}"


def statistics_used(estimates: Iterable[Estimate]) -> str:
    """Return the statistics and kinds of interval of the estimates, each once."""
    return "; ".join(dict.fromkeys(_statistic(estimate) for estimate in estimates))


def _statistic(estimate: Estimate) -> str:
    if estimate.interval_method == "none":
        return f"{estimate.statistic}, no interval"
    if estimate.interval_method == "range":
        return f"{estimate.statistic} of {estimate.n}"
    return f"{estimate.statistic}, {shown_level()} {estimate.interval_method} interval"


def lacking(runs: pd.DataFrame, experiment: str, labels: Iterable[str]) -> str:
    """Return sentences on the labels without a run that has ended; empty if each label has one.

    Args:
        runs: rows of ``<experiment>.runs.csv``.
        experiment: the experiment's name.
        labels: the labels to be compared.
    """
    if runs.empty:
        return f"{experiment} has no results."
    reports = []
    for label in labels:
        of_label = runs[runs["optimizer"] == label]
        if of_label.empty:
            reports.append(f"{experiment} has no run of {label}.")
        elif not of_label["status"].isin(ENDED).any():
            statuses = ", ".join(sorted(set(of_label["status"].astype(str))))
            reasons = "; ".join(sorted({str(reason).rstrip(".") for reason in of_label["reason"].dropna()}))
            because = f" ({reasons})" if reasons else ""
            reports.append(f"No run of {label} in {experiment} has ended: {statuses}{because}.")
    return " ".join(reports)


def left_out(runs: pd.DataFrame) -> str:
    """Return a sentence that counts the runs that have not ended, which decisions leave out; empty if all have."""
    unended = runs[~runs["status"].isin(ENDED)]
    if unended.empty:
        return ""
    kinds = unended["status"].astype(str) + " of " + unended["optimizer"].astype(str)
    return f"Left out: {', '.join(f'{count} {kind}' for kind, count in kinds.value_counts(sort=False).items())}."


def sentences(*parts: str) -> str:
    """Join sentences to one text; empty ones are left out."""
    return " ".join(filter(None, parts))


def extent(values: Iterable[float]) -> str:
    """Return ``[smallest, largest]`` of some numbers."""
    sample = np.asarray(list(values), float)
    return f"[{number(float(sample.min()))}, {number(float(sample.max()))}]"
