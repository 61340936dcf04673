"""Statistics over seeds: estimates with intervals, paired contrasts, censored targets, verdicts.

Pure functions on numbers; nothing here reads a file.  Six or more seeds carry a median with a bootstrap
interval, two to five a mean with a t interval, one seed no interval at all.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

LEVEL: Final = 0.95
#: The fewest values of which a bootstrap interval is taken: below, resampling cannot cover 95 %.
BOOTSTRAP_MINIMUM: Final = 6
RESAMPLES: Final = 4000

Statistic = Literal["median", "mean", "geometric mean", "minimum", "maximum", "single value"]
Method = Literal["bootstrap", "t", "range", "none"]
Verdict = Literal["confirmed", "refuted", "inconclusive", "not tested"]

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Estimate:
    """A number with its interval: ``value`` in ``[low, high]`` from ``n`` values; NaN bounds mean no interval."""

    value: float
    low: float
    high: float
    n: int
    statistic: Statistic
    method: Method

    @property
    def has_interval(self) -> bool:
        """Whether both bounds are known."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    def scaled(self, factor: float) -> Estimate:
        """The same in a unit that is ``factor`` times smaller."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)


@dataclass(frozen=True)
class Condition:
    """One threshold of a claim, such as ``KAISA >= 3``; ``subject`` is empty when the claim has but one."""

    subject: str
    comparison: str
    threshold: float

    def holds(self, value: float) -> bool:
        """Whether a number meets it."""
        return _COMPARISONS[self.comparison](value, self.threshold)

    def judge(self, estimate: Estimate) -> Verdict:
        """Confirmed or refuted where the whole interval is on one side of the threshold, else inconclusive."""
        if not estimate.has_interval:
            return "inconclusive"
        sides = {self.holds(bound) for bound in (estimate.low, estimate.high)}
        if len(sides) == 2:
            return "inconclusive"
        return "confirmed" if sides.pop() else "refuted"


def parse_conditions(holds_when: str) -> tuple[Condition, ...]:
    """Read the thresholds of a ``holds_when`` entry: ``"KAISA >= 3 and MKOR <= 1.5"`` gives two.

    Raises ValueError where no comparison with a number is found.
    """
    found = re.findall(r"(?:(\w[\w-]*)\s*)?(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", holds_when)
    if not found:
        raise ValueError(f"{holds_when=} holds no comparison with a number, such as '> 1'.")
    return tuple(Condition(subject, comparison, float(number)) for subject, comparison, number in found)


def agreement(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim seen in several places (workloads): theirs where all agree, else inconclusive."""
    seen = set(verdicts) - {"not tested"}
    if not seen:
        return "not tested"
    return seen.pop() if len(seen) == 1 else "inconclusive"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim that needs every part: one refuted part refutes it, all confirmed confirm it."""
    if not verdicts or all(verdict == "not tested" for verdict in verdicts):
        return "not tested"
    if "refuted" in verdicts:
        return "refuted"
    return "confirmed" if all(verdict == "confirmed" for verdict in verdicts) else "inconclusive"


def bootstrap_interval(
    values: Sequence[float] | NDArray[np.float64], *, level: float = LEVEL, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval of the median of ``values [n]``.  Infinite values are allowed, NaN is not.

    The generator is seeded, so the same values give the same interval.
    """
    sample = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(0).integers(len(sample), size=(resamples, len(sample)))
    medians = np.median(sample[picks], axis=1)
    # "nearest" never subtracts, so infinite (censored) values stay infinite and do not turn into NaN.
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    return float(low), float(high)


def t_interval(values: Sequence[float] | NDArray[np.float64], *, level: float = LEVEL) -> tuple[float, float]:
    """Student's t interval of the mean of two or more finite ``values [n]``."""
    sample = np.asarray(values, dtype=np.float64)
    half = stdtrit(len(sample) - 1, (1 + level) / 2) * sample.std(ddof=1) / math.sqrt(len(sample))
    return float(sample.mean() - half), float(sample.mean() + half)


