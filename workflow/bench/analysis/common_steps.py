"""Comparing runs at equal iterations: their values at the last step that all of them were evaluated at."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from workflow.bench.results.columns import BROKEN_DOWN
from workflow.bench.results.tables import NoDataError


def last_common_values(metrics: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """One row a run at the last step that every finished run of ``metrics`` was evaluated at, and that step.

    "At equal iterations" means this.  A run that broke down is kept with an infinite value, so that it counts as the
    worst and is never dropped in silence; one that was skipped or stopped, or is missing, says nothing, and the
    caption names it.  NoDataError where no run finished.
    """
    finished = metrics[(metrics["status"] == "finished") & metrics["step"].notna()]
    if finished.empty:
        raise NoDataError("No run finished, so there is no last evaluation to compare.")
    step = float(finished.groupby("run")["step"].max().min())
    rows = finished[finished["step"] == step].drop_duplicates("run")
    others = metrics[metrics["status"].isin(BROKEN_DOWN)].drop_duplicates("run").assign(value=float("inf"))
    kept = [frame for frame in (rows, others) if not frame.empty]
    return pd.concat(kept, ignore_index=True), step


def by_seed(rows: pd.DataFrame, column: str = "value") -> Mapping[int, float]:
    """``{seed: value}`` of rows that hold one row a seed."""
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows[column], strict=True)}
