"""The field tier: every optimizer against its base, and performance profiles over workloads, targets and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import (
    Estimate,
    current_level,
    mean_ratio,
    over_studies,
    paired_difference,
    studies_of,
)
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.study_ratios import log_ratios, units_of
from workflow.bench.analysis.target_sweep import (
    SHARES,
    NoSweepError,
    SweptRatio,
    TargetSweep,
    common_base,
    common_seeds,
    factors,
    target_sweep,
)
from workflow.bench.analysis.time_to_target import to_target
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import NoDataError, Results

NO_CLOCK: Final = ("thermo_kfac",)
"""Methods that simulate a device, whose seconds are no evidence."""
CONTROLS: Final = {"kaisa_again": "kaisa", "dp_kfac": "kaisa"}
"""Labels that on one process follow the rule of another one. ``kaisa_again`` differs by the chance of tuning alone;
``dp_kfac`` has factors of another size, and so another space of dampings."""
DRAWS: Final = 400
"""Draws of a bootstrap."""


@dataclass(frozen=True)
class Contest:
    """One experiment of the field: its runs, their evaluations, and the sweep over targets."""

    experiment: str
    runs: pd.DataFrame
    metrics: pd.DataFrame
    base: str
    """The label of the base optimizer that most methods wrap, to which those without one are compared."""
    sweep: TargetSweep

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the runs."""
        return tuple(dict.fromkeys(self.runs["optimizer"].astype(str)))

    def base_of(self, label: str) -> str:
        """Return the label that another one is compared to: its base optimizer, or the experiment's."""
        firsts = self.runs.drop_duplicates("optimizer").set_index("optimizer")
        hyperparameters: dict[Any, Mapping[str, Any]] = firsts["hyperparameters"].to_dict()
        given = hyperparameters[label]
        bases = firsts.index[firsts["method"] == given.get("base")].astype(str)
        # Two labels of one base differ in what was varied: the one that shares more values is what was wrapped.
        alike = {name: sum(given.get(key) == value for key, value in hyperparameters[name].items()) for name in bases}
        return max(alike, key=lambda name: alike[name], default=self.base)

    def last(self, label: str) -> dict[int, float]:
        """Return a label's last value of the target's metric by seed; infinitely bad for a run that did not finish."""
        goal = self.sweep.goal
        worst = math.inf if goal.direction == "below" else -math.inf
        chosen = self.metrics[(self.metrics["split"] == goal.split) & (self.metrics["metric"] == goal.metric)]
        values = chosen.sort_values("step").groupby("run")["value"].last()
        return {
            int(row["seed"]): float(values[row["run"]]) if row["status"] == "finished" else worst
            for row in self._of(label).to_dict("records")
        }

    def reached(self, label: str) -> tuple[int, int]:
        """Return how many of a label's runs reached the experiment's target, and how many there are."""
        steps = to_target(self._of(label), "steps").values()
        return sum(map(math.isfinite, steps)), len(steps)

    def steps(self, label: str, last: int = len(SHARES)) -> SweptRatio:
        """Return the steps of a label to all targets, or to the last ones, over those of its base."""
        return self.sweep.last(last).steps_ratio(label, self.base_of(label))

    def over_control(self, label: str) -> Estimate | None:
        """Return the steps of a label to all targets over those of its control; None if they wrap different bases."""
        control = CONTROLS.get(label)
        if control not in self.labels or label not in self.labels:
            return None
        # DP-KFAC names no base: it steps with SGD.
        bases = {self._of(one)["hyperparameters"].iloc[0].get("base", "sgd") for one in (label, control)}
        if len(bases) > 1:
            return None
        return self.sweep.steps_ratio(label, control).estimate

    def time(self, label: str, times: StepTimes, last: int = len(SHARES)) -> SweptRatio | str:
        """Return the seconds of a label to all targets, or to the last ones, over its base's; or why there are none."""
        # A simulated device's seconds are those of the simulation.
        if self._of(label)["method"].iloc[0] in NO_CLOCK:
            return "simulated"
        base = self.base_of(label)
        trainings = [self.sweep.training(one) for one in (label, base)]
        problem = times.problem(*(timed for training in trainings for timed in training.labels))
        return problem or self.sweep.last(last).time_ratio(times, label, base)

    def loss_difference(self, label: str) -> Estimate | None:
        """Return a label's last value of the metric minus that of its base, paired by seed.

        That of a run that did not finish, beside one that did, is infinite.
        """
        return paired_difference(self.last(label), self.last(self.base_of(label)), studies_of(self._of(label)))

    def end(self, label: str) -> Estimate | None:
        """Return a label's last value of the metric, infinitely bad in runs that did not finish."""
        return over_studies(self.last(label), studies_of(self._of(label)))

    def _of(self, label: str) -> pd.DataFrame:
        return self.runs[self.runs["optimizer"] == label]


