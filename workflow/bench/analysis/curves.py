"""A metric over the steps of training: its curve over seeds, its values where runs are compared, and its fall."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import median_interval, median_minimum
from workflow.bench.results.columns import BROKEN_DOWN
from workflow.bench.results.tables import NoDataError


def curve(metrics: pd.DataFrame, *, worst: float = math.inf, logarithmic: bool = False) -> pd.DataFrame:
    """Return one label's metric over its steps: the median over seeds, with its interval where they are enough.

    A run that broke down counts as ``worst`` after its last evaluation, so that the curve never becomes that of the
    surviving runs; and since it is a median, the huge losses before a run breaks down do not move it either.

    Args:
        metrics: rows of one metric, with the columns ``seed, status, step, value, train_seconds``.
        worst: the worst value of the metric: infinity, or minus infinity for one that rises.
        logarithmic: whether the statistics are those of the logarithms, for a logarithmic axis: an interval around a
            median could otherwise reach below 0.

    Returns:
        Columns ``step, train_seconds, value, low, high, n`` at the steps at which every seed has a value;
        ``train_seconds`` are means over seeds. ``low`` and ``high`` are NaN for fewer seeds than `median_minimum`.
    """
    if logarithmic:
        # The loss of a run that broke down may be 0, which has no logarithm.
        positive = metrics["value"].astype(float).clip(lower=np.finfo(float).tiny)
        found = curve(metrics.assign(value=np.log(positive)), worst=worst)
        found[["value", "low", "high"]] = np.exp(found[["value", "low", "high"]])
        return found
    values = metrics.pivot_table(index="step", columns="seed", values="value", aggfunc="last", dropna=False)
    seconds = metrics.groupby("step")["train_seconds"].mean()
    broken = metrics.loc[metrics["status"].isin(BROKEN_DOWN), "seed"].unique()
    values[broken] = values[broken].fillna(worst)
    rows = []
    for step, at_step in zip(values.index, values.to_numpy(float), strict=True):
        # An interrupted run's later losses are unknown, not bad: a step that one seed lacks is left out for all.
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


def last_common_values(metrics: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Return one row a run at the last step at which every finished run of ``metrics`` was evaluated, and that step.

    A run that broke down is kept with an infinite value, so it counts as the worst instead of being dropped. Runs that
    were skipped, interrupted or not trained are left out; the caption names them.

    Raises:
        NoDataError: no run finished.
    """
    finished = metrics[(metrics["status"] == "finished") & metrics["step"].notna()]
    if finished.empty:
        raise NoDataError("No run finished, so there is no last evaluation to compare.")
    # Budgets may differ: at the end of the shortest, no run is credited with steps that another did not take.
    step = float(finished.groupby("run")["step"].max().min())
    rows = finished[finished["step"] == step].drop_duplicates("run")
    broken = metrics[metrics["status"].isin(BROKEN_DOWN)].drop_duplicates("run").assign(value=float("inf"))
    kept = [frame for frame in (rows, broken) if not frame.empty]
    return pd.concat(kept), step


def by_seed(rows: pd.DataFrame, column: str = "value") -> Mapping[int, float]:
    """Return ``{seed: value}`` of rows with one row a seed."""
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows[column], strict=True)}
