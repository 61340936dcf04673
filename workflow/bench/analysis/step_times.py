"""Times of steps from the interleaved probe ``step_time``, and times of training: iterations times the time of a step.

The runs of a label may take several kinds of step, of which each has its share; the time of a label is their mean.

A round holds one turn of every optimizer of a workload. Optimizers are compared over blocks of rounds in which each of
them trains whole cycles of its refresh period, so that refreshing and plain steps have their weights in training: over
single rounds, where turns are whole cycles. A machine that is slow for a while is so for all turns of a round, so that
each block has its own ratio and the interval spans the blocks. Medians over several rounds, one for each optimizer,
would mix slow rounds of one with fast ones of another: on a shared machine their intervals were half as long again. The
A/A test of the machine times one optimizer twice.

The iterations of a seed do not depend on the machine's load, and the seconds that a run measured itself do. Steps are
timed in turns on an idle machine, so that a ratio of two optimizers' times has the noise of neither's training runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from workflow.bench.analysis.estimates import LEVEL, Estimate, crossed_ratio, paired_ratio, study_means, t_interval
from workflow.bench.results.columns import WITHOUT_VALUES
from workflow.bench.results.tables import is_true

NOT_TESTED: Final = "not tested"
"""The cell of a time that cannot be compared (`StepTimes.problem`)."""
FEWEST_BLOCKS: Final = 3
"""The fewest blocks of rounds on an idle machine from which times are compared."""
AA_BLOCKS: Final = 3
"""Blocks of one A/A interval."""
AA_QUANTILE: Final = 0.99
"""The quantile of the number of A/A intervals that exclude 1 on a quiet machine; more make time untestable."""
PROBED: Final = "time: iterations times the time of a step, which the probe step_time measured on the idle machine"
OWN: Final = (
    "time: the runs' own seconds; other jobs ran beside them, so that times of two optimizers cannot be compared"
)


class TimedLabel(NamedTuple):
    """What a step time belongs to: a label of an experiment on a workload, at a refresh period."""

    experiment: str
    workload: str
    optimizer: str
    period: float = math.nan
    """Steps between refreshes; NaN for a method without a period."""


class AATest(NamedTuple):
    """A/A intervals of one optimizer, timed twice under two names: 95 % intervals of a ratio that is 1."""

    experiment: str
    workload: str
    optimizer: str
    rounds: int
    left_out: int
    intervals: int
    excluding_1: int


def aa_exclusions(log_ratios: Sequence[float] | NDArray[np.float64]) -> tuple[int, int]:
    """Return the number of t intervals of the logarithms of ratios by block, and of those that exclude a ratio of 1.

    Each is of `AA_BLOCKS` successive blocks; those left at the end, fewer than that, are not used.
    """
    starts = range(0, len(log_ratios) - AA_BLOCKS + 1, AA_BLOCKS)
    # The machine is tested once, however often the claims are looked at: always 95 %.
    intervals = [t_interval(log_ratios[start : start + AA_BLOCKS], level=LEVEL) for start in starts]
    return len(intervals), sum(not low <= 0 <= high for low, high in intervals)


def mean_ms(rows: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Return the mean milliseconds of a step by some columns, in which each kind of step counts with its runs."""
    # A label's runs may differ in their kind of step: the mean is that of the runs, not of the kinds.
    groups = rows.assign(total_ms=rows["step_ms"] * rows["runs"]).groupby(list(by))
    return groups["total_ms"].sum() / groups["runs"].sum()


def most_exclusions(intervals: int) -> int:
    """Return how many of some 95 % intervals may exclude the truth: a quantile of the binomial distribution."""
    return int(binom.ppf(AA_QUANTILE, intervals, 1 - LEVEL))


