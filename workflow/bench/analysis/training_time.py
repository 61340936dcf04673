"""Training time to a target: the iterations to it, from training runs, times the time of a step, from a probe.

The iterations of a seed do not depend on the machine's load. The times of the steps are measured in turns on an idle
machine (`analysis.step_times`), so that a ratio of two optimizers' times has the noise of neither's training runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import Estimate, crossed_ratio, paired_ratio, t_interval
from workflow.bench.analysis.step_times import StepTimes, TimedLabel
from workflow.bench.analysis.time_to_target import period_of


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
        where = str(first["experiment"]), str(first["workload"])
        switched = runs[runs["switch_step"].notna()]
        switches = dict(zip(switched["seed"].astype(int), switched["switch_step"].astype(float), strict=True))
        given = first["hyperparameters"]
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
        alone = np.where(steps > switches, np.where(np.isfinite(steps), steps, 0) - switches, 0.0).clip(min=0)
        taken = (steps - alone)[..., None] * ms[self.label]
        if self.base is not None:
            taken = taken + alone[..., None] * ms[self.base]
        return taken / 1000

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
    low, high = t_interval(np.log(ms[above.label]) - np.log(ms[below.label]))
    factor = math.exp((high - low) / 2)
    return replace(ratio, low=ratio.low / factor, high=ratio.high * factor)
