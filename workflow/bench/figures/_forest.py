"""Rows of methods, one below another: a marker with its interval or its runs, and what stands beside a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import by_seed, last_common_values
from workflow.bench.analysis.estimates import Estimate, estimate, median_minimum
from workflow.bench.figures import _page as page
from workflow.bench.figures._panels import ROW_AT_EDGE, annotate, explain_empty
from workflow.bench.results.tables import NoDataError

_LEAST, _MOST = 1e-9, 1e9
"""Where the bar of an interval without an end stops, beyond the edges of every panel of ratios."""


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """Set up one row per name, the first on top; names are empty if a panel to the left shows them."""
    shown = list(names)
    axes.set_yticks(range(len(shown)), shown, fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def shown_value(estimate: Estimate, runs: Sequence[float]) -> float:
    """Return the place of `draw_estimate`'s marker: the estimate's, or of too few runs for one their median."""
    return estimate.value if len(runs) >= median_minimum() else float(np.median(runs))


def draw_estimate(
    axes: Axes, estimate: Estimate, row: float, label: str, *, runs: Sequence[float] | None = None
) -> None:
    """Draw a method's marker at the value of an estimate, and its interval as a bar.

    runs: the values of the runs, if they are dots (`draw_runs`). Fewer than `median_minimum` of them have no bar, since
    a t interval of two or three fills the panel and says less than they do; the marker is then at their median.
    """
    look, value = styles.style_of(label), estimate.value if runs is None else shown_value(estimate, runs)
    if estimate.has_interval and (runs is None or len(runs) >= median_minimum()):
        draw_interval(axes, estimate, row, look.color)
    axes.plot(value, row, marker=look.marker, color=look.color, markersize=5)


def draw_interval(axes: Axes, estimate: Estimate, row: float, color: str) -> None:
    """Draw an interval as a bar; where a ratio's has no end, infinity or 0, it has an arrow at the panel's edge."""
    look: dict[str, Any] = {"color": color, "linewidth": 2.2, "alpha": 0.55}
    # A little inside, where no text stands.
    open_ends = [(0.99, ">", estimate.high == math.inf), (0.01, "<", estimate.is_ratio and estimate.low == 0)]
    if not any(is_open for *_, is_open in open_ends):
        axes.hlines(row, estimate.low, estimate.high, **look)
        return
    ends = (max(estimate.low, _LEAST), min(estimate.high, _MOST))
    # As an artist, so that the far end does not stretch the axis; the other one has room on it.
    bar = axes.add_artist(Line2D(ends, (row, row), solid_capstyle="butt", **look))
    bar.set_in_layout(False)
    axes.update_datalim([(end, row) for end in ends if _LEAST < end < _MOST])
    axes.autoscale_view()
    for edge, marker, is_open in open_ends:
        if is_open:
            axes.plot(
                edge, row, marker=marker, color=color, markersize=4, transform=axes.get_yaxis_transform(), clip_on=False
            )


def undecided(ratio: Estimate) -> str:
    """Return the remark of a title on a ratio of one run, or without an interval that leaves out 1; empty on others."""
    if ratio.n == 1:
        return " (one run)"
    return " (undecided)" if ratio.contains(1) or not ratio.has_interval else ""


def draw_runs(axes: Axes, values: Sequence[float], row: float, label: str, *, below: float = 0.26) -> None:
    """Draw one dot per run, a part of a row below the row's marker."""
    axes.plot(values, [row + below] * len(values), ".", color=styles.style_of(label).color, markersize=3, alpha=0.75)


def final_changes(losses: pd.DataFrame, base: str | None) -> tuple[dict[str, list[float]], float]:
    """Return by how many per cent each label's final loss differs from the base's, and the iteration of all losses.

    The values are paired by seed; that of a run that broke down is infinite, and a seed whose base broke down has none.

    Raises:
        NoDataError: no run finished, or none of the base optimizer.
    """
    last, step = last_common_values(losses)
    finals = {str(label): by_seed(rows) for label, rows in last.groupby("optimizer")}
    reference = {seed: value for seed, value in finals.get(base or "", {}).items() if 0 < value < math.inf}
    if not reference:
        raise NoDataError("the base optimizer has no run to pair with")
    changes = {
        label: [100 * (value / reference[seed] - 1) for seed, value in by_label.items() if seed in reference]
        for label, by_label in finals.items()
    }
    return changes, step


