"""Steps and seconds to eight targets instead of one, and the ratios between optimizers over all of them.

One target set by hand decides too much: which optimizer is ahead often changes along a curve. The targets here are
spaced evenly from 30 % to 100 % of what the base optimizer gains in its budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import Estimate, crossed_ratio, mean_ratio, studies_of, study_means
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.training_time import Training
from workflow.bench.plan.targets import Crossing, Target
from workflow.bench.results.columns import ENDED

SHARES: Final = tuple(round(0.3 + 0.1 * index, 1) for index in range(8))
"""The shares of the base optimizer's gain that are targets."""


class NoSweepError(Exception):
    """Raised if an experiment's runs have no sweep of targets; the message is a predicate: ``sets no target``."""


Evaluations = Sequence[Mapping[Any, Any]]
"""One run's evaluations of the target's metric, in order."""

_Cost = Callable[[str, NDArray[np.float64], Sequence[int]], NDArray[np.float64]]
"""Returns what a label's steps ``[targets, seeds]`` cost, ``[targets, seeds, blocks]``."""


@dataclass(frozen=True)
class Course:
    """When the runs of one label reach the targets of a sweep."""

    runs: pd.DataFrame
    """Its rows of ``<experiment>.runs.csv`` that have ended."""
    crossings: Mapping[int, Sequence[float]]
    """By seed, the step at which the smoothed metric crosses each target; infinity if it never does."""

    def steps(self, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Return the steps to each target, ``[targets, seeds]``."""
        return np.array([self.crossings[seed] for seed in seeds], float).T

    def budgets(self, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Return the planned numbers of steps, ``[seeds]``."""
        return self.runs.set_index("seed")["steps"].loc[[*seeds]].to_numpy(float)


@dataclass(frozen=True)
class SweptRatio:
    """What one label takes to a target over what another takes: the geometric mean over targets and seeds."""

    estimate: Estimate | None
    """None if no pair of runs reached a target."""
    pairs: int
    """Pairs of runs at a target that count."""
    unreached: int
    """Those of them in which one of the two did not reach the target."""
    left_out: int
    """Further pairs, in which neither reached the target, or one met it before its first step."""
    seeds: tuple[int, ...]
    """The seeds that both labels have."""
    studies: int
    """Tuning studies to which the seeds belong."""

    @property
    def is_tied(self) -> bool:
        """Whether the ratio is 1 in every seed: the labels train alike, or no run was long enough to tell."""
        return self.estimate is not None and self.estimate.low == self.estimate.high == 1


@dataclass(frozen=True)
class TargetSweep:
    """The targets of one experiment on one workload, and when its labels reach them."""

    targets: tuple[Target, ...]
    courses: Mapping[str, Course]

    def describe(self) -> str:
        """Return the targets in words: ``8 targets of validation loss from 0.0632 down to 0.0204``."""
        first, last = self.targets[0], self.targets[-1]
        way = "down" if first.direction == "below" else "up"
        ends = f"from {first.limit:.3g} {way} to {last.limit:.3g}"
        return f"{len(self.targets)} targets of {first.split} {first.metric} {ends}"

    def training(self, label: str) -> Training:
        """Return what a label's steps cost, without numbers of steps."""
        return Training.of(self.courses[label].runs, {})

    def steps_ratio(self, above: str, below: str) -> SweptRatio:
        """Return the ratio of two labels' steps, paired by seed."""
        return self._ratio(above, below, lambda _label, steps, _seeds: steps[..., None])

    def time_ratio(self, times: StepTimes, above: str, below: str) -> SweptRatio:
        """Return the ratio of two labels' seconds, paired by seed and by block of rounds.

        Seconds are steps times the time of a step. The interval holds the variance over seeds and that of the times.
        """
        trainings = {label: self.training(label) for label in (above, below)}
        timed = tuple(dict.fromkeys(label for training in trainings.values() for label in training.labels))
        ms = dict(zip(timed, times.blocks(*timed), strict=True))
        return self._ratio(above, below, lambda label, steps, seeds: trainings[label].cost(steps, seeds, ms))

    def _ratio(self, above: str, below: str, cost: _Cost) -> SweptRatio:
        over, under = self.courses[above], self.courses[below]
        seeds = sorted(over.crossings.keys() & under.crossings.keys())
        steps = over.steps(seeds), under.steps(seeds)
        reached = np.isfinite(steps[0]), np.isfinite(steps[1])
        # If neither reached the target nothing is known of it; one met before the first step is the start's merit.
        counts = (reached[0] | reached[1]) & (steps[0] > 0) & (steps[1] > 0)
        logs = _log_ratios(
            cost(above, np.where(reached[0], steps[0], over.budgets(seeds)), seeds),
            cost(below, np.where(reached[1], steps[1], under.budgets(seeds)), seeds),
            reached,
        )
        # Targets of one seed are one run's curve: they are averaged, and only seeds or studies count as samples.
        kept = np.flatnonzero(counts.any(axis=0))
        means = np.nanmean(np.where(counts[..., None], logs, np.nan)[:, kept], axis=0)
        units, studies = study_means(means, [seeds[index] for index in kept], studies_of(under.runs, over.runs))
        # A single block is that of steps, which have no noise of their own.
        summary = (mean_ratio(units[:, 0]) if units.shape[1] == 1 else crossed_ratio(units)) if len(kept) else None
        return SweptRatio(
            summary,
            pairs=int(counts.sum()),
            unreached=int((counts & (reached[0] != reached[1])).sum()),
            left_out=int((~counts).sum()),
            seeds=tuple(seeds),
            studies=studies,
        )


def _log_ratios(
    over: NDArray[np.float64], under: NDArray[np.float64], reached: Sequence[NDArray[np.bool_]]
) -> NDArray[np.float64]:
    """Return the logarithms of ratios of costs; a run that did not reach the target enters with that of its budget.

    It would have taken longer, so its budget moves the ratio toward 1. A budget that is smaller than what the other run
    took tells nothing: the two count as equal.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(over) - np.log(under)
    logs = np.where(reached[0][..., None], logs, np.maximum(logs, 0))
    return np.where(reached[1][..., None], logs, np.minimum(logs, 0))


def target_sweep(runs: pd.DataFrame, metrics: pd.DataFrame, base: str) -> TargetSweep:
    """Return the sweep of the runs of one experiment on one workload, one a label and seed.

    The targets are spaced from the mean first evaluation of the base optimizer to the mean of its last ones, in the
    metric and the split of the runs' target.

    Args:
        runs: rows of ``<experiment>.runs.csv``.
        metrics: rows of ``<experiment>.csv``.
        base: the base optimizer's label.

    Raises:
        NoSweepError: the runs have no target, a label has several runs of a seed, or the base optimizer gains nothing.
    """
    ended = runs[runs["status"].isin(ENDED)]
    goals = runs["target"].dropna()
    if goals.empty:
        raise NoSweepError("sets no target")
    # Of a grid's several runs of a seed nobody could say which one to pair.
    if ended.duplicated(["optimizer", "seed"]).any():
        raise NoSweepError("has several runs of a label and seed")
    goal: Target = goals.iloc[0]
    of_goal = (metrics["split"] == goal.split) & (metrics["metric"] == goal.metric)
    chosen = metrics.loc[of_goal, ["run", "split", "metric", "step", "value", "train_seconds"]]
    evaluations: dict[str, Evaluations] = {str(run): rows.to_dict("records") for run, rows in chosen.groupby("run")}
    of_base = ended.loc[(ended["optimizer"] == base) & (ended["status"] == "finished"), "run"].astype(str)
    targets = _targets(goal, [evaluations.get(run, []) for run in of_base])
    if not targets:
        raise NoSweepError(f"has no finished run of {base} in which the {goal.split} {goal.metric} gets better")
    courses = {
        str(label): Course(
            of_label,
            {
                int(seed): [_step(target.crossing(evaluations.get(run, []))) for target in targets]
                for seed, run in zip(of_label["seed"], of_label["run"], strict=True)
            },
        )
        for label, of_label in ended.groupby("optimizer")
    }
    return TargetSweep(targets, courses)


def _targets(goal: Target, of_base: Iterable[Evaluations]) -> tuple[Target, ...]:
    """Return the targets between the mean first and the mean last evaluation; none if the metric did not get better."""
    ends = [(float(rows[0]["value"]), float(rows[-1]["value"])) for rows in of_base if rows]
    if not ends:
        return ()
    start, end = (fmean(values) for values in zip(*ends, strict=True))
    gain = end - start if goal.direction == "above" else start - end
    # A base that gets worse, or whose loss overflowed, has no gain to divide.
    if not 0 < gain < math.inf:
        return ()
    return tuple(replace(goal, limit=(1 - share) * start + share * end) for share in SHARES)


def _step(crossing: Crossing | None) -> float:
    return math.inf if crossing is None else crossing.step


def factors(sweep: TargetSweep) -> dict[str, NDArray[np.float64]]:
    """Return each label's steps over those of the best label, ``[targets, seeds]``, in the seeds that all labels have.

    The factor of a label that misses a target is infinite. It is NaN for all labels where none of them reaches the
    target, or one before its first step: that is no problem to compare them by.
    """
    seeds = sorted(set.intersection(*(set(course.crossings) for course in sweep.courses.values())))
    steps = {label: course.steps(seeds) for label, course in sweep.courses.items() if seeds}
    if not steps:
        return {}
    best = np.min([*steps.values()], axis=0)
    # A problem that nobody solves, or the start itself, would count for or against all labels alike.
    best = np.where(np.isfinite(best) & (best > 0), best, np.nan)
    return {label: of_label / best for label, of_label in steps.items()}


def profiles(sweep: TargetSweep) -> dict[str, NDArray[np.float64]]:
    """Return each label's `factors` over all problems ``[problems]``, smallest first: a performance profile."""
    return {label: np.sort(of_label[~np.isnan(of_label)]) for label, of_label in factors(sweep).items()}
