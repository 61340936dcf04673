"""Figure 9: strong scaling over worker processes, measured on this machine, and a model of 8 to 1,024 GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow.bench.figures import _legend, _of_ranks, _projected
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import fixed_ticks
from workflow.bench.figures._captions import footer
from workflow.bench.figures._page import save
from workflow.bench.results.tables import Results

PROBES = ("scaling", "sharding", "projection")
APART: Final = 0.16
"""Distance between the methods' markers in a group of one number of workers; the groups are one apart."""
HEIGHT: Final = 2.3
"""Inches of the panels of speedup and efficiency."""
_CORES_LINE: Final[Any] = {"color": "#000000", "linewidth": 0.8, "linestyle": (0, (1, 1.2))}


def by_repeat(steps: pd.DataFrame) -> dict[int, float]:
    """Return milliseconds by repeat, from the measured rows of one optimizer and number of workers."""
    return {int(repeat): float(ms) for repeat, ms in zip(steps["repeat"], steps["value"], strict=True)}


def speedups(steps: pd.DataFrame) -> dict[int, dict[int, float]]:
    """Return ``{p: {repeat: speedup}}``: the step time of one worker over that of p, from one optimizer's rows.

    Empty if one worker was not measured.
    """
    of_one = by_repeat(steps[steps["workers"] == 1])
    return {
        workers: {repeat: of_one[repeat] / time for repeat, time in times.items() if repeat in of_one}
        for workers in sorted(steps["workers"].unique())
        if (times := by_repeat(steps[steps["workers"] == workers])) and of_one
    }


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the measured speedup and efficiency, below them the measured memory and bytes of a rank, and the model.

    A tier whose experiments the probe scaling does not measure has the lower rows alone.

    Raises:
        NoDataError: none of the probes has rows.
    """
    rows, sharding, projected = (results.probe(name) for name in PROBES)
    if rows.empty and sharding.empty and projected.empty:
        results.some_rows(PROBES[0])  # raises
    # Results of earlier versions have rows of a model of this machine's links.
    measured = rows[(rows["quantity"] == "step_ms") & (rows["source"] == "measured")].astype({"workers": int})
    further = [
        (frame, module, lines)
        for frame, module, lines in ((sharding, _of_ranks, 1), (projected, _projected, 2))
        if not frame.empty
    ]
    first = 0 if measured.empty else 1
    heights = [HEIGHT] * first + [module.HEIGHT / lines for _, module, lines in further for _ in range(lines)]
    figure, panels = style.new_figure(len(heights), 2, height=sum(heights), height_ratios=heights)
    shown, notes, few_cores = {*measured["optimizer"]}, [], None
    if first:
        cores = int(measured["cores"].max())
        _draw_measured(panels[0], measured, cores)
        notes += _notes(measured, cores)
        few_cores = cores if cores < measured["workers"].max() else None
    for frame, module, lines in further:
        shown |= module.draw(np.squeeze(panels[first : first + lines]), frame)
        notes += module.notes(frame)
        first += lines
    counted = not projected.empty and _projected.has_counted(projected)
    legend = _entries(shown, few_cores, measured=not measured.empty, with_model=bool(further), counted=counted)
    absent = [f"probe {name}" for name in PROBES if results.probe(name).empty]
    of_one = next(frame for frame in (rows, sharding, projected) if not frame.empty)
    caption = footer(results, of_one, notes=notes, absent=absent)
    return save(figure, folder, "fig09_scalability", legend=legend, caption=caption)


def _draw_measured(panels: np.ndarray, measured: pd.DataFrame, cores: int) -> None:
    """Draw speedup and efficiency."""
    speedup, efficiency = panels
    workers = sorted(measured["workers"].unique())
    _draw(speedup, measured, by_worker=False)
    _draw(efficiency, measured, by_worker=True)
    for place, number in enumerate(workers):
        speedup.hlines(number, place - 0.5, place + 0.5, color=style.GUIDE, linewidth=0.8)
    _speedup_axis(speedup)
    speedup.set_ylabel("speedup over one worker")
    efficiency.axhline(1, color=style.GUIDE, linewidth=0.8)
    efficiency.set_ylabel("efficiency")
    efficiency.set_ylim(bottom=0)
    for panel in panels:
        panel.set_xticks(range(len(workers)), [f"{number}" for number in workers])
        panel.set_xlim(-0.5, len(workers) - 0.5)
        panel.grid(axis="x", visible=False)
        panel.set_xlabel("workers")
        panel.set_title("measured on this machine")
        for place in range(1, len(workers)):
            panel.axvline(place - 0.5, color="#E4E4E4", linewidth=0.5)
        if cores < max(workers):
            panel.axvline(sum(number <= cores for number in workers) - 0.5, **_CORES_LINE)


def _draw(axes: Axes, steps: pd.DataFrame, *, by_worker: bool) -> None:
    """Draw speedups, or efficiencies if divided ``by_worker``: means over repeats as markers, the repeats as dots."""
    labels, groups = style.in_order(steps["optimizer"]), sorted(steps["workers"].unique())
    for place, label in enumerate(labels):
        look = style.style_of(label)
        shift = APART * (place - (len(labels) - 1) / 2)
        for workers, ratios in speedups(steps[steps["optimizer"] == label]).items():
            values = [value / workers if by_worker else value for value in ratios.values()]
            x = groups.index(workers) + shift
            axes.plot([x] * len(values), values, ".", color="#000000", markersize=2.5, zorder=4)
            axes.plot(x, geometric_mean(values), marker=look.marker, color=look.color, linestyle="none", alpha=0.75)


def _speedup_axis(axes: Axes) -> None:
    """Set a logarithmic axis with ticks at powers of two, at most about seven."""
    axes.set_yscale("log", base=2)
    low, high = (np.log2(limit) for limit in axes.get_ylim())
    every = 1 if high - low < 7 else 2
    fixed_ticks(axes.yaxis, (2.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)))


def _entries(
    labels: Iterable[str], cores: int | None, *, measured: bool, with_model: bool, counted: bool
) -> list[Artist]:
    """Return the entries of the legend; cores: the machine's, if there were more workers."""
    entries: list[Artist] = [_legend.marker_entry(style.style_of(label)) for label in style.in_order(labels)]
    if measured:
        entries.append(Line2D([], [], color="#000000", marker=".", markersize=3, linestyle="none", label="one repeat"))
    entries.append(Line2D([], [], color=style.GUIDE, linewidth=0.8, label="ideal, or no difference"))
    if cores is not None:
        entries.append(Line2D([], [], **_CORES_LINE, label=f"to the right more workers than {cores} cores"))
    if with_model:
        entries.append(
            Line2D([], [], color=style.GUIDE, linewidth=1.0, linestyle=style.MODEL_LINE, label="formula, model")
        )
    if counted:
        line: Any = {"linewidth": 1.0, "linestyle": _projected.COUNTED_LINE}
        entries.append(Line2D([], [], color=style.GUIDE, **line, label="model, counted bytes"))
    return entries


def _notes(measured: pd.DataFrame, cores: int) -> list[str]:
    """Return the caption's sentences on the measurement."""
    workload = ", ".join(map(style.workload_name, sorted(measured["workload"].dropna().unique())))
    batch = measured.loc[measured["workers"] == 1, "batch"].max()
    counts = ", ".join(str(number) for number in sorted(measured["workers"].unique()))
    return [
        f"measured: {workload}, {batch:g} examples per step in total, one refresh in 10 steps, with {counts} worker "
        f"processes on a machine of {cores} cores, which more workers share; markers: geometric mean of "
        f"{measured['repeat'].nunique()} repeats; dots: each repeat, paired with one worker's",
    ]