def contests(results: Results) -> list[Contest]:
    """Return the experiments of the field that have runs to compare.

    Raises:
        NoDataError: there is none.
    """
    found = []
    for name in FIELD:
        runs = results.runs(name)
        runs = runs[runs["status"].isin(ENDED)]
        if (base := common_base(runs)) is None:
            continue
        metrics = results.metrics(name)
        with suppress(NoSweepError):  # a base that gains nothing makes no targets to compare others at
            found.append(Contest(name, runs, metrics, base, target_sweep(runs, metrics, base)))
    if not found:
        raise NoDataError(f"no experiment of the field in {results.root} has runs: run make field first.")
    return found


def pooled_ratio(chosen: Sequence[Contest], label: str, below: str | None = None) -> Estimate | None:
    """Return a label's iterations over those of another one, by default each contest's base: the mean over contests.

    Each contest counts as much, and the geometric mean over them of each tuning study is one unit of the interval, or
    that of each seed if a contest has one study. There is none if the contests differ in them. None without a ratio in
    one of the contests.
    """
    logs = [log_ratios(contest.sweep, label, below or contest.base) for contest in chosen]
    if not all(logs):
        return None
    if any(of_contest.keys() != logs[0].keys() for of_contest in logs):
        return mean_ratio([fmean(fmean(of_contest.values()) for of_contest in logs)])
    return mean_ratio([fmean(of_contest[unit] for of_contest in logs) for unit in logs[0]])


class Profile(NamedTuple):
    """The share of problems that a label solves within a factor of the best one's steps; by factor."""

    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def pooled_profiles(chosen: Sequence[Contest], grid: NDArray[np.float64]) -> dict[str, Profile]:
    """Return the profiles, over a grid of factors, of the labels that all of some contests have.

    A contest counts as much as any other, however many problems it has. The interval is that of a hierarchical
    bootstrap: contests are drawn with replacement, and of each of them tuning studies, or seeds if there is one study.
    """
    # A label that one workload lacks would be judged on easier problems than the others.
    by_contest = [factors(contest.sweep) for contest in chosen]
    shared = [label for label in by_contest[0] if all(label in one for one in by_contest)]
    # A fixed seed: the same results give the same picture, byte for byte.
    random = np.random.default_rng(0)
    units = [_units(contest.sweep) for contest in chosen]

    def drawn(number: int) -> NDArray[np.int64]:
        return random.integers(number, size=number)

    draws = [
        [
            (which, np.concatenate([units[which][one] for one in drawn(len(units[which]))]))
            for which in drawn(len(units))
        ]
        for _ in range(DRAWS)
    ]
    return {label: _profile([one[label] for one in by_contest], draws, grid) for label in shared}


def _units(sweep: TargetSweep) -> list[NDArray[np.int64]]:
    """Return the places of the seeds that vary together, among those that all labels have: a study's, or one."""
    seeds = common_seeds(sweep)
    units = units_of(*(course.runs for course in sweep.courses.values())).values()
    return [np.flatnonzero(np.isin(seeds, [*unit])) for unit in units]


def _profile(
    of_contests: Sequence[NDArray[np.float64]],
    draws: Sequence[Sequence[tuple[int, NDArray[np.int64]]]],
    grid: NDArray[np.float64],
) -> Profile:
    # Solved problems and problems, [seeds, grid] and [seeds], of each contest.
    solved = [(one[:, :, None] <= grid).sum(axis=0) for one in of_contests]
    number = [(~np.isnan(one)).sum(axis=0) for one in of_contests]
    # Each contest's share first, then their mean: one with more seeds must not count for more.
    share = np.mean([s.sum(0) / max(n.sum(), 1) for s, n in zip(solved, number, strict=True)], axis=0)
    drawn = [
        np.mean([solved[which][of].sum(0) / max(number[which][of].sum(), 1) for which, of in draw], axis=0)
        for draw in draws
    ]
    level = current_level()
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Profile(share, low, high)
