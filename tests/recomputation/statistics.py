"""Estimates with intervals, and verdicts, by textbook formulas. A `Found` without an interval has bounds of NaN."""

from __future__ import annotations

from math import exp, isinf, isnan, nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from tests.recomputation.reading import Condition


class Found(NamedTuple):
    """A value with its interval."""

    value: float
    low: float = nan
    high: float = nan


def mean(values: np.ndarray, level: float) -> Found:
    """The mean with Student's interval."""
    center = float(np.mean(values))
    if len(values) < 2:
        return Found(center)
    half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * stats.sem(values)
    return Found(center, center - half, center + half)


def median(values: np.ndarray, level: float) -> Found | None:
    """The median with Hettmansperger and Sheather's interval (1986); None if the range covers it with less.

    Of the intervals from the d-th smallest to the d-th largest value the two whose coverages enclose the level are
    interpolated: the lower bound is ``(1 - w) x(d) + w x(d+1)``, with ``w = (n - d) I / (d + (n - 2 d) I)`` and
    ``I = (coverage(d) - level) / (coverage(d) - coverage(d + 1))``.
    """
    ordered, n = np.sort(values), len(values)
    ranks = np.arange(1, n // 2 + 2)
    coverage = stats.binom.cdf(n - ranks, n, 0.5) - stats.binom.cdf(ranks - 1, n, 0.5)
    if not (coverage >= level).any():
        return None
    d = int(ranks[coverage >= level].max())
    share = (coverage[d - 1] - level) / (coverage[d - 1] - coverage[d])
    weight = (n - d) * share / (d + (n - 2 * d) * share)
    # Infinity has no weighted mean: the outer value is the bound.
    low, high = (
        outer if isinf(outer) or isinf(inner) else (1 - weight) * outer + weight * inner
        for outer, inner in ((ordered[d - 1], ordered[d]), (ordered[n - d], ordered[n - d - 1]))
    )
    return Found(float(np.median(ordered)), float(low), float(high))


def summary(values: np.ndarray, level: float) -> Found:
    """The median where its interval exists, else the mean; a lone value, or an infinite one of few, has no interval."""
    if (found := median(values, level)) is not None:
        return found
    return Found(float(np.median(values))) if np.isinf(values).any() else mean(values, level)


def difference(left: pd.Series, right: pd.Series, level: float, studies: pd.Series | None = None) -> Found | None:
    """``left - right`` where both have a value, by study if there are several; infinite on both sides tells nothing."""
    values = (left - right).dropna()
    if studies is not None and (known := studies.reindex(values.index).dropna()).nunique() > 1:
        values = values[known.index].groupby(known).mean().dropna()
    return summary(values.to_numpy(float), level) if len(values) else None


def ratio(above: pd.Series, below: pd.Series, level: float) -> Found | None:
    """``above / below`` where both have a value: the median, or the geometric mean of few."""
    pairs = pd.concat([above, below], axis=1, join="inner").to_numpy(float)
    pairs = pairs[~(np.isinf(pairs).all(axis=1) | (pairs == 0).all(axis=1))]
    if not len(pairs):
        return None
    with np.errstate(divide="ignore"):
        ratios = pairs[:, 0] / pairs[:, 1]
        if median(ratios, level) is not None or not (np.isfinite(ratios) & (ratios > 0)).all():
            return median(ratios, level) or Found(float(np.median(ratios)))
    return Found(*np.exp(mean(np.log(ratios), level)))


def crossed(logs: np.ndarray, level: float) -> Found:
    """The geometric mean over ``logs [units, blocks]``, whose variances add up (Welch and Satterthwaite)."""
    center = logs.mean()
    if min(logs.shape) < 2:
        return Found(exp(center))
    errors, degrees = np.array([stats.sem(logs.mean(axis=axis)) ** 2 for axis in (1, 0)]), np.array(logs.shape) - 1
    total = errors.sum()
    half = stats.t.ppf(0.5 + level / 2, total**2 / (errors**2 / degrees).sum()) * total**0.5 if total else 0.0
    return Found(exp(center), exp(center - half), exp(center + half))


def extreme(values: pd.Series | np.ndarray, worst: float) -> Found:
    """The largest (worst: inf) or smallest (-inf) of all values, where NaN is the worst."""
    filled = np.where(np.isnan(np.asarray(values, float)), worst, np.asarray(values, float))
    value = float(filled.max() if worst > 0 else filled.min())
    return Found(value, value, value)


def verdict(found: Found, condition: Condition, fall: float = 1.0) -> str:
    """The verdict that an interval supports."""
    sign, threshold, margin, kind = condition
    if isnan(found.low) or isnan(found.high):
        return "inconclusive"
    size = (margin or 0.0) * (fall if kind == "fall" else 1.0)
    least, most = (
        (threshold / (1 + size), threshold * (1 + size)) if kind == "%" else (threshold - size, threshold + size)
    )
    # No worse, that is >= or <=, holds up to the margin.
    bound = threshold if len(sign) == 1 else least if sign[0] == ">" else most
    flip = 1 if sign[0] == ">" else -1
    ends = sorted((flip * found.low, flip * found.high))
    holds = [end > flip * bound or (len(sign) == 2 and end == flip * bound) for end in ends]
    if margin is not None and len(sign) == 1 and least <= found.low and found.high <= most:
        return "no difference"
    return "confirmed" if all(holds) else "inconclusive" if any(holds) else "refuted"


def of_all(verdicts: list[str]) -> str:
    """The verdict on a claim of all parts."""
    if not set(verdicts) - {"not tested"}:
        return "not tested"
    order = ("refuted", "inconclusive", "not tested", "no difference", "confirmed")
    first = min(verdicts, key=order.index)
    return "inconclusive" if first == "not tested" else first
