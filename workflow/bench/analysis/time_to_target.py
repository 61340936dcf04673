"""Steps or seconds until a run reaches its target, censored runs included, and the ratios between optimizers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import Estimate, estimate, paired_ratio, shared_seeds
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import ENDED


@dataclass(frozen=True)
class Setting:
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
        period = self.hyperparameters.get("inverse_update_period", self.hyperparameters.get("update_period"))
        return math.nan if period is None else float(period)


def by_setting(runs: pd.DataFrame) -> dict[Setting, pd.DataFrame]:
    """Group rows of `RUN_COLUMNS` by their setting, in the order in which the settings first appear.

    Runs that lack a column of `Setting`, such as the target, are left out. The index of ``runs`` must be unique.
    """
    columns = [column.name for column in fields(Setting)]
    places: dict[Setting, list[object]] = {}
    for place, *values in runs[columns].dropna().itertuples(name=None):
        setting = Setting(*values)
        places.setdefault(replace(setting, steps=int(setting.steps)), []).append(place)
    return {setting: runs.loc[index] for setting, index in places.items()}


def of_any_length(runs: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return an experiment's runs with the method and hyperparameters of a label, whatever their number of steps.

    An experiment may give one optimizer several budgets of steps, each under a label of its own.
    """
    of_label = runs[runs["optimizer"] == label]
    settings = list(of_label["hyperparameters"])
    is_same = [hyperparameters in settings for hyperparameters in runs["hyperparameters"]]
    return runs[runs["method"].isin(of_label["method"]) & pd.Series(is_same, runs.index, bool)]


def censored(value: float | None) -> float:
    """A time to target with the unreached (None or NaN) as infinity, as the ratios here expect it."""
    return math.inf if value is None or math.isnan(value) else float(value)


def to_target(runs: pd.DataFrame, quantity: Literal["steps", "seconds"]) -> dict[int, float]:
    """What one label's runs took to their target, by seed, from rows of ``<experiment>.runs.csv``.

    Iterations or training seconds.  A run that ended, well or badly, without reaching the target is infinite: it
    would take longer than its budget.  Skipped, interrupted and missing runs are left out.
    """
    ended = runs[runs["status"].isin(ENDED)]
    return {int(seed): censored(took) for seed, took in zip(ended["seed"], ended[f"{quantity}_to_target"], strict=True)}


def too_short(
    runs: pd.DataFrame, took: Mapping[int, float], other: Mapping[int, float], quantity: Literal["steps", "seconds"]
) -> list[int]:
    """Seeds on which one label's run finished short of its target, and sooner than another label reached it.

    Such a run might have got there first had it gone on: nobody knows which of the two is faster.  One that diverged
    would not have.

    Args:
        runs: the label's rows of ``<experiment>.runs.csv``; of several budgets the longest counts.
        took: what `to_target` gives for the label.
        other: the same of the other label.
        quantity: iterations or training seconds.
    """
    finished = runs[runs["status"] == "finished"]
    spent = finished.groupby("seed")["steps_done" if quantity == "steps" else "train_seconds"].max()
    unreached = (seed for seed in took.keys() & other.keys() if math.isinf(took[seed]) and seed in spent.index)
    return sorted(seed for seed in unreached if spent[seed] < other[seed] < math.inf)


@dataclass(frozen=True)
class Reaching:
    """How one label's runs reach a target: what they take, and how many of them get there."""

    took: Estimate
    """The unreached count as infinite, so that it is a median, infinite itself where most runs do not get there."""
    reached: int

    @property
    def censored(self) -> int:
        """Runs that ended without reaching the target."""
        return self.took.n - self.reached


def reaching(took: Mapping[int, float]) -> Reaching | None:
    """Summarise what `to_target` gives, None where it is empty."""
    if not took:
        return None
    return Reaching(estimate(list(took.values())), sum(map(math.isfinite, took.values())))


@dataclass(frozen=True)
class Speedup:
    """How many times less one side took than the other, over the seeds that both have."""

    ratio: Estimate | None
    """Above 1 where the contender was faster; infinite or 0 where one side alone was censored; None without a pair."""
    undecided: int
    """Seeds on which neither side reached the target, or both before the first step: `ratio` leaves them out."""


def speedup(reference: Mapping[int, float], contender: Mapping[int, float]) -> Speedup:
    """Compare what `to_target` gives for two labels, paired by seed: the reference's time over the contender's.

    `too_short` finds the seeds on which an infinite time proves nothing.
    """
    a, b = shared_seeds(reference, contender)
    return Speedup(paired_ratio(reference, contender), int((a == b)[np.isinf(a) | (a == 0)].sum()))
