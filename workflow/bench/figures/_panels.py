"""Panels that several figures have: axes and their ticks, and curves over training."""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import curve
from workflow.bench.analysis.estimates import Estimate, median_minimum, shown_level
from workflow.bench.figures import _page as page
from workflow.bench.results.columns import ENDED

ROW_AT_EDGE: Final = ("axes fraction", "data")
"""Coordinates of a point by its share of the panel's width, and its height as data."""
_PLAIN: Final = FuncFormatter(lambda value, _: f"{value:g}")
"""Labels of ticks as plain numbers: 0.5, 1000."""

# Axes and texts


def annotate(axes: Axes, text: str, at: tuple[float, float], coordinates: Any = "axes fraction", **look: Any) -> None:
    """Write a small text at a point of a panel, its middle at the point's height.

    look: properties of the text; ``xytext`` is its distance from the point, in points.
    """
    usual: dict[str, Any] = {"va": "center", "fontsize": 6, "xytext": (0, 0), "textcoords": "offset points"}
    axes.annotate(text, at, xycoords=coordinates, **(usual | look))


def explain_empty(axes: Axes, reason: str, *, width: int = 34) -> None:
    """Write into an empty panel why it is empty, in lines of at most ``width`` characters."""
    white: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    lines = "\n".join(textwrap.wrap(reason, width))
    annotate(axes, lines, (0.5, 0.5), ha="center", fontsize=7, color=page.SOFT, bbox=white)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def fixed_ticks(axis: Axis, values: Iterable[float]) -> None:
    """Put ticks at ``values`` alone, as far as the axis shows them, with plain numbers (0.5, 1000) as their labels."""
    axis.set_major_locator(FixedLocator(sorted(float(value) for value in values)))
    axis.set_major_formatter(_PLAIN)
    axis.set_minor_locator(NullLocator())


def plain_log_ticks(axes: Axes) -> None:
    """Label the ticks of a log y axis with plain numbers (0.02, 5, 1000); a shorter axis has more in a decade."""
    low, high = axes.get_ylim()
    decades = np.log10(high / low)
    if decades > 0.4:
        fewest = {4.0: (1.0,), 2.5: (1.0, 3.0), 1.0: (1.0, 2.0, 5.0), 0.4: (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)}
        subs = next(subs for least, subs in fewest.items() if decades > least)
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    else:  # powers of ten would give one tick or none
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(_PLAIN)
    axes.yaxis.set_minor_formatter(NullFormatter())