@dataclass(frozen=True)
class StepTimes:
    """The rows of ``probes/step_time.csv``."""

    rows: pd.DataFrame

    @cached_property
    def aa_tests(self) -> list[AATest]:
        """The A/A test of every workload on which an optimizer was timed twice."""
        if self.rows.empty:
            return []
        timed = self.rows[self.rows["step_ms"].notna()]
        keys = ["experiment", "workload", "optimizer"]
        first = dict(iter(timed[~is_true(timed["again"])].groupby(keys, sort=False)))
        second = timed[is_true(timed["again"])].groupby(keys, sort=False)
        # The same run under two names: of a label with several kinds of step, the kind that was timed again.
        # What was timed again only, in a damaged table, has nothing to be compared with.
        return [
            _aa_test(first[key].merge(rows[["run"]].drop_duplicates()), rows) for key, rows in second if key in first
        ]

    @property
    def exclusions(self) -> tuple[int, int]:
        """The number of A/A intervals of all workloads, and of those that exclude 1."""
        return sum(test.intervals for test in self.aa_tests), sum(test.excluding_1 for test in self.aa_tests)

    @property
    def is_quiet(self) -> bool:
        """Whether no more A/A intervals exclude 1 than on a machine whose noise the intervals cover."""
        intervals, excluding = self.exclusions
        return excluding <= most_exclusions(intervals)

    def problem(self, *labels: TimedLabel) -> str:
        """Return why the times of some labels cannot be compared, a clause; empty if they can."""
        if self.rows.empty:
            return "step_time.csv is missing or empty: the probe step_time has timed no step"
        for label in labels:
            rows = self._of(label)
            if rows["step_ms"].isna().all():
                reasons = rows["note"].dropna()
                because = f" ({reasons.iloc[0]})" if len(reasons) else ""
                return f"step_time.csv has no step of {label.optimizer} in {label.experiment}{because}"
        # First what is missing, then a busy machine, then a noisy one: each question needs the answers before.
        if self.blocks(*labels).shape[1] < FEWEST_BLOCKS:
            rounds = self._of(labels[0]).drop_duplicates("round")
            busy = int(is_true(rounds["left_out"]).sum())
            where = f"{len(rounds)} rounds of step_time in {labels[0].experiment}"
            if busy:
                return f"the machine was busy: other processes slowed {busy} of {where}"
            return f"the {where} hold fewer than {FEWEST_BLOCKS} blocks of whole cycles"
        if not self.is_quiet:
            intervals, excluding = self.exclusions
            return (
                f"the machine is too noisy: {excluding} of {intervals} intervals between equal steps exclude a ratio "
                f"of 1, and at most {most_exclusions(intervals)} may"
            )
        return ""

    def mean(self, label: TimedLabel) -> float:
        """Return the mean milliseconds of a label's step over its idle blocks of rounds; NaN without one."""
        if self.rows.empty or self._of(label)["step_ms"].isna().all():
            return math.nan
        blocks = self.blocks(label)
        return float(blocks.mean()) if blocks.size else math.nan

    def blocks(self, *labels: TimedLabel) -> NDArray[np.float64]:
        """Return the milliseconds of a step ``[labels, blocks]``, in blocks of whole cycles without a busy round."""
        rows = [self._of(label).dropna(subset="step_ms") for label in labels]
        turns = {(int(cycle), int(steps)) for one in rows for cycle, steps in one[["cycle", "steps"]].to_numpy()}
        # A turn of some steps ends inside a cycle: after so many turns the cycles are whole.
        size = math.lcm(*(cycle // math.gcd(cycle, steps) for cycle, steps in turns))
        return _blocks(_idle_rounds(*rows), size)

    def by_label(self, *labels: TimedLabel) -> dict[TimedLabel, NDArray[np.float64]]:
        """Return the milliseconds of `blocks` by label, ``[blocks]`` for each; a label may be given twice."""
        different = tuple(dict.fromkeys(labels))
        return dict(zip(different, self.blocks(*different), strict=True))

    @cached_property
    def _by_label(self) -> dict[Hashable, pd.DataFrame]:
        once = self.rows[~is_true(self.rows["again"])]
        # NaN equals nothing, not even itself: a label without a period has the key 0.
        periods = once["inverse_update_period"].astype(float).fillna(0)
        return dict(iter(once.groupby(["experiment", "workload", "optimizer", periods], sort=False)))

    def _of(self, label: TimedLabel) -> pd.DataFrame:
        key = label._replace(period=0.0) if math.isnan(label.period) else label
        return self._by_label.get(key, self.rows[:0])


def _aa_test(first: pd.DataFrame, second: pd.DataFrame) -> AATest:
    # The base optimizer, which is what takes part twice, repeats itself every step.
    ms = _blocks(_idle_rounds(first, second), 1)
    logs = np.log(ms[0] / ms[1])
    experiment, workload, optimizer = map(str, second[["experiment", "workload", "optimizer"]].iloc[0])
    busy = int(is_true(second["left_out"]).sum())
    return AATest(experiment, workload, optimizer, len(second), busy, *aa_exclusions(logs))


def _idle_rounds(*rows: pd.DataFrame) -> pd.DataFrame:
    """Return the milliseconds of a step, a row for each round and a column for each label, without busy rounds."""
    # Only rounds that are idle for all labels: each has its turn next to the others', under the same conditions.
    ms = [mean_ms(of_label[~is_true(of_label["left_out"])], ["round"]) for of_label in rows]
    return pd.concat(ms, axis=1, join="inner").sort_index()


def _blocks(ms: pd.DataFrame, size: int) -> NDArray[np.float64]:
    """Return the milliseconds of a step ``[labels, blocks]``, from idle rounds of which ``size`` are a block."""
    # A block that lost a round to another process would hold the refresh without its plain steps, or these alone.
    whole = [of_block.to_numpy(float) for _, of_block in ms.groupby(ms.index // size) if len(of_block) == size]
    return np.reshape(whole, (len(whole), size, ms.shape[1])).mean(axis=1).T


def period_of(hyperparameters: Mapping[str, Any]) -> float:
    """Return the steps between refreshes; NaN for a method without a period."""
    period = hyperparameters.get("inverse_update_period", hyperparameters.get("update_period"))
    return math.nan if period is None else float(period)


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
    seconds = training.seconds(seeds, times.by_label(*training.labels))
    return dict(zip(seeds, seconds.mean(axis=1).tolist(), strict=True))


def steps_or_seconds(times: StepTimes | None, training: Training) -> Mapping[int, float]:
    """Return the seconds of a training by seed or, without step times, its steps."""
    return mean_seconds(times, training) if times else training.steps


def time_ratio(
    times: StepTimes | None, above: Training, below: Training, studies: Mapping[int, float] | None = None
) -> Estimate | None:
    """Estimate the ratio of two labels' training times, paired by seed and by block of rounds; None without a pair.

    Without step times it is the ratio of their steps.

    The interval holds the variance over seeds and that of the step times. Censored runs count as in `paired_ratio`;
    the bounds of its interval are then widened by the interval of the ratio of the step times.

    studies: the tuning study of each seed; intervals then are those of the means of several studies.
    """
    if times is None:
        return paired_ratio(above.steps, below.steps, studies)
    pairs = {seed: (above.steps[seed], below.steps[seed]) for seed in above.steps.keys() & below.steps.keys()}
    # Whether the target was met before the first step by both, or by neither at all, says nothing of their times.
    seeds = sorted(seed for seed, (a, b) in pairs.items() if a != b or 0 < a < math.inf)
    if not seeds:
        return None
    ms = times.by_label(*above.labels, *below.labels)
    if all(0 < steps < math.inf for seed in seeds for steps in pairs[seed]):
        logs = np.log(above.seconds(seeds, ms)) - np.log(below.seconds(seeds, ms))
        return crossed_ratio(study_means(logs, seeds, studies or {})[0])
    means = [dict(zip(seeds, one.seconds(seeds, ms).mean(axis=1), strict=True)) for one in (above, below)]
    ratio = paired_ratio(means[0], means[1], studies)
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
