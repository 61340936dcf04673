"""Curves over the steps of training: their rows, targets and units, and one curve with its interval per label."""

from __future__ import annotations

import math
import zlib
from collections.abc import Container

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.curves import curve
from workflow.bench.analysis.estimates import median_minimum
from workflow.bench.figures import _style as style
from workflow.bench.results.columns import ENDED


def ended(metrics: pd.DataFrame, split: str, metric: str) -> pd.DataFrame:
    """Return the rows of one metric, of runs that finished or broke down."""
    chosen = (metrics["split"] == split) & (metrics["metric"] == metric) & metrics["status"].isin(ENDED)
    return metrics[chosen & metrics["value"].notna()]


def losses_to_compare(metrics: pd.DataFrame) -> pd.DataFrame:
    """Return the validation losses, and the one row of each run without evaluations, which may have broken down."""
    losses, unevaluated = ended(metrics, "validation", "loss"), metrics[metrics["split"].isna()]
    return pd.concat([losses, unevaluated]) if len(unevaluated) else losses


def targets(runs: pd.DataFrame, split: str, metric: str) -> list[float]:
    """Return the limits of the targets that ``runs`` have on one metric, in rising order."""
    goals = runs["target"].dropna().unique()
    return sorted({goal.limit for goal in goals if (goal.split, goal.metric) == (split, metric)})


def time_scale(metrics: pd.DataFrame) -> tuple[float, str]:
    """Return the unit in which the training time of ``metrics`` is easy to read: its seconds, and its symbol."""
    return style.time_unit(max(float(metrics["train_seconds"].max()), 1.0))


def draw_curves(
    axes: Axes,
    metrics: pd.DataFrame,
    *,
    x: str,
    scale: float,
    rising: bool = False,
    marked: Container[str] | None = None,
) -> None:
    """Draw every label's curve over its runs, with an interval if they are many, and a cross where a run broke down.

    An interval of fewer than `median_minimum` runs would fill the panel: their runs are thin lines instead. The limits
    and the scale of the value axis must be set before. A logarithmic axis shows the statistics of the logarithms, since
    an interval around a mean could reach below 0.

    Args:
        axes: the panel.
        metrics: rows of one metric, of all labels.
        x: ``step`` or ``train_seconds``.
        scale: the unit of x.
        rising: whether more is better; then a diverged run counts as the lowest value.
        marked: the labels with intervals or runs, and with a thick line; None: all of them.
    """
    limits = axes.get_ylim()
    for label, rows in _by_label(metrics):
        if axes.get_yscale() == "log":
            positive = rows["value"].astype(float).clip(lower=np.finfo(float).tiny)
            summary = curve(rows.assign(value=np.log(positive)))
            summary[["value", "low", "high"]] = np.exp(summary[["value", "low", "high"]])
        else:
            summary = curve(rows, worst=-math.inf if rising else math.inf)
        if summary.empty:
            continue
        is_marked = marked is None or label in marked
        _draw_curve(axes, summary.assign(x=summary[x] / scale), label, width=1.5 if is_marked else 0.8)
        if is_marked and has_interval(rows):
            _draw_band(axes, summary.assign(x=summary[x] / scale), label)
        elif is_marked and rows["seed"].nunique() > 1:
            _draw_runs(axes, rows.assign(x=rows[x].astype(float) / scale), label)
    axes.set_ylim(limits)
    for label, rows in _by_label(metrics):
        _mark_failures(axes, rows.assign(x=rows[x].astype(float) / scale), label)


def has_interval(rows: pd.DataFrame) -> bool:
    """Return whether a curve over these rows, of one label, has a band; with fewer seeds its runs are drawn."""
    return int(rows["seed"].nunique()) >= median_minimum()


def _by_label(metrics: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(label, metrics[metrics["optimizer"] == label]) for label in style.in_order(metrics["optimizer"])]


def _draw_curve(axes: Axes, summary: pd.DataFrame, label: str, width: float) -> None:
    """Draw one curve (`analysis.curves.curve`, with a column ``x``)."""
    look = style.style_of(label)
    # About six markers per line, shifted by method, so that lines on top of each other can be told apart.
    every = max(1, len(summary) // 6)
    axes.plot(
        summary["x"],
        summary["value"],
        color=look.color,
        linestyle=look.line,
        linewidth=width,
        marker=look.marker,
        markevery=(zlib.crc32(label.encode()) % every, every),
        markersize=3.4,
        zorder=3,
    )


def _draw_band(axes: Axes, summary: pd.DataFrame, label: str) -> None:
    """Draw the interval of a curve as a band."""
    # An infinite bound (diverged runs) is drawn as a band that leaves the panel.
    low, high = (np.nan_to_num(summary[bound].to_numpy(float), nan=np.nan, posinf=1e30) for bound in ("low", "high"))
    color = style.style_of(label).color
    axes.fill_between(summary["x"], low, high, color=color, alpha=0.14, linewidth=0).set_in_layout(False)


def _draw_runs(axes: Axes, rows: pd.DataFrame, label: str) -> None:
    """Draw each run of a label (with a column ``x``) as a thin line."""
    for _, run in rows.dropna(subset=["step"]).sort_values("step").groupby("seed"):
        (line,) = axes.plot(run["x"], run["value"], color=style.style_of(label).color, linewidth=0.5, alpha=0.5)
        line.set_in_layout(False)


def _mark_failures(axes: Axes, metrics: pd.DataFrame, label: str) -> None:
    """Put a large × at the last value of each run that did not finish, or at the edge if the value lies outside.

    ``metrics`` has a column ``x``. The limits of ``axes`` must be set before.
    """
    failed = metrics[(metrics["status"] != "finished") & metrics["step"].notna()]
    if failed.empty:
        return
    last = failed.sort_values("step").groupby("run").tail(1)
    (crosses,) = axes.plot(
        last["x"],
        last["value"].astype(float).replace(np.nan, np.inf).clip(*axes.get_ylim()),
        linestyle="none",
        marker="x",
        markersize=7,
        markeredgewidth=1.6,
        color=style.style_of(label).color,
        clip_on=False,
        zorder=5,
        scalex=False,
        scaley=False,
    )
    crosses.set_in_layout(False)
