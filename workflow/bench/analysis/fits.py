"""Laws of measured times: powers of a width, fitted to relative errors because times span decades; means of a cycle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

Milliseconds = TypeVar("Milliseconds", float, pd.Series)


class PowerLaw(NamedTuple):
    """``y = coefficient * x ** exponent``."""

    coefficient: float
    exponent: float


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
    # The slowest widths are timed once: they carry no noise of their own.
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
