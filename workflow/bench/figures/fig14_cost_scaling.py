"""Figure 14 (ours): time of a factor update and of preconditioning over the width of a layer, with fitted slopes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow.bench.analysis.captions import footer
from workflow.bench.analysis.fits import mean_by_width, width_law
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import fixed_ticks, plain_log_ticks
from workflow.bench.figures._page import save
from workflow.bench.results.tables import Results

PROBES = ("cost_scaling",)
PARTS: Final = {"factor": "factor update", "precondition": "preconditioning"}
FLOOR: Final = "floor"


def _draw(axes: Axes, rows: pd.DataFrame, label: str) -> None:
    """Draw the geometric means of the repeats over the width, their range, and the fitted power law."""
    look = style.style_of(label)
    times, law = mean_by_width(rows), width_law(rows)
    spread = rows.groupby("dimension")["ms"].agg(["min", "max"])
    axes.plot(times.index, times, color=look.color, linestyle="none", marker=look.marker)
    axes.vlines(times.index, spread["min"], spread["max"], color=look.color, linewidth=1.6, alpha=0.55)
    if law is not None:
        widths = np.array([times.index.min(), times.index.max()], float)
        axes.plot(
            widths, law.coefficient * widths**law.exponent, color=look.color, linestyle=style.MODEL_LINE, linewidth=0.9
        )


def _entry(rows: pd.DataFrame, label: str) -> Artist:
    """Return a legend entry with the slopes of the parts, in the order of the panels."""
    look = style.style_of(label)
    of_label = rows[rows["optimizer"] == label]
    laws = [width_law(of_label[of_label["part"] == part]) for part in (FLOOR, *PARTS) if part in set(of_label["part"])]
    slopes = "; ".join("no slope" if law is None else f"{law.exponent:.2f}" for law in laws)
    return _legend.marker_entry(look, label=f"{look.name} ({slopes})")


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
    panels[0].set_ylabel("time (ms)")
    legend = [_entry(rows, label) for label in labels]
    legend.append(
        Line2D([], [], color=style.GUIDE, linestyle=style.MODEL_LINE, linewidth=0.9, label="fitted power law")
    )
    notes = [
        "markers: geometric means of the repeats; bars: fastest and slowest repeat; in brackets: slopes of the "
        "logarithms, fitted to the means of all widths, for the factor update (for the copy in case of the memory "
        "floor), then for preconditioning",
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
        f"{label} {part} at {', '.join(f'{d:g}' for d in timed['dimension'])}"
        for (label, part), timed in once.groupby(["optimizer", "part"])
    )
