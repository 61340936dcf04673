"""Iterations or seconds until runs reach their targets, with censored runs, and the ratios between optimizers.

One target set by hand decides too much: which optimizer is ahead often changes along a curve. So ratios are also taken
over a sweep of eight targets, spaced evenly from 30 % to 100 % of what the base optimizer gains in its budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import (
    Estimate,
    crossed_ratio,
    estimate,
    mean_ratio,
    paired_ratio,
    shared_seeds,
    studies_of,
    study_means,
)
from workflow.bench.analysis.step_times import StepTimes, Training, period_of
from workflow.bench.analysis.wording import number
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import ENDED

Quantity = Literal["steps", "seconds"]
"""The unit of a run's time to its target: iterations, or training seconds as the run itself measured them."""
_COLUMN: Final[Mapping[Quantity, str]] = {"steps": "crossing_step", "seconds": "crossing_seconds"}


@dataclass(frozen=True)
class Configuration:
    """The columns of `RUN_COLUMNS` in which runs with a target agree if they differ in their seed alone."""

    experiment: str
    workload: str
    dataset: str
    target: Target
    optimizer: str
    steps: int
    hyperparameters: Mapping[str, Any] = field(hash=False)  # a dict has no hash; equality compares it all the same

    @property
    def period(self) -> float:
        """Steps between refreshes; NaN for a method without a period."""
        return period_of(self.hyperparameters)


def rate_of(configuration: Configuration) -> str:
    """Return a configuration's learning rate, or those of all studies that tuned it, for a table."""
    rate = configuration.hyperparameters.get("lr", math.nan)
    return ", ".join(map(number, rate)) if isinstance(rate, tuple) else number(rate)


def by_configuration(runs: pd.DataFrame) -> dict[Configuration, pd.DataFrame]:
    """Group rows of `RUN_COLUMNS` by their configuration, in the order in which the configurations first appear.

    The seeds of a label that tuning studies gave different values are one configuration, whose hyperparameters list the
    values, one for each study. Runs that lack a column of `Configuration`, such as the target, are left out. The index
    of ``runs`` must be unique.
    """
    columns = [column.name for column in fields(Configuration)]
    places: dict[Configuration, list[object]] = {}
    for place, *values in _over_studies(runs)[columns].dropna().itertuples(name=None):
        # pandas reads whole numbers of a column with gaps as floats.
        configuration = Configuration(*values)
        places.setdefault(replace(configuration, steps=int(configuration.steps)), []).append(place)
    return {configuration: runs.loc[index] for configuration, index in places.items()}


