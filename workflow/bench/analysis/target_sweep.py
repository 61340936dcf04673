"""When optimizers reach what their base optimizer reaches after shares of its own steps, and the ratios between them.

One target set by hand decides too much: which optimizer is ahead often changes along a curve. So eight are taken, at
what the base reaches after 30, 40, ... 100 % of its steps. Early ones may tell nothing of training: a target that is no
better than the best constant prediction, or that the base crosses before its fourth evaluation, is dropped, and said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import Estimate, crossed_ratio, mean_ratio, studies_of, study_means
from workflow.bench.analysis.step_times import StepTimes, Training
from workflow.bench.analysis.wording import in_words
from workflow.bench.plan.targets import Target, monotone
from workflow.bench.results.columns import ENDED

SHARES: Final = tuple(round(0.3 + 0.1 * index, 1) for index in range(8))
"""The shares of the base optimizer's steps after which what it has reached is a target."""
FINAL: Final = 0.9
"""The share whose target stands for the base's final quality. What the base reaches with its last step, as a mean over
seeds, about half of its own runs would miss."""
EARLY: Final = 3
"""Evaluations of the base, without that of the untrained model, after which the first target is crossed."""


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
    """Its rows of ``<experiment>.runs.csv`` that have ended, one a seed."""
    crossings: Mapping[int, Sequence[float]]
    """By seed, the step at which the smoothed metric crosses each target; infinity if it never does."""

    def steps(self, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Return the steps to each target, ``[targets, seeds]``."""
        return np.array([self.crossings[seed] for seed in seeds], float).T

    def budgets(self, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Return the planned numbers of steps, ``[seeds]``."""
        return self.runs.set_index("seed")["steps"].loc[[*seeds]].to_numpy(float)

    def diverged(self, seeds: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether the runs diverged, ``[seeds]``."""
        return (self.runs.set_index("seed")["status"].loc[[*seeds]] == "diverged").to_numpy(bool)


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

    base: str
    """The label whose own steps set the targets."""
    targets: Mapping[float, Target]
    """By the share of the base's steps after which it reaches them, in rising order."""
    courses: Mapping[str, Course]
    dropped: Mapping[float, str]
    """By share, why a target was dropped: a predicate."""

    @property
    def goal(self) -> Target:
        """A target of the sweep, for its split, metric and direction."""
        return next(iter(self.targets.values()))

    def describe(self) -> str:
        """Return the targets in words: ``8 targets of validation loss from 0.0632 down to 0.0204``."""
        first, *_, last = [*self.targets.values()] * 2
        way = "down" if first.direction == "below" else "up"
        number = f"{len(self.targets)} targets" if len(self.targets) > 1 else "one target"
        ends = f"from {first.limit:.3g} {way} to {last.limit:.3g}" if len(self.targets) > 1 else f"at {first.limit:.3g}"
        return f"{number} of {first.split} {first.metric} {ends}"

    def remarks(self) -> str:
        """Return a sentence on the targets that were dropped; empty if none was and a trivial predictor is declared."""
        by_reason: dict[str, list[float]] = {}
        for share, reason in self.dropped.items():
            by_reason.setdefault(reason, []).append(share)
        clauses = [f"{percent(shares)} of {self.base}'s steps, {reason}" for reason, shares in by_reason.items()]
        dropped = f"Dropped are the targets at {'; and at '.join(clauses)}." if clauses else ""
        untried = "" if self.goal.trivial is not None else "No trivial predictor is declared for these targets."
        return " ".join(filter(None, (dropped, untried)))

    def at(self, *shares: float) -> TargetSweep:
        """Return the sweep with the targets at some shares of the base's steps alone.

        Raises:
            NoSweepError: one of them was dropped.
        """
        if gone := [share for share in shares if share not in self.targets]:
            raise NoSweepError(f"has no target at {percent(gone)} of {self.base}'s steps: {self.dropped[gone[0]]}")
        return self._keep([index for index, share in enumerate(self.targets) if share in shares])

    def last(self, number: int = 1) -> TargetSweep:
        """Return the sweep with its last targets alone, at most so many."""
        return self._keep(range(len(self.targets))[-number:])

    def _keep(self, places: Sequence[int]) -> TargetSweep:
        shares = [*self.targets]
        courses = {
            label: replace(
                course, crossings={seed: [steps[i] for i in places] for seed, steps in course.crossings.items()}
            )
            for label, course in self.courses.items()
        }
        return replace(self, targets={shares[i]: self.targets[shares[i]] for i in places}, courses=courses)

    def training(self, label: str) -> Training:
        """Return what a label's steps cost, without numbers of steps."""
        return Training.of(self.courses[label].runs, {})

    def steps_ratio(self, above: str, below: str) -> SweptRatio:
        """Return the ratio of two labels' steps, paired by seed."""
        return self._ratio(above, below, lambda _label, steps, _seeds: steps[..., None])

    def ratio(self, above: str, below: str, times: StepTimes | None = None) -> SweptRatio:
        """Return the ratio of two labels' seconds or, without times, steps."""
        return self.time_ratio(times, above, below) if times else self.steps_ratio(above, below)

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
        if not seeds:
            return SweptRatio(None, 0, 0, 0, (), 0)
        steps = over.steps(seeds), under.steps(seeds)
        reached = np.isfinite(steps[0]), np.isfinite(steps[1])
        # If neither reached the target nothing is known of it; one met before the first step is the start's merit.
        counts = (reached[0] | reached[1]) & (steps[0] > 0) & (steps[1] > 0)
        whole = [
            cost(label, np.broadcast_to(self.courses[label].budgets(seeds), counts.shape), seeds)
            for label in (above, below)
        ]
        took = [
            np.where(met[..., None], cost(label, np.where(met, taken, 0.0), seeds), budget)
            for label, taken, met, budget in zip((above, below), steps, reached, whole, strict=True)
        ]
        # No budget would have sufficed to a run that diverged: it counts as the worst run that there could be.
        took = [
            np.where(course.diverged(seeds)[:, None], np.maximum(*whole), one)
            for one, course in zip(took, (over, under), strict=True)
        ]
        logs = _log_ratios(took[0], took[1], reached)
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


def common_base(runs: pd.DataFrame) -> str | None:
    """Return the label of the base optimizer that the most labels wrap; None without one that has runs."""
    wrapped = runs.drop_duplicates("optimizer")["hyperparameters"].map(lambda given: given.get("base"))
    for name, _ in Counter(wrapped.dropna()).most_common():
        if name in set(runs["optimizer"]):
            return str(name)
    return None


def percent(shares: Iterable[float]) -> str:
    """Return shares in words: ``30, 40 and 50 %``."""
    return f"{in_words(f'{100 * share:.0f}' for share in shares)} %"


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

    Args:
        runs: rows of ``<experiment>.runs.csv``.
        metrics: rows of ``<experiment>.csv``.
        base: the base optimizer's label, whose finished runs set the targets, in the metric of the runs' target.

    Raises:
        NoSweepError: the runs have no target, a label has several runs of a seed, or no target of the base is kept.
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
    return sweep_of_evaluations(goal, ended, evaluations, base, SHARES)


def sweep_of_evaluations(
    goal: Target, runs: pd.DataFrame, evaluations: Mapping[str, Evaluations], base: str, shares: Sequence[float]
) -> TargetSweep:
    """Return the sweep at some shares of the base's steps.

    Args:
        goal: the split, metric, direction and trivial predictor of the targets.
        runs: rows that have ended, with a label, a seed, a status and the id of a run; one a label and seed.
        evaluations: those of ``goal``'s metric by run.
        base: the label that sets the targets.
        shares: of its steps.

    Raises:
        NoSweepError: no target is kept.
    """
    of_base = runs.loc[(runs["optimizer"] == base) & (runs["status"] == "finished"), "run"].astype(str)
    curve = _mean_curve(goal, [evaluations.get(run, []) for run in of_base])
    if not curve:
        raise NoSweepError(f"has no finished run of {base} with a {goal.split} {goal.metric}")
    targets, dropped = _targets(goal, curve, shares)
    if not targets:
        reasons = "; ".join(dict.fromkeys(dropped.values()))
        raise NoSweepError(f"has no target that tells of training: what {base} reaches is {reasons}")
    courses = {
        str(label): Course(
            of_label,
            {
                int(seed): _crossings(targets.values(), evaluations.get(run, []), status)
                for seed, run, status in of_label[["seed", "run", "status"]].itertuples(index=False)
            },
        )
        for label, of_label in runs.groupby("optimizer")
    }
    return TargetSweep(base, targets, courses, dropped)


def _crossings(targets: Iterable[Target], of_run: Evaluations, status: str) -> list[float]:
    # What a run had reached before it diverged it did not keep.
    found = [None if status == "diverged" else target.crossing(of_run) for target in targets]
    return [crossing.step if crossing else math.inf for crossing in found]


def _mean_curve(goal: Target, runs: Iterable[Evaluations]) -> list[dict[str, Any]]:
    """Return the evaluations of the mean of some runs' smoothed curves; none without a run that stayed finite."""
    curves = []
    for rows in runs:
        values = [float(row["value"]) for row in rows]
        if values and all(map(math.isfinite, values)):
            curves.append(([float(row["step"]) for row in rows], monotone(values, rising=goal.direction == "above")))
    if not curves:
        return []
    end = min(steps[-1] for steps, _ in curves)
    grid = sorted({step for steps, _ in curves for step in steps if step <= end})
    mean = np.mean([np.interp(grid, *curve) for curve in curves], axis=0)
    about = {"split": goal.split, "metric": goal.metric, "train_seconds": 0.0}
    return [about | {"step": step, "value": float(value)} for step, value in zip(grid, mean, strict=True)]


def _targets(
    goal: Target, curve: Sequence[Mapping[str, Any]], shares: Sequence[float]
) -> tuple[dict[float, Target], dict[float, str]]:
    """Return by share of the base's steps the targets that tell of training, and why the others were dropped."""
    steps, values = ([float(row[name]) for row in curve] for name in ("step", "value"))
    trained = [step for step in steps if step > 0]
    first = trained[EARLY - 1] if len(trained) > EARLY else math.inf
    targets, dropped = {}, {}
    for share in shares:
        value = float(np.interp(share * steps[-1], steps, values))
        # Rounding of a mean of equal values must not put a target out of reach.
        target = replace(goal, limit=value + (1e-12 if goal.direction == "below" else -1e-12) * abs(value))
        crossing = target.crossing(curve)
        if not target.beats_trivial:
            dropped[share] = f"no better than the trivial predictor's {goal.trivial:g}"
        # A curve that is flat at a share crossed its value earlier. Rounding must not decide at the evaluation itself.
        elif crossing is None or crossing.step <= first * (1 + 1e-9):
            dropped[share] = f"crossed no later than at its evaluation {EARLY}"
        else:
            targets[share] = target
    return targets, dropped


def common_seeds(sweep: TargetSweep) -> list[int]:
    """Return the seeds that all labels have, in rising order."""
    return sorted(set.intersection(*(set(course.crossings) for course in sweep.courses.values())))


def factors(sweep: TargetSweep) -> dict[str, NDArray[np.float64]]:
    """Return each label's steps over those of the best label, ``[targets, seeds]``, in the seeds that all labels have.

    The factor of a label that misses a target is infinite. It is NaN for all labels where none of them reaches the
    target, or one before its first step: that is no problem to compare them by.
    """
    seeds = common_seeds(sweep)
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
