"""Claims about the training time to an experiment's target: C06, C07 and C19.

A run that ended without reaching its target counts as infinitely long. Runs that are skipped, interrupted, failed or
missing are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workflow.bench.analysis.estimates import paired_ratio
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import budgets, to_target, too_short
from workflow.bench.analysis.training_time import Training, mean_seconds, time_ratio
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
from workflow.bench.results.sources import Sources, from_rows, from_runs


def target_of(runs: pd.DataFrame) -> str:
    """Return the target of an experiment's runs in words."""
    target = runs["target"].dropna().iloc[0]
    return f"a {target.split} {target.metric} of {target.limit:g}"


def times_of(experiment: str, *labels: str) -> Sources:
    """Return the rows of the probe ``step_time`` with the step times of some labels as a source."""
    return from_rows("probes/step_time.csv", experiment=experiment, optimizer=", ".join(labels))


def untimed(times: StepTimes, *trainings: Training) -> str:
    """Return a sentence on why the seconds of some trainings cannot be compared; empty if they can."""
    problem = times.problem(*(label for training in trainings for label in training.labels))
    return f"{capital(problem) if problem.startswith('the ') else problem}." if problem else ""


def ended_early(took: Mapping[str, Mapping[int, float]], spent: Mapping[str, Mapping[int, float]]) -> str:
    """Return sentences on the runs of two labels that were `too_short` to be compared; empty without any.

    Args:
        took: iterations or seconds to the target by label and seed.
        spent: iterations or seconds of the finished runs by label and seed.
    """
    one, other = took
    reports = []
    for label, rival in ((one, other), (other, one)):
        if seeds := too_short(took[label], took[rival], spent[label]):
            reports.append(f"{label} ended before {rival} reached the target, with seed {integer_ranges(seeds)}.")
    return " ".join(reports)


@dataclass(frozen=True)
class _Comparison:
    """One rival's training seconds to the target over MKOR's."""

    part: Part
    ended_early: str = ""


def _compare(
    times: StepTimes, runs: Mapping[str, pd.DataFrame], mkor: str, rival: str, condition: Condition
) -> _Comparison:
    name = f"{rival}/{mkor}"
    trainings = {label: Training.of(runs[label], to_target(runs[label], "steps")) for label in (mkor, rival)}
    ratio = time_ratio(times, trainings[rival], trainings[mkor])
    if ratio is None:
        return _Comparison(Part(name, "inconclusive", "neither reached the target"))
    took = {label: mean_seconds(times, training) for label, training in trainings.items()}
    spent = {label: mean_seconds(times, training.taking(budgets(runs[label]))) for label, training in trainings.items()}
    early = ended_early(took, spent)
    verdict = "inconclusive" if early else condition.judge(ratio)
    part = Part(name, verdict, number(ratio.value), interval_of(ratio), ratio)
    return _Comparison(part, early)


def _iterations(runs: Mapping[str, pd.DataFrame], mkor: str, rival: str) -> str:
    """Return the ratio of a rival's iterations to MKOR's in words; empty if neither reached the target."""
    ratio = paired_ratio(to_target(runs[rival], "steps"), to_target(runs[mkor], "steps"))
    return f"{rival}/{mkor} {with_interval(ratio)}" if ratio else ""


def _unreached(runs: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence that counts the runs that ended short of the target; empty without any."""
    counts = []
    for label, rows in runs.items():
        took = to_target(rows, "steps")
        if unreached := sum(map(math.isinf, took.values())):
            counts.append(f"{unreached} of {len(took)} of {label}")
    return f"Target not reached within the run's steps: {', '.join(counts)}." if counts else ""


def _outcome(comparisons: Sequence[_Comparison], condition: Condition) -> str:
    """Return the reason for the verdict: the only ratio relative to its threshold, or the verdict on each rival."""
    first = comparisons[0]
    if len(comparisons) == 1 and first.part.estimate is not None and not first.ended_early:
        return f"the ratio {first.part.name} {position(first.part.estimate, condition)}"
    return part_verdicts([comparison.part for comparison in comparisons])


def decide_speedup(
    experiment: str, runs: pd.DataFrame, times: StepTimes, conditions: Sequence[Condition], *, rivals: Sequence[str]
) -> Decision:
    """Decide C06, C07 or C19: each rival's training seconds to the target over MKOR's, paired by seed.

    Seconds are iterations times the time of a step. The claim needs every rival to be slower. The ratios of iterations
    are given in the details.
    """
    mkor = mkor_of(runs)
    if lacks := lacking(runs, experiment, (mkor, *rivals)):
        return not_tested(lacks)
    if runs["target"].dropna().empty:
        return not_tested(f"{experiment} sets no target.")
    by_label = {label: runs[runs["optimizer"] == label] for label in (mkor, *rivals)}
    used = runs[runs["optimizer"].isin(by_label)]
    iterations = "; ".join(filter(None, (_iterations(by_label, mkor, rival) for rival in rivals)))
    iterations = f"The ratios of iterations, above 1 if MKOR needs fewer: {iterations}." if iterations else ""
    data = from_runs(f"{experiment}.runs.csv", used)
    if problem := untimed(times, *(Training.of(rows, {}) for rows in by_label.values())):
        return not_tested(problem, iterations, data)
    comparisons = [_compare(times, by_label, mkor, rival, conditions[0]) for rival in rivals]
    ratios = [comparison.part.estimate for comparison in comparisons if comparison.part.estimate is not None]
    return decided(
        [comparison.part for comparison in comparisons],
        f"Training seconds to {target_of(used)}: {_outcome(comparisons, conditions[0])}.",
        sentences(
            f"{capital(statistics_used(ratios))}." if ratios else "",
            f"The verdict is based on time alone. {iterations}" if iterations else "",
            _unreached(by_label),
            *(comparison.ended_early for comparison in comparisons),
            left_out(used),
        ),
        seeds=integer_ranges(seed for rows in by_label.values() for seed in to_target(rows, "steps")),
        data=data + times_of(experiment, *by_label),
    )
