"""Figure 23 (ours): speedups over AdamW over the width of a model, and the largest width as it was predicted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.widths import HELD_OUT, PLACES, Where, Widths, sentences, widths
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

EXPERIMENTS = ("width",)

_APART: Final = 0.035
"""The distance of two labels at one width, in the logarithm of the width."""
_PREDICTED: Final = 0.16
"""The distance of a predicted value from the held-out width, in the logarithm of the width."""
_ROW: Final = 0.19
"""Inches of a row of slopes."""
_NOTES: Final = (
    "Above: AdamW's iterations over the optimizer's, geometric mean over seeds and tuning studies, t interval over "
    "studies; at the final quality: to what AdamW has reached after 90 % of its steps; over the sweep: the geometric "
    "mean over the targets. Hollow: what a straight line through the smaller widths has at the largest, one line in "
    "each study",
    "Below: the slope of the lines over all widths on these axes, the mean and t interval over studies; below 0 the "
    "speedup shrinks with width. At the right: what the runs say of the prediction",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw speedups over the width at the final quality and over the sweep, and below their slopes."""
    found = widths(results)
    labels = styles.in_order(found.labels)
    below = _ROW * len(labels)
    figure, axes = page.new_figure(2, 2, height=2.9 + below, sharey="row", height_ratios=(2.2, below))
    for (upper, lower), where in zip(axes.T, PLACES, strict=True):
        upper.set_title(where)
        _draw_speedups(upper, found, labels, where)
        _draw_slopes(lower, found, labels, where)
    axes[0, 0].set_ylabel("speedup in iterations\nover AdamW")
    panels.plain_log_ticks(axes[0, 0])
    legend = [*page.entries_of(labels), page.hollow_entry("predicted"), page.bar_entry()]
    notes = [*_NOTES, *sentences(found, lambda label: styles.style_of(label).name)]
    text = page.caption(results, found.runs, notes=notes, summarized=False)
    reading = "Hollow: what the smaller widths predict."
    return page.save(figure, folder, "fig23_width", legend, text, _message(found), reading)


def _message(found: Widths) -> str:
    """Return the title: MKOR's speedup at the smallest and the largest width, at the final quality."""
    speedups = found.speedups("mkor", PLACES[0]) if "mkor" in found.labels else {}
    if len(speedups) < 2:
        return ""
    (small, first), *_, (large, last) = speedups.items()
    ends = f"{first.value:.2f} at width {small:g}, {last.value:.2f} at {large:g}"
    return f"{styles.data_title(found.runs)}: MKOR's speedup in iterations over AdamW {PLACES[0]} is {ends}"


def _draw_speedups(axes: Axes, found: Widths, labels: list[str], where: Where) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axhline(1, color=page.GUIDE, linewidth=0.8)
    for label, place in panels.places_beside(labels, _APART).items():
        panels.draw_estimates(axes, found.speedups(label, where), label, place)
        if (extrapolated := found.extrapolated(label, where)) is not None:
            hollow = {HELD_OUT * math.exp(_PREDICTED): extrapolated.predicted}
            panels.draw_estimates(axes, hollow, label, place, linestyle="none", markerfacecolor="white")
    panels.fixed_ticks(axes.xaxis, sorted({*found.sweeps, HELD_OUT}))
    axes.set_xlabel("width")


def _draw_slopes(axes: Axes, found: Widths, labels: list[str], where: Where) -> None:
    axes.axvline(0, color=page.GUIDE, linewidth=0.8)
    for row, label in enumerate(labels):
        if (slope := found.slope(label, where)) is not None:
            forest.draw_estimate(axes, slope, row, label)
        extrapolated = found.extrapolated(label, where)
        forest.write_beside(axes, row, extrapolated.decision if extrapolated else "not tested", "prediction")
    forest.name_rows(axes, [styles.style_of(label).name for label in labels])
    axes.set_xlabel("slope")
