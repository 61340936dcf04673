"""Rows of methods, one below another: a marker with its interval or its runs, and what stands beside a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import by_seed, last_common_values
from workflow.bench.analysis.estimates import Estimate, median_minimum, paired_ratio, studies_of
from workflow.bench.figures import _page as page
from workflow.bench.figures._panels import ROW_AT_EDGE, annotate
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
    ends = (max(estimate.low, _LEAST) if estimate.is_ratio else estimate.low, min(estimate.high, _MOST))
    # As an artist, so that the far end does not stretch the axis; the other one has room on it.
    bar = axes.add_artist(Line2D(ends, (row, row), solid_capstyle="butt", **look))
    bar.set_in_layout(False)
    axes.update_datalim([(end, row) for end in ends if _LEAST < abs(end) < _MOST])
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


def draw_censored(axes: Axes, ratios: Sequence[float], height: float, label: str) -> bool:
    """Put a triangle at the left edge if a ratio is 0, its base never arrived, and at the right if one is infinite.

    Return whether there is a triangle.
    """
    look: dict[str, Any] = {"color": styles.style_of(label).color, "markersize": 3.2, "clip_on": False}
    for edge, marker, ratio in ((0, "<", 0.0), (1, ">", math.inf)):
        if ratio in ratios:
            axes.plot(edge, height, marker=marker, transform=axes.get_yaxis_transform(), **look)
    return 0.0 in ratios or math.inf in ratios


@dataclass(frozen=True)
class FinalChange:
    """By how many per cent a label's final loss differs from the base optimizer's, paired by seed."""

    by_seed: Mapping[int, float]
    """Of a run that broke down it is infinite, the worst."""
    estimate: Estimate
    """The median of the runs, or the geometric mean of few of them, with the interval over tuning studies."""

    @property
    def shown(self) -> float:
        """The value of a marker and of a title."""
        return shown_value(self.estimate, [*self.by_seed.values()])


def final_changes(losses: pd.DataFrame, runs: pd.DataFrame, base: str | None) -> tuple[dict[str, FinalChange], float]:
    """Return the change of each label that has a pair with the base, and the iteration of all losses.

    A seed whose base broke down has no pair.

    Args:
        losses: evaluations of one metric, and one row of each run that broke down before its first evaluation.
        runs: the rows of these runs, with their tuning studies.
        base: label of the base optimizer; None if it did not run.

    Raises:
        NoDataError: no run finished, or none of the base optimizer.
    """
    last, step = last_common_values(losses)
    finals = {str(label): by_seed(rows) for label, rows in last.groupby("optimizer")}
    reference = {seed: value for seed, value in finals.get(base or "", {}).items() if 0 < value < math.inf}
    if not reference:
        raise NoDataError("the base optimizer has no run to pair with")
    found = {}
    for label, values in finals.items():
        if ratio := paired_ratio(values, reference, studies_of(runs[runs["optimizer"] == label])):
            ends = {name: 100 * (getattr(ratio, name) - 1) for name in ("value", "low", "high")}
            changes = {seed: 100 * (values[seed] / reference[seed] - 1) for seed in values.keys() & reference.keys()}
            found[label] = FinalChange(changes, replace(ratio, **ends, is_ratio=False))
    return found, step


def write_beside(axes: Axes, row: float, text: str, header: str = "") -> None:
    """Write a text to the right of a row, outside of the panel, and once the header above all of them, if any."""
    annotate(axes, text, (1, row), ROW_AT_EDGE, xytext=(5, 0), color=page.SOFT)
    if header and header not in {written.get_text() for written in axes.texts}:
        annotate(axes, header, (1, 1), xytext=(5, 1.5), color=page.SOFT, va="bottom")
