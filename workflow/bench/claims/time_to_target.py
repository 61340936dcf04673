"""Claims about the training time to an experiment's target: C06, C07 and C19.

A run that ended without reaching its target counts as infinitely long. Runs that are skipped, interrupted, failed or
missing are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, paired_ratio
from workflow.bench.analysis.time_to_target import Quantity, to_target, too_short
from workflow.bench.analysis.wording import capital, integer_ranges, number
from workflow.bench.claims.decision import (
    Decision,
    Part,
    decided,
    interval_of,
    lacking,
    left_out,
    mkor_of,
    not_tested,
    part_verdicts,
    position,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.sources import from_runs


def target_of(runs: pd.DataFrame) -> str:
    """Return the target of an experiment's runs in words."""
    target = runs["target"].dropna().iloc[0]
    return f"a {target.split} {target.metric} of {target.limit:g}"


def ended_early(runs: Mapping[str, pd.DataFrame], took: Mapping[str, Mapping[int, float]], quantity: Quantity) -> str:
    """Return sentences on the runs of two labels that were `too_short` to be compared; empty without any.

    Args:
        runs: rows of ``<experiment>.runs.csv`` by label.
        took: iterations or seconds to the target by label and seed.
        quantity: which of the two.
    """
    one, other = took
    reports = []
    for label, rival in ((one, other), (other, one)):
        if seeds := too_short(runs[label], took[label], took[rival], quantity):
            reports.append(f"{label} ended before {rival} reached the target, with seed {integer_ranges(seeds)}.")
    return " ".join(reports)


@dataclass(frozen=True)
class _Comparison:
    """One rival's training seconds and iterations to the target over MKOR's."""

    part: Part
    seconds: Estimate | None = None
    iterations: str = ""
    """The ratio of iterations, in words."""
    ended_early: str = ""


def _compare(runs: Mapping[str, pd.DataFrame], mkor: str, rival: str, condition: Condition) -> _Comparison:
    name = f"{rival}/{mkor}"
    pair = {label: runs[label] for label in (mkor, rival)}
    seconds = {label: to_target(rows, "seconds") for label, rows in pair.items()}
    steps = {label: to_target(rows, "steps") for label, rows in pair.items()}
    ratio, ratio_of_steps = paired_ratio(seconds[rival], seconds[mkor]), paired_ratio(steps[rival], steps[mkor])
    if ratio is None or ratio_of_steps is None:
        return _Comparison(Part(name, "inconclusive", "neither reached the target"))
    early = ended_early(pair, seconds, "seconds")
    verdict = "inconclusive" if early else condition.judge(ratio)
    part = Part(name, verdict, number(ratio.value), interval_of(ratio), ratio)
    return _Comparison(part, ratio, f"{name} {with_interval(ratio_of_steps)}", early)


def _unreached(runs: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence that counts the runs that ended short of the target; empty without any."""
    counts = []
    for label, rows in runs.items():
        took = to_target(rows, "seconds")
        if unreached := sum(map(math.isinf, took.values())):
            counts.append(f"{unreached} of {len(took)} of {label}")
    return f"Target not reached within the run's steps: {', '.join(counts)}." if counts else ""


def _outcome(comparisons: Sequence[_Comparison], condition: Condition) -> str:
    """Return the reason for the verdict: the only ratio relative to its threshold, or the verdict on each rival."""
    first = comparisons[0]
    if len(comparisons) == 1 and first.seconds is not None and not first.ended_early:
        return f"the ratio {first.part.name} {position(first.seconds, condition)}"
    return part_verdicts([comparison.part for comparison in comparisons])


def decide_speedup(
    experiment: str, runs: pd.DataFrame, conditions: Sequence[Condition], *, rivals: Sequence[str]
) -> Decision:
    """Decide C06, C07 or C19: each rival's training seconds to the target over MKOR's, paired by seed.

    The claim needs every rival to be slower. The ratios of iterations are given in the details.
    """
    mkor = mkor_of(runs)
    if lacks := lacking(runs, experiment, (mkor, *rivals)):
        return not_tested(lacks)
    if runs["target"].dropna().empty:
        return not_tested(f"{experiment} sets no target.")
    by_label = {label: runs[runs["optimizer"] == label] for label in (mkor, *rivals)}
    comparisons = [_compare(by_label, mkor, rival, conditions[0]) for rival in rivals]
    ratios = [comparison.seconds for comparison in comparisons if comparison.seconds is not None]
    iterations = "; ".join(comparison.iterations for comparison in comparisons if comparison.iterations)
    used = runs[runs["optimizer"].isin(by_label)]
    return decided(
        [comparison.part for comparison in comparisons],
        f"Training seconds to {target_of(used)}: {_outcome(comparisons, conditions[0])}.",
        sentences(
            f"{capital(statistics_used(ratios))}." if ratios else "",
            "The verdict is based on time alone. The same ratios of iterations, above 1 if MKOR needs fewer: "
            f"{iterations}."
            if iterations
            else "",
            _unreached(by_label),
            *(comparison.ended_early for comparison in comparisons),
            left_out(used),
        ),
        seeds=integer_ranges(seed for rows in by_label.values() for seed in to_target(rows, "seconds")),
        data=from_runs(f"{experiment}.runs.csv", used),
    )
