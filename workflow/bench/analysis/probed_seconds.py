"""Training seconds of runs as iterations times the time of a step, for axes of time.

The seconds that a run measured itself depend on the jobs beside it. The probe ``step_time`` times all optimizers of a
workload in turns on an idle machine (`analysis.step_times`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from workflow.bench.analysis.step_times import StepTimes, TimedLabel
from workflow.bench.analysis.time_to_target import period_of
from workflow.bench.results.columns import WITHOUT_VALUES

PROBED = "time: iterations times the time of a step, which the probe step_time measured on the idle machine"
OWN = "time: the runs' own seconds; other jobs ran beside them, so that times of two optimizers cannot be compared"


@dataclass(frozen=True)
class Timed:
    """Runs and their evaluations, with the seconds from the probe where it has timed every label of a workload."""

    runs: pd.DataFrame
    """With ``train_seconds`` and ``crossing_seconds`` from the probe."""
    metrics: pd.DataFrame
    """With ``train_seconds`` from the probe."""
    own: tuple[tuple[str, str], ...] = ()
    """The experiments and workloads whose times are still the runs' own seconds."""

    def note(self, name: Callable[[str], str]) -> str:
        """Return a caption's sentence on the times; name: how it names a workload."""
        pairs = self.runs[["experiment", "workload"]].drop_duplicates() if len(self.runs) else pd.DataFrame()
        return times_note([(str(one), str(other)) for one, other in pairs.to_numpy()], self.own, name)


def times_note(shown: Collection[tuple[str, str]], own: Collection[tuple[str, str]], name: Callable[[str], str]) -> str:
    """Return a caption's sentence on times, some of which are the runs' own seconds.

    Args:
        shown: the experiments and workloads with times.
        own: those with the runs' own seconds.
        name: how the caption names a workload.
    """
    left = dict.fromkeys(name(workload) for pair in shown if pair in own for workload in pair[1:])
    if not left:
        return PROBED
    return OWN if set(shown) <= set(own) else f"{PROBED}; {', '.join(left)}, {OWN}"


def timed(times: StepTimes, runs: pd.DataFrame, metrics: pd.DataFrame) -> Timed:
    """Return runs and evaluations with the seconds of the probe ``times``.

    The labels of one workload are compared, so either all of them have the probe's times or none has.

    Args:
        times: the probe of the machine.
        runs: rows of ``<experiment>.runs.csv``.
        metrics: rows of ``<experiment>.csv``, of the same runs.
    """
    if runs.empty:
        return Timed(runs, metrics)
    runs, metrics, own = runs.copy(), metrics.copy(), []
    metrics["train_seconds"] = metrics["train_seconds"].astype(float)
    mean = cache(times.mean)
    for (experiment, workload), rows in runs.groupby(["experiment", "workload"], sort=False):
        trained = rows[~rows["status"].isin(WITHOUT_VALUES)]
        clocks = {str(run["run"]): _clock(mean, run) for run in trained.to_dict("records")}
        if None in clocks.values():
            own.append((str(experiment), str(workload)))
            continue
        for run, clock in clocks.items():
            assert clock is not None
            is_run, evaluated = runs["run"] == run, metrics["run"] == run
            for steps, seconds in (("steps_done", "train_seconds"), ("crossing_step", "crossing_seconds")):
                runs.loc[is_run, seconds] = clock.seconds(runs.loc[is_run, steps].astype(float))
            metrics.loc[evaluated, "train_seconds"] = clock.seconds(metrics.loc[evaluated, "step"].astype(float))
    return Timed(runs, metrics, tuple(own))


@dataclass(frozen=True)
class _Clock:
    """The time of a run's steps."""

    ms: float
    switch: float
    """The step after which the base optimizer trains alone (MKOR-H); infinity if it never does."""
    base_ms: float

    def seconds(self, steps: pd.Series) -> pd.Series:
        """Return the seconds of the first so many steps of the run."""
        alone = (steps - self.switch).clip(lower=0)
        return ((steps - alone) * self.ms + alone * self.base_ms) / 1000


def _clock(mean: Callable[[TimedLabel], float], run: Mapping[Hashable, Any]) -> _Clock | None:
    """Return the clock of a row of ``<experiment>.runs.csv``; None if the probe lacks the time of one of its steps.

    mean: returns the mean milliseconds of a label's step, NaN if the probe lacks it.
    """
    where, given = (str(run["experiment"]), str(run["workload"])), run["hyperparameters"]
    ms = mean(TimedLabel(*where, str(run["optimizer"]), period_of(given)))
    switch = math.inf if pd.isna(run["switch_step"]) else float(run["switch_step"])
    base_ms = 0.0 if math.isinf(switch) else mean(TimedLabel(*where, str(given.get("base"))))
    return None if math.isnan(ms) or math.isnan(base_ms) else _Clock(ms, switch, base_ms)