def decade_ticks(axis: Axis, most: int = 6) -> None:
    """Put at most so many ticks on a log axis, each at a power of ten, so that no two labels touch."""
    low, high = np.log10(axis.get_view_interval())
    exponents = np.arange(np.ceil(low), np.floor(high) + 1)
    every = max(1, -(-len(exponents) // most))
    axis.set_major_locator(FixedLocator([10.0**exponent for exponent in exponents if exponent % every == 0]))
    axis.set_minor_locator(NullLocator())


def amount(size: float) -> str:
    """Return bytes in the unit that is easy to read."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} B"


def byte_axis(axes: Axes) -> None:
    """Set a logarithmic y axis of bytes."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))


def loss_limits(metrics: pd.DataFrame) -> tuple[float, float, str]:
    """Return the limits and the scale of a loss axis.

    The finished runs fill it, so that a diverging run does not flatten the others.
    """
    finished = metrics.loc[metrics["status"] == "finished", "value"].astype(float)
    values = finished if len(finished) else metrics["value"].astype(float)
    values = values[np.isfinite(values)]
    if values.empty:
        return 0.0, 1.0, "linear"
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > 5:  # closer values are read as well, and without logarithms, on a linear axis
        return low / 1.15, high * 1.15, "log"
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin, "linear"


def loss_axis(axes: Axes, metrics: pd.DataFrame) -> None:
    """Set the limits and the scale of a loss axis (`loss_limits`), before any curve is drawn on it."""
    low, high, scale = loss_limits(metrics)
    axes.set_yscale(scale)
    axes.set_ylim(low, high)


def percent_axis(axis: Axis) -> None:
    """Label shares from 0 to 1 in per cent."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:g}")


def accuracy_axis(axis: Axis, values: pd.Series) -> None:
    """Set an axis of accuracies on which 90, 99 and 99.9 % are equally far apart, in per cent, before curves are drawn.

    On a linear axis all that happens after the first tenth of training lies on its upper edge. An accuracy of 1, which
    has no place there, is half as far from 1 as the nearest smaller one.
    """
    below_one = values[values < 1].astype(float)
    nearest = max((1 - float(below_one.max())) / 2, 1e-4) if len(below_one) else 0.01
    axis.axes.set_yscale(
        "function",
        functions=(
            lambda share: -np.log10(np.maximum(1 - np.asarray(share, float), nearest)),
            lambda place: 1 - 10 ** -np.asarray(place, float),
        ),
    )
    low = max(float(values.min()) - 0.02, 0.0) if len(values) else 0.0
    axis.axes.set_ylim(low, 1 - nearest)
    ticks = {tick: f"{100 * tick:g}" for tick in (0, 0.5, 0.8, 0.9, 0.97, 0.99, 0.997) if low <= tick < 1 - nearest}
    if (values >= 1).any():
        ticks[1 - nearest] = "100"
    axis.set_ticks([*ticks], [*ticks.values()])
    axis.set_minor_locator(NullLocator())


def profile_axes(axes: Axes, end: float) -> None:
    """Set the axes of performance profiles: factors of the best from 1 to ``end``, and shares solved in per cent."""
    axes.set_xscale("log")
    axes.set_xlim(1, end)
    fixed_ticks(axes.xaxis, (1, 2, 4, 8) if end > 4 else (1, 1.5, 2, 3) if end > 2 else (1, 1.2, 1.5, 2))
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.5, 1], ["0", "50", "100"])


# Curves over training


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
    return page.time_unit(max(float(metrics["train_seconds"].max()), 1.0))


def draw_curves(
    axes: Axes,
    metrics: pd.DataFrame,
    *,
    x: str,
    scale: float,
    rising: bool = False,
    marked: Container[str] | None = None,
    goals: Iterable[float] = (),
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
        goals: the runs' targets, thin lines that `target_entry` names.
    """
    limits = axes.get_ylim()
    metrics = metrics.assign(x=metrics[x].astype(float) / scale)
    by_label = {label: metrics[metrics["optimizer"] == label] for label in styles.in_order(metrics["optimizer"])}
    for label, rows in by_label.items():
        worst = -math.inf if rising else math.inf
        summary = curve(rows, worst=worst, logarithmic=axes.get_yscale() == "log")
        if summary.empty:
            continue
        is_marked, look = marked is None or label in marked, styles.style_of(label)
        # About six markers per line, shifted by method, so that lines on top of each other can be told apart.
        every = max(1, len(summary) // 6)
        line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.5 if is_marked else 0.8}
        line |= {"marker": look.marker, "markevery": (zlib.crc32(label.encode()) % every, every), "markersize": 3.4}
        axes.plot(summary[x] / scale, summary["value"], **line, zorder=3)
        # Bands, also those of diverged runs without an upper bound, may leave the panel, but not make the layout wider.
        if is_marked and rows["seed"].nunique() >= median_minimum():
            low, high = (
                np.nan_to_num(summary[end].to_numpy(float), nan=np.nan, posinf=1e30) for end in ("low", "high")
            )
            band = axes.fill_between(summary[x] / scale, low, high, color=look.color, alpha=0.14, linewidth=0)
            band.set_in_layout(False)
        elif is_marked and rows["seed"].nunique() > 1:
            for _, run in rows.dropna(subset=["step"]).sort_values("step").groupby("seed"):
                (thin,) = axes.plot(run["x"], run["value"], color=look.color, linewidth=0.5, alpha=0.5)
                thin.set_in_layout(False)
    axes.set_ylim(limits)  # bands and runs that broke down have moved them
    for label, rows in by_label.items():
        _mark_failures(axes, rows, styles.style_of(label).color)
    for goal in goals:
        axes.axhline(goal, color=page.GUIDE, linewidth=0.7, zorder=1)


def draw_estimates(
    axes: Axes, estimates: Mapping[int, Estimate] | Mapping[float, Estimate], label: str, place: float, **instead: Any
) -> None:
    """Draw a label's estimates over the numbers that they belong to, times ``place``, each interval as a bar.

    instead: replaces properties of the line.
    """
    look = styles.style_of(label)
    x = [place * number for number in estimates]
    line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "marker": look.marker, "linewidth": 1.1}
    axes.plot(x, [found.value for found in estimates.values()], **(line | instead))
    for at, found in zip(x, estimates.values(), strict=True):
        if found.has_interval:
            axes.vlines(at, found.low, found.high, color=look.color, linewidth=1.4, alpha=0.5)


def places_beside(labels: Sequence[str], apart: float) -> dict[str, float]:
    """Return a factor for each label that moves its markers on a logarithmic axis, so that no interval covers another.

    apart: the distance of two labels in the logarithm of the axis.
    """
    return {label: math.exp(apart * (index - (len(labels) - 1) / 2)) for index, label in enumerate(labels)}


def _mark_failures(axes: Axes, metrics: pd.DataFrame, color: str) -> None:
    """Put a large × at the last value of each run that did not finish, or at the edge if the value lies outside."""
    failed = metrics[(metrics["status"] != "finished") & metrics["step"].notna()]
    if failed.empty:
        return
    last = failed.sort_values("step").groupby("run").tail(1)
    # A loss that is no number was on its way up: its cross is at the upper edge.
    heights = last["value"].astype(float).replace(np.nan, np.inf).clip(*axes.get_ylim())
    look: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 7, "markeredgewidth": 1.6, "zorder": 5}
    (crosses,) = axes.plot(last["x"], heights, color=color, clip_on=False, scalex=False, scaley=False, **look)
    crosses.set_in_layout(False)


