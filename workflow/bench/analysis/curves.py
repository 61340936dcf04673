"""A metric over the steps of training, summarized over seeds."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import median_interval, median_minimum
from workflow.bench.results.columns import BROKEN_DOWN


def curve(metrics: pd.DataFrame, *, worst: float = math.inf) -> pd.DataFrame:
    """Return one label's metric over its steps: the median over seeds, with its interval where they are enough.

    A run that broke down counts as ``worst`` after its last evaluation, so that the curve never becomes that of the
    surviving runs; and since it is a median, the huge losses before a run breaks down do not move it either.

    Args:
        metrics: rows of one metric, with the columns ``seed, status, step, value, train_seconds``.
        worst: the worst value of the metric: infinity, or minus infinity for one that rises.

    Returns:
        Columns ``step, train_seconds, value, low, high, n`` at the steps at which every seed has a value;
        ``train_seconds`` are means over seeds. ``low`` and ``high`` are NaN for fewer seeds than `median_minimum`.
    """
    values = metrics.pivot_table(index="step", columns="seed", values="value", aggfunc="last", dropna=False)
    seconds = metrics.groupby("step")["train_seconds"].mean()
    broken = metrics.loc[metrics["status"].isin(BROKEN_DOWN), "seed"].unique()
    values[broken] = values[broken].fillna(worst)
    rows = []
    for step, at_step in zip(values.index, values.to_numpy(float), strict=True):
        if np.isnan(at_step).any():
            continue
        low, high = median_interval(at_step) if len(at_step) >= median_minimum() else (math.nan, math.nan)
        rows.append((step, seconds[step], float(np.median(at_step)), low, high, len(at_step)))
    return pd.DataFrame(rows, columns=["step", "train_seconds", "value", "low", "high", "n"], dtype=float)


def fall_of(rows: pd.DataFrame) -> float:
    """Return what a loss falls by in training, the mean over the runs that finished; NaN without any.

    rows: the evaluations of one loss.
    """
    falls = []
    for _, run in rows[rows["status"] == "finished"].dropna(subset=["value"]).groupby("run"):
        values = run.sort_values("step")["value"].astype(float)
        falls.append(float(values.iloc[0] - values.iloc[-1]))
    return fmean(falls) if falls else np.nan
