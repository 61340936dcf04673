"""Figure 9: strong scaling over worker processes, measured on this machine, and a model of more workers."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow.bench.analysis.captions import footer
from workflow.bench.figures import _legend, _probes
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import fixed_ticks
from workflow.bench.figures._page import save
from workflow.bench.results.tables import Results

PROBES = ("scaling",)
APART: Final = 1.2
"""Factor between the methods' markers at one number of workers."""
_CORES_LINE: Final[Any] = {"color": "#000000", "linewidth": 0.8, "linestyle": (0, (1, 1.2))}
_MODEL: Final[Any] = {"linestyle": style.MODEL_LINE, "markersize": 2.2}


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


def modeled(steps: pd.DataFrame) -> pd.Series:
    """Return the model's speedup by workers, from one optimizer's rows of the model."""
    times = steps.set_index("workers")["value"].astype(float).sort_index()
    return times.iloc[0] * times.index[0] / times


def make(results: Results, folder: Path) -> list[Path]:
    """Draw speedup and efficiency over the number of workers that share one batch.

    Raises:
        NoDataError: the probe scaling has no rows.
    """
    rows = _probes.read(results, "scaling")
    steps = rows[rows["quantity"] == "step_ms"].astype({"workers": int})
    measured, model = steps[steps["source"] == "measured"], steps[steps["source"] == "model"]
    workers = sorted(steps["workers"].unique())
    figure, (panels,) = style.new_figure(1, 2, height=2.6)
    speedup, efficiency = panels
    _draw(speedup, steps, by_worker=False)
    _draw(efficiency, steps, by_worker=True)
    speedup.plot(workers, workers, color=style.GUIDE, linewidth=0.8)
    _speedup_axis(speedup)
    speedup.set_ylabel("speedup over one worker")
    efficiency.axhline(1, color=style.GUIDE, linewidth=0.8)
    efficiency.set_ylabel("efficiency")
    efficiency.set_ylim(bottom=0)
    cores = int(measured["cores"].max())
    for panel in panels:
        _worker_axis(panel, workers)
        if cores < max(workers):
            panel.axvline(cores, **_CORES_LINE)
    legend = _entries(measured, with_model=len(model) > 0)
    if cores < max(workers):
        legend.append(Line2D([], [], **_CORES_LINE, label=f"the machine's {cores} cores"))
    caption = footer(results, rows, notes=_notes(measured, model, cores))
    return save(figure, folder, "fig09_scalability", legend=legend, caption=caption)


def _draw(axes: Axes, steps: pd.DataFrame, *, by_worker: bool) -> None:
    """Draw speedups, or efficiencies if divided ``by_worker``.

    Large markers are means over repeats and dots the repeats; the model is a dashed line with small markers.
    """
    labels = style.in_order(steps["optimizer"])
    for place, label in enumerate(labels):
        look = style.style_of(label)
        of_label = steps[steps["optimizer"] == label]
        model = of_label[of_label["source"] == "model"]
        if len(model):
            line = modeled(model)
            axes.plot(
                line.index,
                line / line.index if by_worker else line,
                color=look.color,
                marker=look.marker,
                linewidth=1.0,
                **_MODEL,
            )
        # Methods are set apart, or one would hide the other.
        shift = APART ** (place - (len(labels) - 1) / 2)
        for workers, ratios in speedups(of_label[of_label["source"] == "measured"]).items():
            values = [value / workers if by_worker else value for value in ratios.values()]
            x = workers * shift
            axes.plot([x] * len(values), values, ".", color="#000000", markersize=2.5, zorder=4)
            axes.plot(x, geometric_mean(values), marker=look.marker, color=look.color, linestyle="none", alpha=0.75)


def _speedup_axis(axes: Axes) -> None:
    """Set a logarithmic axis with ticks at powers of two, at most about seven."""
    axes.set_yscale("log", base=2)
    low, high = (np.log2(limit) for limit in axes.get_ylim())
    every = 1 if high - low < 7 else 2
    fixed_ticks(axes.yaxis, (2.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)))


def _worker_axis(axes: Axes, workers: list[int]) -> None:
    """Set a logarithmic axis with ticks at the numbers of workers, or at every second one of many."""
    axes.set_xscale("log", base=2)
    every_second = workers[::2] + ([workers[-1]] if len(workers) % 2 == 0 else [])
    fixed_ticks(axes.xaxis, workers if len(workers) <= 6 else every_second)
    axes.set_xlim(min(workers) / 1.4, max(workers) * 1.4)
    axes.set_xlabel("workers")


def _entries(measured: pd.DataFrame, *, with_model: bool) -> list[Artist]:
    """Return the entries of the legend."""
    looks = map(style.style_of, style.in_order(measured["optimizer"]))
    entries: list[Artist] = [_legend.marker_entry(look, label=f"{look.name}, measured") for look in looks]
    if with_model:
        entries.append(Line2D([], [], color=style.GUIDE, marker="o", label="model", **_MODEL))
    entries.append(Line2D([], [], color=style.GUIDE, linewidth=0.8, label="ideal"))
    entries.append(Line2D([], [], color="#000000", marker=".", markersize=3, linestyle="none", label="one repeat"))
    return entries


def _notes(measured: pd.DataFrame, model: pd.DataFrame, cores: int) -> list[str]:
    """Return the caption's sentences on the measurement and on the model."""
    workload = ", ".join(map(style.workload_name, sorted(measured["workload"].dropna().unique())))
    batch = measured.loc[measured["workers"] == 1, "batch"].max()
    counts = ", ".join(str(number) for number in sorted(measured["workers"].unique()))
    notes = [
        f"{workload}, {batch:g} examples per step in total, one refresh in 10 steps",
        f"measured with {counts} worker processes on a machine of {cores} cores, which more workers share; markers: "
        f"geometric mean of {measured['repeat'].nunique()} repeats; dots: each repeat, paired with one worker's",
    ]
    if len(model):
        notes.append(
            f"model up to {model['workers'].max():,} workers: the times of one process, and alpha and beta of the "
            "links fitted on this machine, where workers share memory; it does not predict a cluster"
        )
    else:
        notes.append("no collective was timed, so there is no model")
    return notes