def draw_losses(
    axes: Axes, losses: pd.DataFrame, *, x: str, scale: float, marked: Container[str] | None = None
) -> None:
    """Draw curves (`draw_curves`) on a loss axis with plain numbers."""
    loss_axis(axes, losses)
    draw_curves(axes, losses, x=x, scale=scale, marked=marked)
    if axes.get_yscale() == "log":
        plain_log_ticks(axes)


def curve_entries(metrics: Sequence[pd.DataFrame], marked: Container[str] | None = None) -> list[Artist]:
    """Return the legend of `draw_curves`: methods, and bands, runs and crosses if the curves have any.

    marked: the labels with bands or runs, as in `draw_curves`.
    """
    frames = [frame for frame in metrics if not frame.empty]
    entries = page.entries_of(label for frame in frames for label in frame["optimizer"])
    seeds = [
        rows["seed"].nunique()
        for frame in frames
        for (_, label), rows in frame.groupby(["workload", "optimizer"])
        if marked is None or label in marked
    ]
    entries += spread_entries(seeds)
    if any((frame["status"] != "finished").any() for frame in frames):
        entries.append(page.guide_entry("run ended here", linestyle="none", marker="x", markersize=6))
    return entries


def spread_entries(seeds: Collection[int]) -> list[Artist]:
    """Return a legend's entries for bands and thin lines of runs, of curves over these numbers of seeds."""
    entries = []
    if any(number >= median_minimum() for number in seeds):
        entries.append(page.band_entry(f"{shown_level()} interval"))
    if any(1 < number < median_minimum() for number in seeds):
        entries.append(page.guide_entry("one run", color="#777777", linewidth=0.5))
    return entries


def target_entry(name: str = "target") -> Artist:
    """Return a legend's entry for the line at a target."""
    return page.guide_entry(name, linewidth=0.7)
