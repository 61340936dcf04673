"""A decision on a claim, and what the decisions share: parts, missing runs, and numbers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.wording import number
from workflow.bench.claims.verdicts import Condition, Verdict
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, Sources


@dataclass(frozen=True)
class Decision:
    """What the runs say of one claim, with the numbers and where they come from."""

    verdict: Verdict
    why: str
    """One sentence."""
    measured: str = ""
    interval: str = ""
    seeds: str = ""
    evidence: str = ""
    """What kind of evidence it is, where that is not the tier's."""
    data: Sources = NO_SOURCES
    details: str = ""
    """Further sentences: how the numbers were summarised, and what stands beside them."""


@dataclass(frozen=True)
class Part:
    """A claim at one of the places where it is judged: a workload, a rival, a contrast."""

    name: str
    verdict: Verdict
    measured: str
    interval: str = ""


def not_tested(why: str, details: str = "", data: Sources = NO_SOURCES) -> Decision:
    """The decision on a claim that the runs at hand cannot speak of; ``data``: where the details' numbers come from."""
    return Decision("not tested", why, details=details, data=data)


def decided(
    parts: Sequence[Part],
    combine: Callable[[Sequence[Verdict]], Verdict],
    why: str,
    details: str,
    *,
    seeds: str,
    data: Sources,
    evidence: str = "",
) -> Decision:
    """One decision of several parts, combined by `statistics.agreement` or `statistics.all_of`."""
    return Decision(
        combine([part.verdict for part in parts]),
        why,
        measured="; ".join(f"{part.name}: {part.measured}" for part in parts),
        interval="; ".join(f"{part.name}: {part.interval}" for part in parts if part.interval),
        seeds=seeds,
        evidence=evidence,
        data=data,
        details=details,
    )


def side(estimate: Estimate, condition: Condition) -> str:
    """Where an estimate lies beside its threshold, which is the reason of the verdict."""
    if not estimate.has_interval:
        return "has no interval, being one value" if estimate.n == 1 else "has no interval, some runs being censored"
    goal = f"{condition.comparison} {condition.threshold:g}"
    if estimate.method == "range":
        return f"is {'' if condition.holds(estimate.value) else 'not '}{goal}"
    match condition.judge(estimate):
        case "confirmed":
            return f"is {goal} in its whole interval"
        case "refuted":
            return f"is not {goal} anywhere in its interval"
    return f"has {condition.threshold:g} inside its interval"


def verdicts(parts: Iterable[Part]) -> str:
    """Every part's verdict in words."""
    return "; ".join(f"{part.name} {part.verdict}" for part in parts)


def span(estimate: Estimate) -> str:
    """``[low, high]``, or why there is none."""
    if not estimate.has_interval:
        return "none (one value)" if estimate.n == 1 else "none (censored runs)"
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def shown(estimate: Estimate) -> str:
    """A number with its interval."""
    return f"{number(estimate.value)} {span(estimate)}"


def how(estimates: Iterable[Estimate]) -> str:
    """How the estimates summarise and what their intervals are, once each."""
    return "; ".join(dict.fromkeys(_kind(estimate) for estimate in estimates))


def _kind(estimate: Estimate) -> str:
    if estimate.method == "none":
        return f"{estimate.statistic}, no interval"
    if estimate.method == "range":
        return f"{estimate.statistic} of {estimate.n}"
    return f"{estimate.statistic}, 95 % {estimate.method} interval"


def lacking(runs: pd.DataFrame, experiment: str, labels: Iterable[str]) -> str:
    """What ``<experiment>.runs.csv`` lacks to compare these labels, in words; empty where each has a run that ended."""
    if runs.empty:
        return f"{experiment} has no results."
    found = []
    for label in labels:
        own = runs[runs["optimizer"] == label]
        if own.empty:
            found.append(f"{experiment} has no run of {label}.")
        elif not own["status"].isin(ENDED).any():
            states = ", ".join(sorted(set(own["status"].astype(str))))
            reasons = "; ".join(sorted({str(reason).rstrip(".") for reason in own["reason"].dropna()}))
            found.append(f"No run of {label} in {experiment} has ended: {states}{f' ({reasons})' if reasons else ''}.")
    return " ".join(found)


def unended(runs: pd.DataFrame) -> str:
    """How many of the runs did not end, which a decision leaves out, in a sentence; empty where all did."""
    left = runs[~runs["status"].isin(ENDED)]
    if left.empty:
        return ""
    pairs = left["status"].astype(str) + " of " + left["optimizer"].astype(str)
    return f"Left out: {', '.join(f'{count} {what}' for what, count in pairs.value_counts(sort=False).items())}."


def sentences(*found: str) -> str:
    """Sentences as one text, the empty ones left out."""
    return " ".join(filter(None, found))


def capital(text: str) -> str:
    """Text with a capital letter."""
    return text[:1].upper() + text[1:]


def pooled(values: Iterable[float]) -> str:
    """``[smallest, largest]`` of numbers that are shown and not summarised."""
    sample = np.asarray(list(values), float)
    return f"[{number(float(sample.min()))}, {number(float(sample.max()))}]"
