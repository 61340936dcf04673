"""Training time: the iterations of training runs times the time of a step, which the probe ``step_time`` measured.

The iterations of a seed do not depend on the machine's load, and the seconds that a run measured itself do. The times
of the steps are measured in turns on an idle machine (`analysis.step_times`), so that a ratio of two optimizers' times
has the noise of neither's training runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from workflow.bench.analysis.estimates import Estimate, crossed_ratio, paired_ratio, t_interval
from workflow.bench.analysis.step_times import StepTimes, TimedLabel
from workflow.bench.analysis.time_to_target import period_of
from workflow.bench.results.columns import WITHOUT_VALUES

PROBED: Final = "time: iterations times the time of a step, which the probe step_time measured on the idle machine"
OWN: Final = (
    "time: the runs' own seconds; other jobs ran beside them, so that times of two optimizers cannot be compared"
)


def switched_seconds(steps: ArrayLike, switch: ArrayLike, ms: ArrayLike, base_ms: ArrayLike) -> NDArray[np.float64]:
    """Return the seconds of the first ``steps`` of a run that trains with its base optimizer alone after ``switch``.

    Infinitely many steps, of a run that did not reach its target, take infinitely long; ``switch`` is infinite for a
    run that never switches. All arguments broadcast.
    """
    taken, after = np.asarray(steps, np.float64), np.asarray(switch, np.float64)
    # Where steps are infinite their difference from an infinite switch is no number, and no part of them needs a name.
    alone = np.clip(np.where(np.isfinite(taken), taken, 0.0) - after, 0.0, None)
    return np.asarray(((taken - alone) * np.asarray(ms) + alone * np.asarray(base_ms)) / 1000)


@dataclass(frozen=True)
class Training:
    """How many steps one label's runs take, by seed, and what they train with."""

    label: TimedLabel
    base: TimedLabel | None
    """The base optimizer, which trains alone after a switch (MKOR-H); None without a switch."""
    steps: Mapping[int, float]
    """Infinity for a run that did not reach its target."""
    switches: Mapping[int, float]
    """The step after which a run's base optimizer trains alone."""

    @classmethod
    def of(cls, runs: pd.DataFrame, steps: Mapping[int, float]) -> Training:
        """Return the training of one label's runs, at least one, from rows of ``<experiment>.runs.csv``."""
        first = runs.iloc[0]
        where, given = (str(first["experiment"]), str(first["workload"])), first["hyperparameters"]
        switched = runs[runs["switch_step"].notna()]
        switches = dict(zip(switched["seed"].astype(int), switched["switch_step"].astype(float), strict=True))
        base = TimedLabel(*where, str(given.get("base"))) if switches else None
        return cls(TimedLabel(*where, str(first["optimizer"]), period_of(given)), base, steps, switches)

    def taking(self, steps: Mapping[int, float]) -> Training:
        """Return the training with other numbers of steps."""
        return replace(self, steps=steps)

    @property
    def labels(self) -> tuple[TimedLabel, ...]:
        """The labels whose step times it needs."""
        return (self.label,) if self.base is None else (self.label, self.base)

    def cost(
        self, steps: NDArray[np.float64], seeds: Sequence[int], ms: Mapping[TimedLabel, NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Return the seconds ``[..., seeds, blocks]`` of ``steps [..., seeds]``; ms: those of a step ``[blocks]``."""
        switches = np.array([self.switches.get(seed, math.inf) for seed in seeds])
        base_ms = 0.0 if self.base is None else ms[self.base]
        return switched_seconds(steps[..., None], switches[:, None], ms[self.label], base_ms)

    def seconds(self, seeds: Sequence[int], ms: Mapping[TimedLabel, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the seconds ``[seeds, blocks]`` of its own steps; ms: milliseconds of a step ``[blocks]`` by label."""
        return self.cost(np.array([self.steps[seed] for seed in seeds]), seeds, ms)


def mean_seconds(times: StepTimes, training: Training) -> dict[int, float]:
    """Return the seconds of a training by seed; infinity for a run that did not reach its target."""
    seeds = sorted(training.steps)
    blocks = dict(zip(training.labels, times.blocks(*training.labels), strict=True))
    return dict(zip(seeds, training.seconds(seeds, blocks).mean(axis=1).tolist(), strict=True))


def time_ratio(times: StepTimes, above: Training, below: Training) -> Estimate | None:
    """Estimate the ratio of two labels' training times, paired by seed and by block of rounds; None without a pair.

    The interval holds the variance over seeds and that of the step times. Censored runs count as in `paired_ratio`;
    the bounds of its interval are then widened by the interval of the ratio of the step times.
    """
    pairs = {seed: (above.steps[seed], below.steps[seed]) for seed in above.steps.keys() & below.steps.keys()}
    # Whether the target was met before the first step by both, or by neither at all, says nothing of their times.
    seeds = sorted(seed for seed, (a, b) in pairs.items() if a != b or 0 < a < math.inf)
    if not seeds:
        return None
    labels = tuple(dict.fromkeys((*above.labels, *below.labels)))
    ms = dict(zip(labels, times.blocks(*labels), strict=True))
    if all(0 < steps < math.inf for seed in seeds for steps in pairs[seed]):
        return crossed_ratio(np.log(above.seconds(seeds, ms)) - np.log(below.seconds(seeds, ms)))
    means = [dict(zip(seeds, one.seconds(seeds, ms).mean(axis=1), strict=True)) for one in (above, below)]
    ratio = paired_ratio(*means)
    if ratio is None or not ratio.has_interval:
        return ratio
    # An infinite ratio has no logarithm to add variances of: its finite bound moves by the interval of the times.
    low, high = t_interval(np.log(ms[above.label]) - np.log(ms[below.label]))
    factor = math.exp((high - low) / 2)
    return replace(ratio, low=ratio.low / factor, high=ratio.high * factor)


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
    """Return a caption's sentence on times of experiments and workloads, some of which are the runs' own seconds.

    shown: those with times; own: those with the runs' own seconds; name: how the caption names a workload.
    """
    left = dict.fromkeys(name(workload) for pair in shown if pair in own for workload in pair[1:])
    if not left:
        return PROBED
    return OWN if set(shown) <= set(own) else f"{PROBED}; {', '.join(left)}, {OWN}"


def timed(times: StepTimes, runs: pd.DataFrame, metrics: pd.DataFrame) -> Timed:
    """Return runs and evaluations with the seconds of the probe ``times``, for axes of time.

    runs: rows of ``<experiment>.runs.csv``; metrics: rows of ``<experiment>.csv``, of the same runs.
    """
    if runs.empty:
        return Timed(runs, metrics)
    runs, metrics, own = runs.copy(), metrics.copy(), []
    metrics["train_seconds"] = metrics["train_seconds"].astype(float)
    mean = cache(times.mean)
    # The labels of one workload are compared, so either all of them have the probe's times or none has.
    for (experiment, workload), rows in runs.groupby(["experiment", "workload"], sort=False):
        trained = rows[~rows["status"].isin(WITHOUT_VALUES)]
        trainings = [Training.of(trained[trained["run"] == run], {}) for run in trained["run"].unique()]
        if any(math.isnan(mean(label)) for training in trainings for label in training.labels):
            own.append((str(experiment), str(workload)))
            continue
        for run, training in zip(trained["run"].unique(), trainings, strict=True):
            switch = next(iter(training.switches.values()), math.inf)
            clock = switch, mean(training.label), mean(training.base) if training.base else 0.0
            for table, steps, seconds in (
                (runs, "steps_done", "train_seconds"),
                (runs, "crossing_step", "crossing_seconds"),
                (metrics, "step", "train_seconds"),
            ):
                of_run = table["run"] == run
                table.loc[of_run, seconds] = switched_seconds(table.loc[of_run, steps].astype(float), *clock)
    return Timed(runs, metrics, tuple(own))
