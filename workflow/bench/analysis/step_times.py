"""Times of steps from the interleaved probe ``step_time``: means over whole cycles, and the A/A test of the machine.

The runs of a label may take several kinds of step, of which each has its share; the time of a label is their mean.

A round holds one turn of every optimizer of a workload. Optimizers are compared over blocks of rounds in which each of
them trains whole cycles of its refresh period, so that refreshing and plain steps have their weights in training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binom

from workflow.bench.analysis.estimates import LEVEL, t_interval
from workflow.bench.results.tables import is_true

NOT_TESTED: Final = "not tested"
"""The cell of a time that cannot be compared (`StepTimes.problem`)."""
FEWEST_BLOCKS: Final = 3
"""The fewest blocks of rounds on an idle machine from which times are compared."""
AA_ROUNDS: Final = 3
"""Rounds of one A/A interval."""
AA_QUANTILE: Final = 0.99
"""The quantile of the number of A/A intervals that exclude 1 on a quiet machine; more make time untestable."""


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
    optimizer: str
    rounds: int
    left_out: int
    intervals: int
    excluding_1: int


def aa_exclusions(log_ratios: Sequence[float] | NDArray[np.float64]) -> tuple[int, int]:
    """Return the number of t intervals of the logarithms of ratios by round, and of those that exclude a ratio of 1.

    Each is of `AA_ROUNDS` successive rounds; those left at the end, fewer than that, are not used.
    """
    starts = range(0, len(log_ratios) - AA_ROUNDS + 1, AA_ROUNDS)
    # The machine is tested once, however often the claims are looked at: always 95 %.
    intervals = [t_interval(log_ratios[start : start + AA_ROUNDS], level=LEVEL) for start in starts]
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
        """Return the mean milliseconds of a step, ``[labels, blocks]``, over the blocks without a busy round."""
        rows = [self._of(label).dropna(subset="step_ms") for label in labels]
        size = math.lcm(*(_rounds_a_block(of_label) for of_label in rows))
        ms = _idle_rounds(*rows)
        # A block that lost a round to another process would hold the refresh without its plain steps, or these alone.
        by_block = ms.groupby(ms.index // size)
        return by_block.mean()[by_block.size() == size].to_numpy(float).T

    def _of(self, label: TimedLabel) -> pd.DataFrame:
        rows = self.rows
        same = (rows["experiment"] == label.experiment) & (rows["workload"] == label.workload)
        same &= (rows["optimizer"] == label.optimizer) & ~is_true(rows["again"])
        # NaN equals nothing, not even itself: a label without a period is asked for by another test.
        periods = rows["inverse_update_period"].astype(float)
        return rows[same & (periods.isna() if math.isnan(label.period) else periods == label.period)]


def _aa_test(first: pd.DataFrame, second: pd.DataFrame) -> AATest:
    ms = _idle_rounds(first, second)
    logs = np.log(ms.to_numpy(float)[:, 0] / ms.to_numpy(float)[:, 1])
    experiment, optimizer = second[["experiment", "optimizer"]].iloc[0]
    return AATest(
        str(experiment), str(optimizer), len(second), int(is_true(second["left_out"]).sum()), *aa_exclusions(logs)
    )


def _rounds_a_block(rows: pd.DataFrame) -> int:
    turns = rows.drop_duplicates("run")
    # A turn of some steps ends inside a cycle: after so many turns the cycles are whole.
    return math.lcm(
        *(int(cycle) // math.gcd(int(cycle), int(steps)) for cycle, steps in turns[["cycle", "steps"]].to_numpy())
    )


def _idle_rounds(*rows: pd.DataFrame) -> pd.DataFrame:
    """Return the milliseconds of a step, a row for each round and a column for each label, without busy rounds."""
    # Only rounds that are idle for all labels: each has its turn next to the others', under the same conditions.
    ms = [mean_ms(of_label[~is_true(of_label["left_out"])], ["round"]) for of_label in rows]
    return pd.concat(ms, axis=1, join="inner").sort_index()
