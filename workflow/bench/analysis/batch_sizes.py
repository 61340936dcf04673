"""Iterations to one target over the batch size, and the prediction that was declared before the runs.

docs/experiments/batch_size.md states the rules in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, mean_of_units, mean_ratio
from workflow.bench.analysis.fits import power_law
from workflow.bench.analysis.ladder import Decision
from workflow.bench.analysis.study_ratios import nothing_to_compare, units_of
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.time_to_target import to_target
from workflow.bench.analysis.wording import estimated
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import Results

EXPERIMENT: Final = "batch_size"
STAND_IN: Final = "nadamw"
"""The reference where the base optimizer does not reach the target at every size."""


@dataclass(frozen=True)
class Arrival:
    """The iterations of one label's runs at one batch size to the target."""

    logs: Mapping[int, float]
    """The mean logarithm of its iterations by tuning study; a run that did not reach the target has its budget's."""
    reached: int
    """Runs that reached the target."""
    runs: int
    """All that are planned; one that has not ended did not reach the target."""

    @property
    def is_censored(self) -> bool:
        """Whether a run did not reach the target, so that the mean is a lower bound."""
        return self.reached < self.runs

    @property
    def iterations(self) -> Estimate:
        """The geometric mean over studies; without an interval if a run is censored."""
        logs = [*self.logs.values()]
        if self.is_censored:
            return Estimate(math.exp(fmean(logs)), math.nan, math.nan, len(logs), "geometric mean", "none")
        return mean_ratio(logs)


@dataclass(frozen=True)
class Batches:
    """The runs of one workload at several batch sizes."""

    workload: str
    target: Target
    base: str
    """The label of the base optimizer."""
    reference: str | None
    """The label that others are compared to: one whose runs all reach the target at every size; None without one."""
    sizes: Sequence[int]
    """The batch sizes that are planned, the smallest first."""
    arrivals: Mapping[str, Mapping[int, Arrival]]
    """By label and batch size, in the order of the runs and of the sizes."""

    def ratios(self, label: str, size: int, *, censored: bool = False) -> dict[int, float]:
        """Return the logarithm of a label's iterations over the reference's by study; none if a run is censored.

        censored: then none unless a run is; each is a lower bound.
        """
        if self.reference is None:
            return {}
        own, other = (self.arrivals[one].get(size) for one in (label, self.reference))
        if own is None or other is None or own.is_censored != censored:
            return {}
        return {study: own.logs[study] - other.logs[study] for study in own.logs.keys() & other.logs.keys()}

    def slope(self, label: str) -> Estimate | None:
        """Return the slope of the logarithm of `ratios` over that of the size; None without all sizes."""
        return slope({size: self.ratios(label, size) for size in self.sizes})

    def decision(self, label: str) -> Decision:
        """Decide whether a label's advantage over the reference grows with the batch."""
        found = self.slope(label)
        if found is None or label == self.reference:
            return "not tested"
        if not found.has_interval:
            return "open"
        return "holds" if found.high < 0 else "fails" if found.low >= 0 else "open"


def slope(by_size: Mapping[int, Mapping[int, float]]) -> Estimate | None:
    """Return the mean over studies of the slope of log-ratios over the logarithms of sizes, with a t interval.

    by_size: the log-ratios by size and study; a study that lacks a size is left out. None without a study or a second
    size.
    """
    studies = set.intersection(*(set(ratios) for ratios in by_size.values())) if by_size else set()
    if not studies or len(by_size) < 2:
        return None
    sizes = [float(size) for size in by_size]
    exponents = [
        power_law(sizes, [math.exp(ratios[study]) for ratios in by_size.values()]).exponent for study in sorted(studies)
    ]
    return mean_of_units(exponents)


def batches(results: Results) -> tuple[list[Batches], list[str]]:
    """Return the workloads that have runs, and for each one that cannot be compared why, a clause.

    Raises:
        NoDataError: there is no run of the experiment, or no workload that can be compared.
    """
    runs = results.some_runs(EXPERIMENT)
    found: list[Batches] = []
    left_out: list[str] = []
    for workload, rows in runs.groupby("workload", sort=False):
        goals = rows["target"].dropna().unique()
        base = common_base(rows)
        if len(goals) != 1:
            left_out.append(f"{workload} has {len(goals)} targets, and not one for all sizes")
        elif not rows["status"].isin(ENDED).any():
            left_out.append(f"{workload} has no run that ended")
        elif base is None:
            left_out.append(f"{workload} has no run of a base optimizer")
        else:
            found.append(_batches(str(workload), goals[0], base, rows))
    if not found:
        raise nothing_to_compare(results, EXPERIMENT, left_out)
    return found, left_out


def _batches(workload: str, target: Target, base: str, runs: pd.DataFrame) -> Batches:
    sizes = runs["workload_parameters"].map(lambda given: int(given["batch_size"]))
    arrivals = {
        str(label): {
            int(str(size)): _arrival(rows) for size, rows in of_label.groupby(sizes) if rows["status"].isin(ENDED).any()
        }
        for label, of_label in runs.groupby("optimizer", sort=False)
    }
    every = set(sizes)
    suited = (
        label
        for label in (base, STAND_IN)
        if arrivals.get(label, {}).keys() == every and not any(one.is_censored for one in arrivals[label].values())
    )
    return Batches(workload, target, base, next(suited, None), sorted(every), arrivals)


def _arrival(planned: pd.DataFrame) -> Arrival:
    runs = planned[planned["status"].isin(ENDED)]
    took = to_target(runs, "steps")
    budgets = dict(zip(runs["seed"].astype(int), runs["steps"].astype(float), strict=True))
    # A target met before the first step counts as met in it: nothing can be said of less than a step.
    logs = {seed: math.log(max(steps if math.isfinite(steps) else budgets[seed], 1.0)) for seed, steps in took.items()}
    by_study = {unit: fmean(logs[seed] for seed in seeds) for unit, seeds in units_of(runs).items()}
    return Arrival(by_study, sum(map(math.isfinite, took.values())), len(planned))


def sentences(found: Sequence[Batches], workload_name: Callable[[str], str], name: Callable[[str], str]) -> list[str]:
    """Return what the runs say of the prediction, a sentence for each workload.

    workload_name, name: return the names of a workload and of an optimizer.
    """
    short = [
        f"{workload_name(of_workload.workload)} {name(label)} {', '.join(counts)}"
        for of_workload in found
        for label, arrivals in of_workload.arrivals.items()
        if (counts := [f"{one.reached} of {one.runs} at {size}" for size, one in arrivals.items() if one.is_censored])
    ]
    said = [f"Runs that reached the target, where not all did: {'; '.join(short)}"] if short else []
    for of_workload in found:
        place = workload_name(of_workload.workload)
        if of_workload.reference is None:
            said.append(f"{place}: the prediction is not tested, since no reference reaches the target in all runs")
            continue
        clauses = []
        for label in of_workload.arrivals:
            if label == of_workload.reference:
                continue
            slope = of_workload.slope(label)
            shown = f" ({estimated(slope)})" if slope else ""
            clauses.append(f"{name(label)} {of_workload.decision(label)}{shown}")
        said.append(
            f"Declared before the runs: iterations over those of the reference ({name(of_workload.reference)}) fall as "
            f"the batch grows; {place}, with the slope on logarithmic axes: {', '.join(clauses)}"
        )
    return said
