"""Statistics over seeds: estimates with intervals, and paired differences and ratios.

Pure functions on numbers. Six or more seeds give a median with an interval, two to five a mean with a
t interval, one seed a value without an interval. The level of the intervals is 95 %, or within `looks` higher: then the
median takes more seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri, stdtrit

LEVEL: Final = 0.95
"""The probability that an interval holds the truth, at every look at the results."""

_LOOKS: Final[ContextVar[int]] = ContextVar("looks", default=1)


@contextmanager
def looks(number: int) -> Iterator[None]:
    """Within this context, intervals hold the truth at all of ``number`` looks at once with a probability of `LEVEL`.

    Seeds are added until a claim is decided, so it may be judged several times. Each look spends an equal share of the
    5 % (Bonferroni), which is valid for every kind of interval, however the looks depend on each other.
    """
    # Contexts nest: a claim of a probe is judged at one look inside a table of several.
    before = _LOOKS.set(number)
    try:
        yield
    finally:
        _LOOKS.reset(before)


def current_level() -> float:
    """Return the level of an interval: `LEVEL`, or within `looks` the level of one look."""
    number = _LOOKS.get()
    # For one look the level itself: 1 - (1 - .95) differs from it in the last bit, and so would every interval.
    return LEVEL if number == 1 else 1 - (1 - LEVEL) / number


def shown_level() -> str:
    """Return the level of an interval as text: ``95 %``."""
    return f"{100 * current_level():.4g} %"


def median_minimum() -> int:
    """Return the fewest values whose median has an interval; the range of fewer does not cover it with the level."""
    return math.ceil(1 - math.log2(1 - current_level()))


StatisticName = Literal["median", "mean", "geometric mean", "ratio of means", "minimum", "maximum", "single value"]

IntervalMethod = Literal["order-statistics", "t", "Fieller", "range", "none"]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval ``[low, high]``, from ``n`` values; without an interval the bounds are NaN."""

    value: float
    low: float
    high: float
    n: int
    statistic: StatisticName
    interval_method: IntervalMethod
    is_ratio: bool = False
    """Whether the value is a ratio, of which 1 means no effect, and not a difference."""

    @property
    def has_interval(self) -> bool:
        """Whether the estimate has an interval."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    def contains(self, value: float) -> bool:
        """Return whether the interval contains a value; without an interval it contains none."""
        return self.low <= value <= self.high

    @property
    def smallest_visible(self) -> float | None:
        """The smallest effect that such an interval sets apart from none: a factor of a ratio, or a difference.

        None without a finite interval; half its length, on the scale of logarithms for a ratio.
        """
        if not self.has_interval or math.isinf(self.low) or math.isinf(self.high):
            return None
        if not self.is_ratio:
            return (self.high - self.low) / 2
        return math.sqrt(self.high / self.low) if self.low > 0 else None

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate with value and bounds multiplied by ``factor``."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)

    def within(self, least: float, most: float) -> Estimate:
        """Return the estimate of a quantity that cannot lie outside ``[least, most]``: its interval ends there."""
        return replace(self, low=max(self.low, least), high=min(self.high, most)) if self.has_interval else self


def median_interval(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Return an interval of the median of `median_minimum` or more ``values [n]``, infinite ones but no NaN.

    Between the k-th smallest and the k-th largest value the median lies with a probability that the binomial
    distribution gives for any distribution of the values. The two pairs whose probabilities enclose the level are
    interpolated (Hettmansperger and Sheather, 1986). A bootstrap of the median would miss it in 8 % at eight values.
    """
    level = current_level()
    sample = np.sort(np.asarray(values, dtype=np.float64))
    n = len(sample)
    coverage = 1 - 2 * bdtr(np.arange(n // 2), n, 0.5)  # of the (k + 1)-th smallest and largest
    # The narrowest pair that covers at least the level; the next pair inside covers less.
    k = int(np.flatnonzero(coverage >= level)[-1])
    inner, outer = (coverage[k + 1] if k + 1 < len(coverage) else 0.0), coverage[k]
    excess = (outer - level) / (outer - inner)
    share = (n - k - 1) * excess / (k + 1 + (n - 2 * (k + 1)) * excess)
    return _between(sample[k], sample[k + 1], share), _between(sample[n - 1 - k], sample[n - 2 - k], share)


def _between(start: float, end: float, share: float) -> float:
    """Interpolate; next to an infinite value the start itself."""
    # The start is the outer value: where nothing can be interpolated, the interval is the wider one.
    if math.isinf(start) or math.isinf(end):
        return float(start)
    return float(start + share * (end - start))


def t_interval(values: Sequence[float] | NDArray[np.float64], *, level: float | None = None) -> tuple[float, float]:
    """Return Student's t interval of the mean of two or more finite ``values [n]``."""
    level = current_level() if level is None else level
    sample = np.asarray(values, dtype=np.float64)
    half = stdtrit(len(sample) - 1, (1 + level) / 2) * sample.std(ddof=1) / math.sqrt(len(sample))
    return float(sample.mean() - half), float(sample.mean() + half)


def estimate(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Return the median with `median_interval` of six or more values, the mean with a t interval of two to five.

    A single value is returned without an interval. Infinite values are censored or diverged runs: fewer than six
    values of which one is infinite give a median without an interval.

    Raises:
        ValueError: there are no values, or one is NaN.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        raise ValueError("An estimate needs at least one value, got none.")
    if np.isnan(sample).any():
        raise ValueError("An estimate of NaN is undefined: leave out the runs without a value and name them.")
    n = len(sample)
    # A median assumes nothing of the distribution, and runs that broke down cannot move it far.
    if n >= median_minimum():
        return Estimate(float(np.median(sample)), *median_interval(sample), n, "median", "order-statistics")
    if n == 1:
        return Estimate(float(sample[0]), math.nan, math.nan, 1, "single value", "none")
    # A mean with an infinite value is infinite, whatever the other seeds did.
    if np.isinf(sample).any():
        return Estimate(float(np.median(sample)), math.nan, math.nan, n, "median", "none")
    return Estimate(float(sample.mean()), *t_interval(sample), n, "mean", "t")


def wider_half(widths: Iterable[float]) -> list[float]:
    """Return the upper half of distinct widths, with the middle one, to which power laws of costs are fitted (C11)."""
    ordered = sorted({*widths})
    return ordered[len(ordered) // 2 :]


def extreme(values: Sequence[float] | NDArray[np.float64], which: Literal["minimum", "maximum"]) -> Estimate:
    """Return the smallest or largest of all values, for claims about every case; its interval is the value itself.

    A NaN is a trial that broke down and counts as the worst value, an infinity.

    Raises:
        ValueError: there are no values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        raise ValueError("An extreme needs at least one value, got none.")
    worst = -math.inf if which == "minimum" else math.inf
    sample = np.where(np.isnan(sample), worst, sample)
    # What was seen of every case has no sampling error that an interval could hold.
    value = float(sample.min() if which == "minimum" else sample.max())
    return Estimate(value, value, value, len(sample), which, "range")


def shared_seeds(left: Mapping[int, float], right: Mapping[int, float]) -> tuple[NDArray[np.float64], ...]:
    """Return the values of the seeds that both mappings have, in the order of the seeds."""
    seeds = sorted(left.keys() & right.keys())
    return np.array([left[seed] for seed in seeds], float), np.array([right[seed] for seed in seeds], float)


def paired_difference(
    left: Mapping[int, float], right: Mapping[int, float], studies: Mapping[int, float] | None = None
) -> Estimate | None:
    """Estimate ``left - right`` over the seeds that both have; None if they share no seed with a difference.

    An infinite value is a run that diverged, the worst of all: the difference to it is infinite. A pair is left out if
    both diverged, since that tells neither from the other. studies: as in `over_studies`.
    """
    return over_studies({seed: left[seed] - right[seed] for seed in left.keys() & right.keys()}, studies or {})


def paired_ratio(
    numerator: Mapping[int, float], denominator: Mapping[int, float], studies: Mapping[int, float] | None = None
) -> Estimate | None:
    """Estimate ``numerator / denominator``, positive values, over the seeds that both have; None without a pair.

    An infinite value is censored (the target was not reached) and makes the ratio infinite or 0. A pair is left out if
    both values are infinite, or if both are 0 because the target was met before the first step. Two to five pairs give
    a geometric mean, so that the estimates of a ratio and of its inverse agree.

    studies: the tuning study of each seed. The interval then is that of several studies' geometric means
    (`study_means`); a median stays that of the seeds, since a mean is lost with one infinite value.
    """
    a, b = shared_seeds(numerator, denominator)
    kept = (np.isfinite(a) | np.isfinite(b)) & ((a > 0) | (b > 0))
    if not kept.any():
        return None
    # Against a target met before the first step everybody is infinitely slow: a value, not an error.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = of_seeds = a[kept] / b[kept]
        seeds = np.array(sorted(numerator.keys() & denominator.keys()))[kept]
        units, number = study_means(np.log(ratios), seeds.tolist(), studies or {})
    if number > 1:
        # The mean of a study with an infinite ratio and one of 0 is unknown. An interval of the other studies would be
        # shorter the more runs miss the target.
        if np.isnan(units).any():
            return Estimate(float(np.median(of_seeds)), math.nan, math.nan, number, "median", "none", is_ratio=True)
        ratios = np.exp(units)
    if len(ratios) >= median_minimum() or len(ratios) == 1:
        return replace(with_median_of(estimate(ratios), of_seeds), is_ratio=True)
    if not (np.isfinite(ratios) & (ratios > 0)).all():
        # A ratio of 0 is censored like an infinite one, so there is no interval.
        return Estimate(float(np.median(of_seeds)), math.nan, math.nan, len(ratios), "median", "none", is_ratio=True)
    return mean_ratio(np.log(ratios))


def with_median_of(found: Estimate, values: NDArray[np.float64]) -> Estimate:
    """Return an estimate over studies with the median of all seeds' ``values [n]``, if it is a median."""
    return replace(found, value=float(np.median(values))) if found.statistic == "median" else found


def mean_ratio(logarithms: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Estimate a ratio from finite logarithms of its values: the geometric mean, with a t interval of two or more."""
    mean = mean_of_units(logarithms)
    statistic: StatisticName = "geometric mean" if mean.n > 1 else "single value"
    value, low, high = map(math.exp, (mean.value, mean.low, mean.high))
    return Estimate(value, low, high, mean.n, statistic, mean.interval_method, is_ratio=True)


def mean_of_units(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Estimate a mean from one or more finite values that need no protection from outliers, such as means themselves.

    It has a t interval, whatever the number of values, where `estimate` takes the median of six or more.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 1:
        return Estimate(float(sample[0]), math.nan, math.nan, 1, "single value", "none")
    return Estimate(float(sample.mean()), *t_interval(sample), len(sample), "mean", "t")


def ratio_of_means(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Estimate | None:
    """Estimate the ratio of two means over the units that both have, with Fieller's interval.

    It holds every ratio ``r`` for which the t interval of the mean of ``numerator - r * denominator`` contains 0. None
    unless two units are shared and the t interval of the denominators' mean lies above 0: then every ratio could be
    the true one. Of the 95 % intervals of such ratios, over 20,000 draws of units whose deviations have a correlation
    of .5 and, in shares of the mean denominator, this standard deviation, this share covered the true ratio:

    ===============  =======  =====  =====  =====
    deviations       units    .1     .3     .6
    ===============  =======  =====  =====  =====
    normal, true .2  8        .949   .949   .949
    normal, true 1   8        .948   .948   .949
    normal, true .2  3        .948   .948   .945
    t with 4, .2     8        .959   .959   .959
    log-normal, .2   8        .905   .905   .905
    log-normal, 1    8        .940   .940   .939
    ===============  =======  =====  =====  =====

    The logarithm of the last two has a standard deviation of .7; a t interval of a mean covers as little there. The
    delta method covers between .897 and .957 in the rows with eight units.
    """
    x, y = shared_seeds(numerator, denominator)
    n = len(x)
    if n < 2:
        return None
    (xx, xy), (_, yy) = np.cov(x, y) / n * stdtrit(n - 1, (1 + current_level()) / 2) ** 2
    mean_x, mean_y = float(x.mean()), float(y.mean())
    # The bounds are the roots of a r^2 - 2 b r + c.
    a, b, c = mean_y**2 - yy, mean_x * mean_y - xy, mean_x**2 - xx
    if mean_y <= 0 or a <= 0:
        return None
    # Not below 0 but for rounding, as where both are equal in every unit.
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return Estimate(mean_x / mean_y, float(b - root) / a, float(b + root) / a, n, "ratio of means", "Fieller")


def crossed_ratio(logarithms: NDArray[np.float64]) -> Estimate:
    """Estimate a ratio from the logarithms ``[seeds, blocks]`` of its value for each seed and each block of rounds.

    Seeds and blocks vary independently of each other: the variance of the mean is the sum of both, with the degrees of
    freedom of Welch and Satterthwaite. A single seed or block gives no interval.
    """
    seeds, blocks = logarithms.shape
    value = math.exp(float(logarithms.mean()))
    if min(seeds, blocks) < 2:
        statistic: StatisticName = "single value" if seeds == 1 else "geometric mean"
        return Estimate(value, math.nan, math.nan, seeds, statistic, "none", is_ratio=True)
    # Each seed meets every block, so that either mean is free of the other's noise.
    samples = (logarithms.mean(axis=1), logarithms.mean(axis=0))
    parts = [(float(sample.var(ddof=1)) / len(sample), len(sample) - 1) for sample in samples]
    total = sum(variance for variance, _ in parts)
    # Without any variance the degrees of freedom do not matter.
    freedom = total**2 / sum(variance**2 / degrees for variance, degrees in parts) if total else 1.0
    factor = math.exp(float(stdtrit(freedom, (1 + current_level()) / 2)) * math.sqrt(total))
    return Estimate(value, value / factor, value * factor, seeds, "geometric mean", "t", is_ratio=True)


def seeds_needed(values: Sequence[float] | NDArray[np.float64], effect: float) -> int:
    """Return how many such values show a mean of this size with a probability of 80 %, by their standard deviation.

    values: two or more; infinite ones are left out. The normal approximation, at the level of the intervals.
    """
    sample = np.asarray(values, dtype=np.float64)
    spread = float(sample[np.isfinite(sample)].std(ddof=1))
    return math.ceil(((ndtri((1 + current_level()) / 2) + ndtri(0.8)) * spread / effect) ** 2)


def studies_of(*runs: pd.DataFrame) -> dict[int, float]:
    """Return the tuning study of each seed, from rows of ``<experiment>.runs.csv``; untuned seeds are left out.

    Several frames are labels that are paired by seed: of two studies, the first label's counts.
    """
    studies: dict[int, float] = {}
    for rows in runs:
        tuned = rows.dropna(subset="study")
        for seed, study in zip(tuned["seed"].astype(int), tuned["study"].astype(float), strict=True):
            studies.setdefault(seed, study)
    return studies


def study_means(
    values: NDArray[np.float64], seeds: Sequence[int], studies: Mapping[int, float]
) -> tuple[NDArray[np.float64], int]:
    """Return the independent units ``[units, ...]`` of ``values [seeds, ...]``, and the number of studies.

    They are the means of the studies, or the values themselves if fewer than two studies are known. An error of a
    study's choice of hyperparameters shifts all of its seeds, so that they do not vary independently. Of three 95 %
    intervals of a mean over 8 seeds of 3 studies, simulated with normal errors 20,000 times (the bootstrap 1,500
    times), this share covered the truth:

    ====================================  =====  =====  =====  =====  =====  =====
    share of the variance due to studies   0     .1     .25    .5     .75    .95
    ====================================  =====  =====  =====  =====  =====  =====
    t over the seeds, as if independent   .952   .930   .897   .837   .758   .685
    bootstrap over studies and seeds      .923   .899   .879   .829   .781   .755
    t over the means of the studies       .951   .950   .949   .950   .950   .949
    ====================================  =====  =====  =====  =====  =====  =====

    With 16 seeds the first two cover less (down to .504 and .737), the last as much. The price of the last is length:
    1.6 times that of independent seeds where studies do not matter. More studies shorten the interval, more seeds of
    the same studies hardly: 10 seeds of 5 studies have a factor of 1.2.
    """
    which = np.array([studies.get(seed, np.nan) for seed in seeds])
    # With one study there is nothing between studies to estimate: its seeds are the units.
    names = np.unique(which[~np.isnan(which)])
    if len(names) < 2:
        return values, len(names)
    return np.stack([values[which == name].mean(axis=0) for name in names]), len(names)


def over_studies(values: Mapping[int, float], studies: Mapping[int, float]) -> Estimate | None:
    """Estimate values by seed, with the interval of the means of several studies; None without a value that is no NaN.

    The mean of a study with an infinite value is infinite. A study with values of both signs of infinity is left out.
    """
    return estimate(units) if len(units := units_over_studies(values, studies)) else None


def units_over_studies(values: Mapping[int, float], studies: Mapping[int, float]) -> NDArray[np.float64]:
    """Return the independent units ``[units]`` that `over_studies` estimates from."""
    seeds = [seed for seed in sorted(values) if not math.isnan(values[seed])]
    with np.errstate(invalid="ignore"):
        units, _ = study_means(np.array([values[seed] for seed in seeds], float), seeds, studies)
    return units[~np.isnan(units)]