def _over_studies(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs whose hyperparameters list the values of all studies where tuning chose them."""
    same = [column.name for column in fields(Configuration) if column.name not in ("hyperparameters", "target")]
    shown: dict[object, Any] = dict(runs["hyperparameters"].items())
    for _, rows in runs.dropna(subset=["study"]).groupby(same, sort=False):
        studies = [[*of_study] for _, of_study in rows.groupby("study")["hyperparameters"]]
        tuned = {name: values for name in studies[0][0] if (values := _by_study(studies, name))}
        for place, given in rows["hyperparameters"].items():
            shown[place] = {**given, **tuned}
    return runs.assign(hyperparameters=[shown[place] for place in runs.index])


def _by_study(studies: Sequence[Sequence[Mapping[str, Any]]], name: str) -> tuple[Any, ...] | None:
    """Return a hyperparameter's value in each study; None if it is the same in all, or varies within one."""
    # What varies within a study is an experiment's own variable, such as a rate of its grid.
    values = [of_study[0].get(name) for of_study in studies]
    differs = any(value != values[0] for value in values)
    fixed = all(given.get(name) == value for value, of_study in zip(values, studies, strict=True) for given in of_study)
    return tuple(values) if differs and fixed else None


def of_any_length(runs: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return an experiment's runs with the method and hyperparameters of a label, whatever their number of steps.

    An experiment may give one optimizer several budgets of steps, each under its own label.
    """
    of_label = runs[runs["optimizer"] == label]
    listed = list(of_label["hyperparameters"])
    # Mappings have no hash, so that `isin` cannot compare them.
    is_same = [hyperparameters in listed for hyperparameters in runs["hyperparameters"]]
    return runs[runs["method"].isin(of_label["method"]) & pd.Series(is_same, runs.index, bool)]


def censored(value: float | None) -> float:
    """Return a time to target, with infinity for one that was not reached (None or NaN)."""
    return math.inf if value is None or math.isnan(value) else float(value)


def to_target(runs: pd.DataFrame, quantity: Quantity) -> dict[int, float]:
    """Return one label's iterations or seconds to the target by seed, from rows of ``<experiment>.runs.csv``.

    They are those at which its smoothed metric crosses the target (`Target.crossing`), between two evaluations.

    A run that finished or broke down without reaching the target is censored, which counts as infinity: it would have
    taken longer than its budget. Skipped, interrupted and missing runs are left out.
    """
    ended = runs[runs["status"].isin(ENDED)]
    return {int(seed): censored(took) for seed, took in zip(ended["seed"], ended[_COLUMN[quantity]], strict=True)}


def budgets(runs: pd.DataFrame, quantity: Quantity = "steps") -> dict[int, float]:
    """Return the steps or seconds of one label's finished runs by seed; of several budgets the longest counts."""
    finished = runs[runs["status"] == "finished"]
    longest = finished.groupby("seed")["steps_done" if quantity == "steps" else "train_seconds"].max()
    return {int(str(seed)): float(steps) for seed, steps in longest.items()}


def too_short(took: Mapping[int, float], other: Mapping[int, float], spent: Mapping[int, float]) -> list[int]:
    """Return the seeds in which a label's run finished short of its target before another label reached it.

    With more steps such a run might have reached the target first, so it is unknown which of the two is faster. A run
    that diverged would not have.

    Args:
        took: the label's iterations or seconds to the target, infinity where it was not reached.
        other: those of the other label.
        spent: the iterations or seconds of the label's finished runs (`budgets`).
    """
    # If the other never arrived either, both are censored, and nothing is lost by the short run.
    unreached = (seed for seed in took.keys() & other.keys() if math.isinf(took[seed]) and seed in spent)
    return sorted(seed for seed in unreached if spent[seed] < other[seed] < math.inf)


@dataclass(frozen=True)
class Reaching:
    """The iterations or seconds that one label's runs take to a target, and how many of them reach it."""

    took: Estimate
    """Iterations or seconds. Censored runs count as infinity, so the median is infinite if most runs are censored."""
    reached: int
    """The number of runs that reached the target."""

    @property
    def censored(self) -> int:
        """The number of runs that ended without reaching the target."""
        return self.took.n - self.reached


def reaching(took: Mapping[int, float]) -> Reaching | None:
    """Summarize the times of `to_target`; None if there are none."""
    # No run has ended: that is no censored time, and must not look like one.
    if not took:
        return None
    return Reaching(estimate(list(took.values())), sum(map(math.isfinite, took.values())))


@dataclass(frozen=True)
class Speedup:
    """A reference's time to the target over a contender's, over the seeds that both have."""

    ratio: Estimate | None
    """Above 1 if the contender was faster. A pair with one censored run is infinite or 0. None without a pair."""
    undecided: int
    """Seeds, left out of the ratio, in which neither run reached the target or both did before the first step."""


def speedup(reference: Mapping[int, float], contender: Mapping[int, float]) -> Speedup:
    """Compare the times of `to_target` of two labels, paired by seed.

    The caller leaves out labels with runs that are `too_short`, because their infinite times are no evidence.
    """
    a, b = shared_seeds(reference, contender)
    is_undecided = (a == b) & (np.isinf(a) | (a == 0))
    return Speedup(paired_ratio(reference, contender), int(is_undecided.sum()))


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
        ms = times.by_label(*(label for training in trainings.values() for label in training.labels))
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
                int(seed): [
                    crossing.step if (crossing := target.crossing(evaluations.get(run, []))) else math.inf
                    for target in targets
                ]
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
