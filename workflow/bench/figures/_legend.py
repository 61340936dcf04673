"""Entries of a legend: methods, intervals, failures, published values."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workflow.bench.analysis.estimates import shown_level
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import has_interval


def line_entry(look: style.MethodStyle, **instead: Any) -> Line2D:
    """Return an entry with a method's line and marker; ``instead`` replaces properties of the line."""
    shown = {"color": look.color, "linestyle": look.line, "marker": look.marker, "label": look.name}
    return Line2D([], [], **(shown | instead))


def marker_entry(look: style.MethodStyle, **instead: Any) -> Line2D:
    """Return an entry with a method's marker alone."""
    return line_entry(look, **({"linestyle": "none"} | instead))


def band_entry(name: str) -> Patch:
    """Return an entry for intervals drawn as bands."""
    return Patch(color="#999999", alpha=0.35, linewidth=0, label=name)


def bar_entry(name: str) -> Line2D:
    """Return an entry for intervals drawn as bars."""
    return Line2D([], [], color="#777777", linestyle="none", marker="|", markersize=9, markeredgewidth=1.6, label=name)


def runs_entry() -> Line2D:
    """Return an entry for runs drawn as thin lines."""
    return Line2D([], [], color="#777777", linewidth=0.5, label="one run")


def target_entry(name: str = "target") -> Line2D:
    """Return an entry for the line at a target."""
    return Line2D([], [], color=style.GUIDE, linewidth=0.7, label=name)


def failure_entry() -> Line2D:
    """Return an entry for runs that did not finish."""
    return Line2D([], [], color=style.GUIDE, linestyle="none", marker="x", markersize=6, label="run ended here")


def hollow_entry(name: str, marker: str = "o", **look: Any) -> Line2D:
    """Return an entry with a hollow marker, by convention that of a published value."""
    return Line2D(
        [], [], color=style.GUIDE, linestyle="none", marker=marker, markerfacecolor="none", label=name, **look
    )


def published_entry(name: str) -> Line2D:
    """Return an entry for published values."""
    return hollow_entry(name, markeredgewidth=1.1)


def of_curves(
    labels: Iterable[str], metrics: Iterable[pd.DataFrame], marked: Container[str] | None = None
) -> list[Artist]:
    """Return entries for methods, and for bands, runs and crosses if the curves of ``metrics`` have any.

    marked: the labels with bands or runs, as in `draw_curves`.
    """
    frames = [frame for frame in metrics if not frame.empty]
    entries: list[Artist] = [line_entry(style.style_of(label)) for label in style.in_order(labels)]
    shown = [
        rows
        for frame in frames
        for label, rows in frame.groupby(["workload", "optimizer"])
        if (marked is None or label[1] in marked) and rows["seed"].nunique() > 1
    ]
    if any(map(has_interval, shown)):
        entries.append(band_entry(f"{shown_level()} interval"))
    if not all(map(has_interval, shown)):
        entries.append(runs_entry())
    if any((frame["status"] != "finished").any() for frame in frames):
        entries.append(failure_entry())
    return entries
