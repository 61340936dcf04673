"""Laws fitted to measured times: powers of a width, affine costs of a batch, alpha-beta costs of a message.

Pure functions on numbers. All fits minimize relative errors, because times span decades.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
from scipy.optimize import nnls

Milliseconds = TypeVar("Milliseconds", float, pd.Series)


class PowerLaw(NamedTuple):
    """``y = coefficient * x ** exponent``."""

    coefficient: float
    exponent: float


class Affine(NamedTuple):
    """``y = constant + slope * x``, both at least 0."""

    constant: float
    slope: float

    def at(self, x: float) -> float:
        """Return y at x."""
        return self.constant + self.slope * x


class AlphaBeta(NamedTuple):
    """The cost of a message: alpha seconds to start it, beta seconds a byte."""

    alpha: float
    beta: float


class Collective(NamedTuple):
    """One timed collective; its payload is that of one rank."""

    workers: int
    payload_bytes: float
    seconds: float


def cycle_mean(refresh_ms: Milliseconds, other_ms: Milliseconds, period: float) -> Milliseconds:
    """Return the mean time of a step over a cycle of ``period`` steps, one of which refreshes."""
    return (refresh_ms + (period - 1) * other_ms) / period


def power_law(sizes: Sequence[float], values: Sequence[float]) -> PowerLaw:
    """Fit ``y = c x^e`` by least squares of the logarithms, so the exponent is a log-log slope.

    Raises:
        ValueError: there are fewer than two sizes, or a number is not above 0.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"A slope needs two sizes, got {sorted(set(sizes))}.")
    if min(*sizes, *values) <= 0:
        raise ValueError("A power law needs positive sizes and values.")
    exponent, logarithm = np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float)), 1)
    return PowerLaw(math.exp(logarithm), float(exponent))


def width_laws(times: pd.DataFrame) -> dict[int, PowerLaw]:
    """Fit a power law to the times over widths of each repeat: ``{repeat: law}``; empty for fewer than two widths.

    A width that was timed once counts in every repeat; a repeat that lacks another width is left out.

    Args:
        times: rows of ``probes/cost_scaling.csv`` of one optimizer's part, with ``dimension, repeat, ms``.
    """
    table = times.pivot_table(index="repeat", columns="dimension", values="ms", aggfunc="first")
    once = table.columns[table.notna().sum() == 1]
    table[once] = table[once].ffill().bfill()
    whole = table.dropna()
    if whole.shape[1] < 2:
        return {}
    widths = [float(width) for width in whole.columns]
    return {
        int(str(repeat)): power_law(widths, list(row))
        for repeat, row in zip(whole.index, whole.to_numpy(float), strict=True)
    }


def mean_by_width(times: pd.DataFrame) -> pd.Series:
    """Return the geometric mean of ``ms`` over repeats by ``dimension``, from rows as in `width_laws`."""
    logarithms = pd.DataFrame({"dimension": times["dimension"], "log": np.log(times["ms"].astype(float))})
    means: pd.Series = np.exp(logarithms.groupby("dimension")["log"].mean())
    return means


def width_law(times: pd.DataFrame) -> PowerLaw | None:
    """Fit one power law to `mean_by_width`, in which every width counts once; None for fewer than two widths.

    Its exponent is the mean of those of `width_laws` if every repeat has all widths that were timed more than once.
    """
    means = mean_by_width(times)
    return power_law([float(d) for d in means.index], list(means)) if len(means) > 1 else None


def affine(x: Sequence[float], y: Sequence[float]) -> Affine:
    """Fit ``y = c + s x`` with c, s >= 0 to positive y.

    Raises:
        ValueError: there are fewer than two different x.
    """
    if len(set(x)) < 2:
        raise ValueError(f"An affine law needs two points, got {sorted(set(x))}.")
    constant, slope = _relative_fit([[1.0, value] for value in x], y)
    return Affine(constant, slope)


def all_reduce_terms(workers: int, payload_bytes: float) -> tuple[float, float]:
    """Return a ring all-reduce's factors of alpha and beta: ``2 (p - 1)`` messages of ``n / p`` bytes each."""
    return 2.0 * (workers - 1), 2.0 * (workers - 1) / workers * payload_bytes


def broadcast_terms(workers: int, payload_bytes: float) -> tuple[float, float]:
    """Return a binomial tree broadcast's factors of alpha and beta: ``ceil(log2 p)`` messages of n bytes."""
    rounds = float(math.ceil(math.log2(workers)))
    return rounds, rounds * payload_bytes


def all_gather_terms(workers: int, payload_bytes: float) -> tuple[float, float]:
    """Return a ring all-gather's factors of alpha and beta: ``p - 1`` messages of a rank's n bytes."""
    return workers - 1.0, (workers - 1.0) * payload_bytes


Terms = Callable[[int, float], tuple[float, float]]
TERMS: dict[str, Terms] = {
    "all_reduce": all_reduce_terms,
    "broadcast": broadcast_terms,
    "all_gather": all_gather_terms,
}


def alpha_beta(collective: str, timed: Sequence[Collective]) -> AlphaBeta:
    """Fit alpha and beta, both at least 0, to one collective's times.

    Raises:
        ValueError: there are fewer than two times, or the collective has no model in `TERMS`.
    """
    if collective not in TERMS:
        raise ValueError(f"{collective!r} has no alpha-beta model; {', '.join(TERMS)} have one.")
    if len(timed) < 2:
        raise ValueError(f"alpha and beta need two times, got {len(timed)}.")
    terms = [list(TERMS[collective](one.workers, one.payload_bytes)) for one in timed]
    return AlphaBeta(*_relative_fit(terms, [one.seconds for one in timed]))


def collective_seconds(collective: str, workers: int, payload_bytes: float, cost: AlphaBeta) -> float:
    """Return the modeled seconds of one collective; 0 for one worker or an empty payload."""
    if workers == 1 or payload_bytes == 0:
        return 0.0
    starts, sent = TERMS[collective](workers, payload_bytes)
    return starts * cost.alpha + sent * cost.beta


def _relative_fit(terms: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, float]:
    """Return non-negative coefficients that minimize the sum of squared relative errors."""
    matrix = np.asarray(terms, float) / np.asarray(values, float)[:, None]
    scales = matrix.max(axis=0)  # columns differ by many decades, which nnls does not handle well
    solution, _ = nnls(matrix / scales, np.ones(len(values)))
    first, second = solution / scales
    return float(first), float(second)
