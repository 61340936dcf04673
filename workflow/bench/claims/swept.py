"""Comparisons of two labels over the eight targets of a sweep, as parts of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import NoSweepError, SweptRatio, TargetSweep, target_sweep
from workflow.bench.analysis.training_time import Training
from workflow.bench.analysis.wording import capital
from workflow.bench.claims.decision import Part, lacking, position, with_interval
from workflow.bench.claims.verdicts import Condition, Verdict
from workflow.bench.results.sources import Sources, from_rows, from_runs
from workflow.bench.results.tables import Results

MOST_UNREACHED = 0.1
"""The largest share of pairs with a run that missed its target of which one can say that they do not differ.

Such a run counts as too short, which moves the ratio toward 1: never toward a difference, but toward none.
"""


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


def sweep_of(trained: Trained, base: str, labels: Sequence[str]) -> TargetSweep | str:
    """Return the sweep over an experiment's targets, or a sentence on why some labels cannot be compared by one."""
    if lacks := lacking(trained.runs, trained.name, dict.fromkeys((base, *labels))):
        return lacks
    try:
        return target_sweep(trained.runs, trained.metrics, base)
    except NoSweepError as problem:
        return f"{trained.name} {problem}."


def untimed(times: StepTimes, *trainings: Training) -> str:
    """Return a sentence on why the seconds of some trainings cannot be compared; empty if they can."""
    problem = times.problem(*(label for training in trainings for label in training.labels))
    return f"{capital(problem) if problem.startswith('the ') else problem}." if problem else ""


def times_of(experiment: str, *labels: str) -> Sources:
    """Return the rows of the probe ``step_time`` with the step times of some labels as a source."""
    return from_rows("probes/step_time.csv", experiment=experiment, optimizer=", ".join(labels))


def part_of(name: str, ratio: SweptRatio, condition: Condition) -> Part:
    """Return the part that a ratio over a sweep decides."""
    if ratio.estimate is None:
        return Part(name, "inconclusive", "no target reached")
    return replace(Part.judged(name, ratio.estimate, condition), verdict=_verdict(ratio, condition))


def _verdict(ratio: SweptRatio, condition: Condition) -> Verdict:
    assert ratio.estimate is not None
    if ratio.is_tied:
        return "inconclusive"
    verdict = condition.judge(ratio.estimate)
    is_censored = ratio.unreached > MOST_UNREACHED * ratio.pairs
    return "inconclusive" if verdict == "no difference" and is_censored else verdict


def reason(name: str, ratio: SweptRatio, condition: Condition) -> str:
    """Return a clause on why a ratio over a sweep gives its verdict."""
    if ratio.estimate is None:
        return f"of {name} neither reached a target"
    if ratio.is_tied:
        return f"{name} tie in every seed"
    return f"the ratio {name} {position(ratio.estimate, condition)}"


def counts(name: str, ratio: SweptRatio) -> str:
    """Return a sentence on the pairs of runs behind a ratio that are not two crossings; empty if all are."""
    remarks = []
    if ratio.unreached:
        remarks.append(f"one of the two runs missed the target in {ratio.unreached} and counts with its budget")
    if ratio.left_out:
        remarks.append(f"{ratio.left_out} left out, where neither reached the target or it was met at the start")
    return f"Of {ratio.pairs + ratio.left_out} pairs of {name}, {'; '.join(remarks)}." if remarks else ""


def over_studies(*ratios: SweptRatio) -> str:
    """Return a sentence on the tuning studies to which the seeds belong; empty without several."""
    studies = max(ratio.studies for ratio in ratios)
    return f"Intervals are those of the means of {studies} tuning studies." if studies > 1 else ""


def stated(name: str, ratio: SweptRatio) -> str:
    """Return a ratio with its interval: ``sgd/mkor 1.4 [1.2, 1.6]``; empty if no pair reached a target."""
    return f"{name} {with_interval(ratio.estimate)}" if ratio.estimate else ""
