"""Iterations or seconds until runs reach the target that an experiment declares, with censored runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import (
    Estimate,
    estimate,
    mean_ratio,
    median_minimum,
    shared_seeds,
    studies_of,
    study_means,
    with_median_of,
)
from workflow.bench.analysis.step_times import StepTimes, Training, period_of, steps_or_seconds, time_ratio
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
    varied: str
    """The workload's parameters in which the experiment's runs of it differ (`varied`)."""
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
    for place, *values in _over_studies(runs.assign(varied=varied(runs)))[columns].dropna().itertuples(name=None):
        # pandas reads whole numbers of a column with gaps as floats.
        configuration = Configuration(*values)
        places.setdefault(replace(configuration, steps=int(configuration.steps)), []).append(place)
    return {configuration: runs.loc[index] for configuration, index in places.items()}


def varied(runs: pd.DataFrame) -> pd.Series:
    """Return the parameters in which an experiment's runs of one workload differ, as text: ``batch_size=128``.

    Empty where they are the same in all. Runs that differ in them are runs of different trainings under one label.
    """
    texts = pd.Series("", runs.index)
    for _, rows in runs.groupby(["experiment", "workload"], sort=False):
        given = [parameters or {} for parameters in rows["workload_parameters"]]
        names = sorted({name for parameters in given for name in parameters})
        differing = [name for name in names if any(one.get(name) != given[0].get(name) for one in given)]
        of_rows = [", ".join(f"{name}={one[name]}" for name in differing if name in one) for one in given]
        texts.loc[rows.index] = pd.Series(of_rows, rows.index)
    return texts


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


def to_target(runs: pd.DataFrame, quantity: Quantity) -> dict[int, float]:
    """Return one label's iterations or seconds to the target by seed, from rows of ``<experiment>.runs.csv``.

    They are those at which its smoothed metric crosses the target (`Target.crossing`), between two evaluations.

    A run that finished or broke down without reaching the target is censored, which counts as infinity: it would have
    taken longer than its budget. Skipped, interrupted and missing runs are left out.
    """
    ended = runs[runs["status"].isin(ENDED)]
    # What a run had reached before it diverged it did not keep.
    times = ended[_COLUMN[quantity]].mask(ended["status"] == "diverged").astype(float).fillna(math.inf)
    return {int(seed): took for seed, took in zip(ended["seed"], times, strict=True)}


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


def estimate_times(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Estimate a positive quantity, such as a time, as `estimate` does, but two to five values by their geometric mean.

    Its interval is that of the logarithms: one around a mean of few values may reach below 0, which no time does.
    """
    sample = np.asarray(values, dtype=np.float64)
    if 2 <= len(sample) < median_minimum() and (np.isfinite(sample) & (sample > 0)).all():
        return replace(mean_ratio(np.log(sample)), is_ratio=False)
    return estimate(sample).within(0, math.inf)


@dataclass(frozen=True)
class Reaching:
    """The iterations or seconds that one label's runs take to a target, and how many of them reach it."""

    took: Estimate
    """Iterations or seconds. Censored runs count as infinity, so the median is infinite if most runs are censored."""
    reached: int
    """The number of runs that reached the target."""
    runs: int
    """The number of runs."""
    values: tuple[float, ...] = ()
    """Those of the runs."""

    @property
    def censored(self) -> int:
        """The number of runs that ended without reaching the target."""
        return self.runs - self.reached


def reaching(took: Mapping[int, float], studies: Mapping[int, float] | None = None) -> Reaching | None:
    """Summarize the times of `to_target`; None if there are none.

    studies: the tuning study of each seed (`studies_of`); intervals then are those of the means of several studies.
    """
    # No run has ended: that is no censored time, and must not look like one.
    if not took:
        return None
    times = np.array([*took.values()], float)
    units, _ = study_means(times, [*took], studies or {})
    found = with_median_of(estimate_times(units), times)
    return Reaching(found, int(np.isfinite(times).sum()), len(took), tuple(times.tolist()))


@dataclass(frozen=True)
class TargetRatio:
    """One label's iterations or seconds to the target over another's, over the seeds that both have."""

    ratio: Estimate | None
    """Below 1 if the label was faster. A pair with one censored run is infinite or 0. None without a pair, or where a
    run was `too_short`: a ratio without its seed would favor the side that did not reach the target."""
    short: int
    """Seeds with a run that was `too_short`."""
    undecided: int
    """Seeds, left out of the ratio, in which neither run reached the target or both did before the first step."""
    seeds: int


def target_ratio(above: pd.DataFrame, below: pd.DataFrame, times: StepTimes | None = None) -> TargetRatio | None:
    """Compare two labels' iterations to the target or, with step times, their seconds.

    The ratio is paired by seed, with an interval over tuning studies. None where a label has no rows, or where the step
    times cannot be compared.

    Args:
        above: a label's rows of ``<experiment>.runs.csv``.
        below: those of the other label.
        times: the step times.
    """
    if above.empty or below.empty:
        return None
    trainings = [Training.of(runs, to_target(runs, "steps")) for runs in (above, below)]
    if times and times.problem(*trainings[0].labels, *trainings[1].labels):
        return None
    spent = [training.taking(budgets(runs)) for training, runs in zip(trainings, (above, below), strict=True)]
    ours, theirs, our_budget, their_budget = (steps_or_seconds(times, training) for training in (*trainings, *spent))
    short = len(too_short(ours, theirs, our_budget)) + len(too_short(theirs, ours, their_budget))
    a, b = shared_seeds(ours, theirs)
    undecided = int(((a == b) & (np.isinf(a) | (a == 0))).sum())
    ratio = None if short else time_ratio(times, trainings[0], trainings[1], studies_of(above, below))
    return TargetRatio(ratio, short, undecided, len(a))
