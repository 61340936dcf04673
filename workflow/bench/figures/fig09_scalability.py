"""Figure 9: strong scaling over worker processes, measured on this machine, and a model of what lies beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from workflow.bench.analysis.captions import footer
from workflow.bench.figures import _probes
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import Results

PROBES = ("scaling",)
APART: Final = 1.2
"""Factor between the methods' markers at one number of workers."""


def by_repeat(steps: pd.DataFrame) -> dict[int, float]:
    """Milliseconds by repeat; steps: measured rows of one optimizer and number of workers."""
    return {int(repeat): float(ms) for repeat, ms in zip(steps["repeat"], steps["value"], strict=True)}


def speedups(steps: pd.DataFrame) -> dict[int, dict[int, float]]:
    """Measured step time of one worker over that of p: ``{p: {repeat: speedup}}``; steps: one optimizer's rows.

    Empty where one worker was not measured.
    """
    of_one = by_repeat(steps[steps["workers"] == 1])
    return {
        workers: {repeat: of_one[repeat] / time for repeat, time in times.items() if repeat in of_one}
        for workers in sorted(steps["workers"].unique())
        if (times := by_repeat(steps[steps["workers"] == workers])) and of_one
    }


def modelled(steps: pd.DataFrame) -> pd.Series:
    """The model's speedup by workers; steps: one optimizer's rows of the model."""
    times = steps.set_index("workers")["value"].astype(float).sort_index()
    return times.iloc[0] * times.index[0] / times


def _draw(axes: Axes, steps: pd.DataFrame, per_worker: Callable[[int], int]) -> None:
    """Means over repeats as large markers, each repeat as a dot; the model as dashed lines with small markers."""
    labels = style.in_order(steps["optimizer"])
    for place, label in enumerate(labels):
        look = style.style_of(label)
        own = steps[steps["optimizer"] == label]
        model = own[own["source"] == "model"]
        if len(model):
            line = modelled(model)
            shares = [value / per_worker(workers) for workers, value in zip(line.index, line, strict=True)]
            axes.plot(
                line.index,
                shares,
                color=look.color,
                linestyle=style.MODEL_LINE,
                linewidth=1.0,
                marker=look.marker,
                markersize=2.2,
            )
        # Set apart, or one method would hide the other.
        shift = APART ** (place - (len(labels) - 1) / 2)
        for workers, ratios in speedups(own[own["source"] == "measured"]).items():
            values = [value / per_worker(workers) for value in ratios.values()]
            at = workers * shift
            axes.plot([at] * len(values), values, ".", color="#000000", markersize=2.5, zorder=4)
            axes.plot(at, geometric_mean(values), marker=look.marker, color=look.color, linestyle="none", alpha=0.75)


def _worker_axis(axes: Axes, workers: list[int]) -> None:
    axes.set_xscale("log", base=2)
    shown = workers if len(workers) <= 6 else workers[::2] + ([workers[-1]] if len(workers) % 2 == 0 else [])
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(min(workers) / 1.4, max(workers) * 1.4)
    axes.set_xlabel("workers")


def make(results: Results, folder: Path) -> list[Path]:
    """Draw speedup and efficiency over the number of workers, for the same batch in all.

    Raises NoDataError where the probe scaling has no rows.
    """
    rows = _probes.read(results, "scaling")
    steps = rows[rows["quantity"] == "step_ms"].astype({"workers": int})
    measured, model = steps[steps["source"] == "measured"], steps[steps["source"] == "model"]
    workers = sorted(steps["workers"].unique())
    figure, (panels,) = style.new_figure(1, 2, height=2.6)
    speedup, efficiency = panels
    _draw(speedup, steps, lambda _: 1)
    _draw(efficiency, steps, lambda number: number)
    speedup.plot(workers, workers, color="#444444", linewidth=0.8)
    speedup.set_yscale("log", base=2)
    low, high = (np.log2(limit) for limit in speedup.get_ylim())
    every = 1 if high - low < 7 else 2
    speedup.yaxis.set_major_locator(
        FixedLocator([2.0**at for at in range(math.ceil(low), math.floor(high) + 1, every)])
    )
    speedup.yaxis.set_minor_locator(NullLocator())
    speedup.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    speedup.set_ylabel("speedup over one worker")
    efficiency.axhline(1, color="#444444", linewidth=0.8)
    efficiency.set_ylabel("efficiency")
    efficiency.set_ylim(bottom=0)
    cores = int(measured["cores"].max())
    for panel in panels:
        _worker_axis(panel, workers)
        if cores < max(workers):
            panel.axvline(cores, color="#000000", linewidth=0.8, linestyle=(0, (1, 1.2)))
    handles: list = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle="none", label=f"{look.name}, measured")
        for look in map(style.style_of, style.in_order(measured["optimizer"]))
    ]
    if len(model):
        handles.append(
            Line2D([], [], color="#444444", linestyle=style.MODEL_LINE, marker="o", markersize=2.2, label="model")
        )
    handles.append(Line2D([], [], color="#444444", linewidth=0.8, label="ideal"))
    handles.append(Line2D([], [], color="#000000", marker=".", markersize=3, linestyle="none", label="one repeat"))
    if cores < max(workers):
        name = f"the machine's {cores} cores"
        handles.append(Line2D([], [], color="#000000", linewidth=0.8, linestyle=(0, (1, 1.2)), label=name))
    style.finish(figure, handles, footer(results, rows, notes=_notes(measured, model, cores)), columns=3)
    return style.save(figure, folder, "fig09_scalability")


def _notes(measured: pd.DataFrame, model: pd.DataFrame, cores: int) -> list[str]:
    """What was measured, on how many cores, and what the model assumes."""
    workload = ", ".join(map(style.workload_name, sorted(measured["workload"].dropna().unique())))
    batch = measured.loc[measured["workers"] == 1, "batch"].max()
    counts = ", ".join(str(number) for number in sorted(measured["workers"].unique()))
    notes = [
        f"{workload}, {batch:g} examples a step in all, one refresh in 10 steps",
        f"measured with {counts} worker processes on a machine of {cores} cores: more than these share them; markers: "
        f"geometric mean of {measured['repeat'].nunique()} repeats, each a dot, paired with one worker's of the same",
    ]
    if len(model):
        notes.append(
            f"model up to {model['workers'].max():,} workers: one process's times, and alpha and beta of the links "
            "fitted on this machine, where workers share memory; it predicts no cluster"
        )
    else:
        notes.append("no collective was timed, so there is no model")
    return notes
