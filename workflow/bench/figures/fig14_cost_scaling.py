"""Figure 14 (ours): time of a factor update and of preconditioning over the width of a layer, with fitted slopes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.fits import mean_by_width, width_law
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import fixed_ticks, plain_log_ticks
from workflow.bench.figures._captions import footer
from workflow.bench.figures._page import save
from workflow.bench.results.tables import Results

PROBES = ("cost_scaling",)
PARTS: Final = {"factor": "factor update", "precondition": "preconditioning"}
FLOOR: Final = "floor"
_APART: Final = 0.055
"""The least distance of two exponents, as a share of the panel's height."""


def _draw(axes: Axes, rows: pd.DataFrame, label: str) -> None:
    """Draw the geometric means of the repeats over the width, and their range."""
    look, times = style.style_of(label), mean_by_width(rows)
    spread = rows.groupby("dimension")["ms"].agg(["min", "max"])
    axes.plot(times.index, times, color=look.color, linewidth=0.8, marker=look.marker)
    axes.vlines(times.index, spread["min"], spread["max"], color=look.color, linewidth=1.6, alpha=0.55)


def _name_slopes(axes: Axes, rows: pd.DataFrame) -> None:
    """Write the exponent of each label's fitted power law to the right of its last point, without overlap."""
    low, high = np.log10(axes.get_ylim())
    lowest = -1.0
    ends = {str(label): float(mean_by_width(times).iloc[-1]) for label, times in rows.groupby("optimizer")}
    for label in sorted(ends, key=lambda label: ends[label]):
        law = width_law(rows[rows["optimizer"] == label])
        if law is None:
            continue
        lowest = max((np.log10(ends[label]) - low) / (high - low), lowest + _APART)
        axes.annotate(
            f"$d^{{{law.exponent:.2f}}}$",
            (1, lowest),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=style.style_of(label).color,
        )


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the times of both parts and of copying a matrix over the width, on logarithmic axes.

    Raises:
        NoDataError: the probe cost_scaling has no rows.
    """
    rows = results.some_rows("cost_scaling")
    figure, (panels,) = style.new_figure(1, len(PARTS), height=3.0, sharey=True)
    labels = style.in_order(rows["optimizer"])
    for panel, (part, title) in zip(panels, PARTS.items(), strict=True):
        panel.set_title(title)
        panel.set_xscale("log")
        panel.set_yscale("log")
        for label in labels:
            times = rows[(rows["optimizer"] == label) & rows["part"].isin((part, FLOOR))]
            if len(times):
                _draw(panel, times, label)
        fixed_ticks(panel.xaxis, rows["dimension"].unique())
        panel.set_xlabel("width d of the layer")
    plain_log_ticks(panels[0])
    for panel, part in zip(panels, PARTS, strict=True):
        _name_slopes(panel, rows[rows["part"].isin((part, FLOOR))])
    panels[0].set_ylabel("time (ms)")
    legend = [_legend.marker_entry(style.style_of(label)) for label in labels]
    notes = [
        "markers: geometric means of the repeats; bars: fastest and slowest repeat; right of the curves: exponent of "
        "the power law in the width d, fitted to the means of all widths. A curve that bends follows none: at small "
        "widths fixed costs are measured",
        "factor update: one factor of width d, without the capture of its rows; preconditioning: a gradient [d, d] "
        "with the factors of both sides; memory floor: a float32 matrix [d, d] copied into another",
    ]
    if once := _timed_once(rows):
        notes.append(f"timed only once, because slow: {once}")
    caption = footer(results, rows, notes=notes)
    return save(figure, folder, "fig14_cost_scaling", legend=legend, caption=caption, columns=2)


def _timed_once(rows: pd.DataFrame) -> str:
    """Return the optimizers, parts and widths that were timed only once, for the caption."""
    counts = rows.groupby(["optimizer", "part", "dimension"]).size()
    once = counts[(counts == 1) & (counts.max() > 1)].reset_index()
    return ", ".join(
        f"{style.style_of(str(label)).name} {PARTS.get(str(part), part)} at {', '.join(map('{:g}'.format, widths))}"
        for (label, part), widths in once.groupby(["optimizer", "part"])["dimension"]
    )
