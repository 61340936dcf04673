"""Statistics over seeds: estimates with intervals, paired contrasts, censored targets, verdicts.

Pure functions on numbers; nothing here reads a file.  Six or more seeds carry a median with a bootstrap
interval, two to five a mean with a t interval, one seed no interval at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

LEVEL: Final = 0.95


#: The fewest values of which a bootstrap interval is taken: below, resampling cannot cover 95 %.
BOOTSTRAP_MINIMUM: Final = 6


RESAMPLES: Final = 4000


Statistic = Literal["median", "mean", "geometric mean", "minimum", "maximum", "single value"]


Method = Literal["bootstrap", "t", "range", "none"]


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


def shared_seeds(left: Mapping[int, float], right: Mapping[int, float]) -> tuple[NDArray[np.float64], ...]:
    """Values of the seeds that both sides have, in the order of the seeds."""
    seeds = sorted(left.keys() & right.keys())
    return np.array([left[seed] for seed in seeds], float), np.array([right[seed] for seed in seeds], float)


def paired_difference(left: Mapping[int, float], right: Mapping[int, float]) -> Estimate | None:
    """Estimate of ``left - right`` over the seeds both have, or None where they share none.

    A pair of which one side is not finite (a diverged run) is left out; the caller names it.
    """
    a, b = shared_seeds(left, right)
    kept = np.isfinite(a) & np.isfinite(b)
    return estimate((a - b)[kept]) if kept.any() else None


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Estimate | None:
    """Estimate of ``numerator / denominator`` (positive values) over the seeds both have, or None without any.

    An infinite value is a censored one (target never reached): its ratio is infinite or 0.  A pair that is censored
    on both sides, or 0 on both (a target met before the first step), says nothing and is left out.  Below six pairs
    the mean is taken of the logarithms, so that a ratio and its inverse agree.
    """
    a, b = shared_seeds(numerator, denominator)
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
