"""Figure 10: the rank-1 error of the second moments over training, mean over layers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow.bench.figures import _probes, _rank1
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import Results

PROBES = ("rank1_error",)
BAND = (0.25, 0.75)
"""Quantiles over layers and seeds that the bands span."""


def over_training(errors: pd.DataFrame) -> pd.DataFrame:
    """Mean, low and high (`BAND`) over layers and seeds by step; errors: rows of one side and approximation."""
    by_step = errors.dropna(subset="error").groupby("step")["error"]
    return pd.DataFrame({"mean": by_step.mean(), "low": by_step.quantile(BAND[0]), "high": by_step.quantile(BAND[1])})


def _draw(axes: Axes, errors: pd.DataFrame, look: style.MethodStyle) -> None:
    summary = over_training(errors)
    axes.fill_between(summary.index, summary["low"], summary["high"], color=look.color, alpha=0.14, linewidth=0)
    axes.plot(summary.index, summary["mean"], color=look.color, linestyle=look.line, marker=look.marker)
    if errors["seed"].nunique() > 1:
        for _, of_seed in errors.groupby("seed"):
            mean = of_seed.groupby("step")["error"].mean()
            axes.plot(mean.index, mean, color=look.color, linewidth=0.5, alpha=0.8)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the mean error over iterations by workload (columns) and side (rows).

    Raises NoDataError where the probe rank1_error has no rows.
    """
    rows = _rank1.read(results)
    names = _probes.workloads(rows)
    figure, axes = style.new_figure(len(_rank1.SIDES), len(names), height=3.6, sharex="col", sharey=True)
    for column, workload in enumerate(names):
        axes[0, column].set_title(style.workload_name(workload))
        for row, side in enumerate(_rank1.SIDES):
            for approximation, look in _rank1.APPROXIMATIONS.items():
                here = (rows["workload"] == workload) & (rows["side"] == side)
                errors = rows[here & (rows["approximation"] == approximation)]
                if errors["error"].notna().any():
                    _draw(axes[row, column], errors, look)
        axes[-1, column].set_xlabel("iteration")
    highest = max(1.0, float(rows["error"].max()))
    axes[0, 0].set_ylim(-0.04, 1.06 * highest)
    for row, side in enumerate(_rank1.SIDES.values()):
        axes[row, 0].set_ylabel(f"error, {side}")
    handles: list = [
        Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker, label=look.name)
        for look in _rank1.APPROXIMATIONS.values()
    ]
    handles.append(style.band_handle(f"quantiles {BAND[0]} to {BAND[1]} of layers and seeds"))
    notes = ["relative Frobenius error; lines: mean over layers and seeds, thin ones of each seed"]
    style.finish(figure, handles, _rank1.footer(results, rows, notes), columns=2)
    return style.save(figure, folder, "fig10_rank1_over_training")