def draw_differences(axes: Axes, losses: pd.DataFrame, base: str | None, labels: Sequence[str]) -> None:
    """Draw one row per label: by how many per cent the final loss differs from the base's; small dots are the seeds.

    A panel without differences gives the reason, and so does a row whose label has no run. The markers set the limits
    of the axis: a run far outside is a triangle at the edge, so that one that went wrong hides no other.

    Args:
        axes: the panel.
        losses: evaluations of one metric, and one row of each run that broke down before its first evaluation.
        base: label of the base optimizer, whose own row has its marker at 0; None if it did not run.
        labels: the rows from top to bottom.
    """
    try:
        changes, step = final_changes(losses, base)
    except NoDataError as error:
        explain_empty(axes, str(error))
        return
    assert base is not None
    axes.axvline(0, color=page.GUIDE, linewidth=0.8)
    centers, runs = [0.0], {}
    for row, label in enumerate(labels):
        if label not in changes:
            white = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            annotate(axes, "not run", (0.97, row), ROW_AT_EDGE, ha="right", color=page.SOFT, bbox=white)
            continue
        finite = [value for value in changes[label] if math.isfinite(value)]
        if label == base:  # its difference from itself, as the scale of the others
            look = styles.style_of(label)
            axes.plot(0, row, marker=look.marker, color=look.color, markersize=5)
        elif finite:
            draw_estimate(axes, estimate(finite), row, label, runs=finite)
            centers.append(float(np.median(finite)))
            runs[row, label] = finite
        if len(finite) < len(changes[label]):  # the loss of a run that broke down is infinite
            write_beside(axes, row, f"{len(finite)} of {len(changes[label])}", "finished")
    _limit(axes, centers, [value for values in runs.values() for value in values])
    for (row, label), values in runs.items():
        _draw_inside(axes, values, row, label)
    name_rows(axes, [styles.style_of(label).name for label in labels])
    # Fixed, since `_page.arrange` wants three ticks of a locator that chooses; 0 and another one are a scale, too.
    low, high = axes.get_xlim()
    ticks = MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0"))
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel(f"loss at step {step:g},\n% against {styles.style_of(base).short}'s")


def _limit(axes: Axes, centers: Sequence[float], values: Sequence[float]) -> None:
    """Limit the horizontal axis to the markers and what lies as far again from them, or to all values if nearer."""
    low, high = min(centers), max(centers)
    room = 0.6 * (high - low) or max(map(abs, values), default=1.0) or 1.0
    margin = 0.12 * (high - low) or 0.1 * room
    axes.set_xlim(max(low - room, min([low, *values]) - margin), min(high + room, max([high, *values]) + margin))


def _draw_inside(axes: Axes, values: Sequence[float], row: float, label: str) -> None:
    """Draw one dot per run below the row's marker, and a triangle at the edge for those that lie outside."""
    low, high = axes.get_xlim()
    draw_runs(axes, [value for value in values if low <= value <= high], row, label)
    look: dict[str, Any] = {"color": styles.style_of(label).color, "linestyle": "none", "markersize": 3.5}
    for edge, marker, is_beyond in ((low, "<", min(values) < low), (high, ">", max(values) > high)):
        if is_beyond:
            axes.plot(edge, row + 0.26, marker=marker, zorder=5, clip_on=False, **look)


def write_beside(axes: Axes, row: float, text: str, header: str = "") -> None:
    """Write a text to the right of a row, outside of the panel, and once the header above all of them, if any."""
    annotate(axes, text, (1, row), ROW_AT_EDGE, xytext=(3, 0), color=page.SOFT)
    if header and header not in {written.get_text() for written in axes.texts}:
        annotate(axes, header, (1, 1), xytext=(3, 1.5), color=page.SOFT, va="bottom")