def estimate(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Median with a bootstrap interval from six values on, mean with a t interval from two, else one value alone.

    Infinite values (censored or diverged runs) are kept in a median; fewer than six values with an infinite
    one among them have no interval.  Raises ValueError for no values or a NaN.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        raise ValueError("An estimate needs at least one value, got none.")
    if np.isnan(sample).any():
        raise ValueError("An estimate of NaN values means nothing: leave the runs out and name them.")
    n = len(sample)
    if n >= BOOTSTRAP_MINIMUM:
        return Estimate(float(np.median(sample)), *bootstrap_interval(sample), n, "median", "bootstrap")
    if n == 1:
        return Estimate(float(sample[0]), math.nan, math.nan, 1, "single value", "none")
    if np.isinf(sample).any():
        return Estimate(float(np.median(sample)), math.nan, math.nan, n, "median", "none")
    return Estimate(float(sample.mean()), *t_interval(sample), n, "mean", "t")


def extreme(values: Sequence[float] | NDArray[np.float64], which: Literal["minimum", "maximum"]) -> Estimate:
    """The smallest or largest of all trials, for claims about every case: its interval is the value itself.

    A NaN among ``values`` is a trial that broke down, and makes the extreme infinitely bad.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        raise ValueError("An extreme needs at least one value, got none.")
    worst = -math.inf if which == "minimum" else math.inf
    sample = np.where(np.isnan(sample), worst, sample)
    value = float(sample.min() if which == "minimum" else sample.max())
    return Estimate(value, value, value, len(sample), which, "range")


def _shared(left: Mapping[int, float], right: Mapping[int, float]) -> tuple[NDArray[np.float64], ...]:
    """Values of the seeds that both sides have, in the order of the seeds."""
    seeds = sorted(left.keys() & right.keys())
    return np.array([left[seed] for seed in seeds], float), np.array([right[seed] for seed in seeds], float)


def paired_difference(left: Mapping[int, float], right: Mapping[int, float]) -> Estimate | None:
    """Estimate of ``left - right`` over the seeds both have, or None where they share none.

    A pair of which one side is not finite (a diverged run) is left out; the caller names it.
    """
    a, b = _shared(left, right)
    kept = np.isfinite(a) & np.isfinite(b)
    return estimate((a - b)[kept]) if kept.any() else None


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Estimate | None:
    """Estimate of ``numerator / denominator`` (positive values) over the seeds both have, or None without any.

    An infinite value is a censored one (target never reached): its ratio is infinite or 0.  A pair that is censored
    on both sides, or 0 on both (a target met before the first step), says nothing and is left out.  Below six pairs
    the mean is taken of the logarithms, so that a ratio and its inverse agree.
    """
    a, b = _shared(numerator, denominator)
    kept = (np.isfinite(a) | np.isfinite(b)) & ((a > 0) | (b > 0))
    if not kept.any():
        return None
    with np.errstate(divide="ignore"):
        ratios = a[kept] / b[kept]
    if len(ratios) >= BOOTSTRAP_MINIMUM or len(ratios) == 1:
        return estimate(ratios)
    if not (np.isfinite(ratios) & (ratios > 0)).all():
        # A ratio of 0 is finite and yet censored: no interval, as with an infinite one.
        return Estimate(float(np.median(ratios)), math.nan, math.nan, len(ratios), "median", "none")
    logs = estimate(np.log(ratios))
    return Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.n, "geometric mean", "t")


def censored(value: float | None) -> float:
    """A time to target with the unreached (None or NaN) as infinity, as the ratios here expect it."""
    return math.inf if value is None or math.isnan(value) else float(value)


#: Statuses of runs that came to an end of their own; the others say nothing of a target yet.
ENDED: Final = ("finished", "diverged", "out_of_memory")


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
    a, b = _shared(reference, contender)
    return Speedup(paired_ratio(reference, contender), int((a == b)[np.isinf(a) | (a == 0)].sum()))


def curve(metrics: pd.DataFrame, *, worst: float = math.inf) -> pd.DataFrame:
    """One label's metric over its steps, summarised over seeds.

    ``metrics`` has the columns ``seed, status, step, value, train_seconds``; a diverged run counts as ``worst``
    (infinity, or minus infinity for a metric that is to rise) after its last evaluation, so that the curve never
    becomes the survivors' average.  Returns ``step, train_seconds (mean), value, low, high, n``, for the
    steps at which every seed has a value; with fewer than six seeds the curve ends where the first one diverged.
    """
    values = metrics.pivot_table(index="step", columns="seed", values="value", aggfunc="last", dropna=False)
    seconds = metrics.groupby("step")["train_seconds"].mean()
    broken = metrics.loc[metrics["status"].isin(("diverged", "out_of_memory")), "seed"].unique()
    values[broken] = values[broken].fillna(worst)
    rows = []
    for step, at_step in zip(values.index, values.to_numpy(float), strict=True):
        if np.isnan(at_step).any():
            continue
        if np.isinf(at_step).any() and len(at_step) < BOOTSTRAP_MINIMUM:
            break
        summary = estimate(at_step)
        rows.append((step, seconds[step], summary.value, summary.low, summary.high, summary.n))
    return pd.DataFrame(rows, columns=["step", "train_seconds", "value", "low", "high", "n"], dtype=float)
