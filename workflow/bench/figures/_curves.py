"""What figures of training share: curves over seeds, the marks of runs that broke down, targets, legends."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.curves import curve
from workflow.bench.figures import _style as style
from workflow.bench.results.columns import ENDED


def ended(metrics: pd.DataFrame, split: str, metric: str) -> pd.DataFrame:
    """One metric's rows of the runs that came to an end of their own; the others have no values that count."""
    chosen = (metrics["split"] == split) & (metrics["metric"] == metric) & metrics["status"].isin(ENDED)
    return metrics[chosen & metrics["value"].notna()]


def targets(runs: pd.DataFrame, split: str, metric: str) -> list[float]:
    """The limits that ``runs`` have as targets on one metric, rising; none where their targets are on others."""
    found = runs["target"].dropna().unique()
    return sorted({target.limit for target in found if (target.split, target.metric) == (split, metric)})


def draw_curves(axes: Axes, metrics: pd.DataFrame, *, x: str, scale: float, rising: bool = False) -> None:
    """Draw every label's curve with its interval, and a cross where a run broke down; ``x`` is divided by ``scale``.

    The limits and the scale of the value axis must be set before.  On a logarithmic axis the summary over seeds is of
    the logarithms, or an interval around a mean would reach below 0.  rising: whether more is better, so that a
    diverged run counts as the lowest value.
    """
    limits = axes.get_ylim()
    is_log = axes.get_yscale() == "log"
    for label in style.in_order(metrics["optimizer"]):
        of_label = metrics[metrics["optimizer"] == label]
        if is_log:
            positive = of_label["value"].astype(float).clip(lower=np.finfo(float).tiny)
            found = curve(of_label.assign(value=np.log(positive)))
            found[["value", "low", "high"]] = np.exp(found[["value", "low", "high"]])
        else:
            found = curve(of_label, worst=-math.inf if rising else math.inf)
        style.draw_curve(axes, found, label, x=x, scale=scale)
    axes.set_ylim(limits)
    for label in style.in_order(metrics["optimizer"]):
        style.mark_failures(axes, metrics[metrics["optimizer"] == label], label, x=x, scale=scale)


def time_scale(metrics: pd.DataFrame) -> tuple[float, str]:
    """The unit in which the training time of ``metrics`` reads well: (seconds a unit, its sign)."""
    return style.time_unit(max(float(metrics["train_seconds"].max()), 1.0))


def accuracy_axis(axes: Axes, metrics: pd.DataFrame) -> None:
    """A linear axis of shares from 0 to 1, as far as ``metrics`` reach, in per cent."""
    values = metrics["value"].astype(float)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = max(0.04 * (high - low), 0.005)
    axes.set_ylim(max(low - margin, 0.0), min(high + margin, 1.0) if high < 1 else 1.01)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")


def legend(labels: Iterable[str], metrics: Iterable[pd.DataFrame]) -> list:
    """Entries for methods, and for bands and crosses where ``metrics`` give rise to any."""
    frames = [frame for frame in metrics if not frame.empty]
    handles: list = [style.method_handle(label) for label in style.in_order(labels)]
    if any(frame["seed"].nunique() > 1 for frame in frames):
        handles.append(style.band_handle("95 % interval"))
    if any((frame["status"] != "finished").any() for frame in frames):
        handles.append(style.failure_handle())
    return handles
