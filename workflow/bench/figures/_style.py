"""The look of every figure: the theme; analysis.looks has the look of each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow.bench.analysis.looks import MethodStyle

WIDTH: Final = 5.5
"""Inches: the text width of a one-column paper."""
INK: Final = "#222222"
SOFT: Final = "#666666"
GUIDE: Final = "#444444"
"""Color of everything that belongs to no method: targets, published values, lines of no difference."""
MODEL_LINE: Final = "--"

_FONT_SCALE: Final = 0.885
"""8.5 points for titles and labels of axes, 7.8 for ticks and legends."""
_THEME: Final[Any] = {
    "axes.grid": True,
    "axes.linewidth": 0.6,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "lines.markersize": 4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: text in a PDF can be searched
    "savefig.dpi": 220,
    "svg.hashsalt": "figure",
}
"""Differences from seaborn's theme for papers."""


def new_figure(rows: int, columns: int, *, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """Return a figure of ``rows x columns`` panels, one text column wide and ``height`` inches high, and its axes."""
    # Matplotlib ships this font. Other fonts are not on every machine, so figures would differ.
    sns.set_theme(context="paper", style="ticks", font="DejaVu Sans", font_scale=_FONT_SCALE, rc=_THEME)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False, **options)
    return figure, axes


def split_row(figure: Figure, panels: np.ndarray, number: int) -> list[Axes]:
    """Put so many panels in the place of a row's, which may be another number, and return them."""
    place = panels[0].get_subplotspec()
    cells = place.get_gridspec()[place.rowspan.start, :].subgridspec(1, number)
    for panel in panels:
        panel.remove()
    return [figure.add_subplot(cells[0, column]) for column in range(number)]


def probed_workloads(rows: pd.DataFrame) -> list[str]:
    """Return the workloads of a probe's rows in the order of all figures: these three first, the others by name."""
    timed = set(rows["workload"].dropna().astype(str))
    first = [name for name in ("bert", "resnet", "autoencoder") if name in timed]
    return first + sorted(timed - set(first))


def seaborn_looks(looks: Mapping[str, MethodStyle]) -> dict[str, Any]:
    """Return the arguments with which seaborn's ``lineplot`` draws each name in its look, by hue and style."""
    return {
        "hue_order": list(looks),
        "style_order": list(looks),
        "palette": {name: look.color for name, look in looks.items()},
        "markers": {name: look.marker for name, look in looks.items()},
        "dashes": {name: "" if look.line == "-" else look.line[1] for name, look in looks.items()},
    }


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which ``seconds`` is easy to read: its length in seconds, and its symbol."""
    for length, symbol in ((2 * 86400, "d"), (2 * 3600, "h"), (2 * 60, "min")):
        if seconds >= length:
            return length / 2, symbol
    return (1.0, "s") if seconds >= 0.5 else (1e-3, "ms")
