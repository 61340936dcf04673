"""Comparison of runs at equal iterations: values at the last step at which all finished runs were evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from workflow.bench.results.columns import BROKEN_DOWN
from workflow.bench.results.tables import NoDataError


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
    step = float(finished.groupby("run")["step"].max().min())
    rows = finished[finished["step"] == step].drop_duplicates("run")
    broken = metrics[metrics["status"].isin(BROKEN_DOWN)].drop_duplicates("run").assign(value=float("inf"))
    kept = [frame for frame in (rows, broken) if not frame.empty]
    return pd.concat(kept), step


def by_seed(rows: pd.DataFrame, column: str = "value") -> Mapping[int, float]:
    """Return ``{seed: value}`` of rows with one row a seed."""
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows[column], strict=True)}
