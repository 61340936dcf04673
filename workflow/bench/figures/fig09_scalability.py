"""Figure 9: strong scaling over worker processes, and a rank's memory and bytes, measured; and a model of many GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _projected as model
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import Results

PROBES = ("scaling", "sharding", "projection")
HEIGHTS: Final = (2.3, 1.9, *(model.HEIGHT / 2,) * 2)
"""Inches of the rows of panels: speedup and efficiency, memory and bytes, and two of the model."""
APART: Final = 0.16
"""Distance between the methods' markers in a group of one number of workers; the groups are one apart."""
_CORES_LINE: Final[Any] = {"color": "#000000", "linewidth": 0.8, "linestyle": (0, (1, 1.2))}
PERIOD: Final = 10
"""Steps of which one refreshes, in the mean bytes of a step."""
KEPT: Final = ("parameters", "gradients", "first_order_state", "preconditioner_state")
"""Quantities that a rank keeps between two steps."""
_RANKS_APART: Final = 0.09
"""Distance between the methods' markers at one number of ranks; the numbers are one apart."""
_GAP: Final = 0.5
"""Additional distance between the ranks that have all parameters and those that have a part."""


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
    has_data = (not measured.empty, not sharding.empty, *(not projected.empty,) * 2)
    heights = [height for height, is_there in zip(HEIGHTS, has_data, strict=True) if is_there]
    figure, axes = style.new_figure(len(heights), 2, height=sum(heights), height_ratios=heights)
    below, shown, notes, few_cores = iter(axes), {*measured["optimizer"]}, [], None
    if not measured.empty:
        cores = int(measured["cores"].max())
        _draw_measured(next(below), measured, cores)
        notes += _notes_on_scaling(measured, cores)
        few_cores = cores if cores < measured["workers"].max() else None
    if not sharding.empty:
        shown |= _draw_ranks(next(below), sharding)
        notes += _notes_on_ranks(sharding)
    if not projected.empty:
        shown |= model.draw(np.stack([*below]), projected)
        notes += model.notes(projected)
    legend = _entries(shown, few_cores, measured, projected, with_formulas=not (sharding.empty and projected.empty))
    absent = [f"probe {name}" for name in PROBES if results.probe(name).empty]
    of_one = next(frame for frame in (rows, sharding, projected) if not frame.empty)
    text = page.footer(results, of_one, notes=notes, absent=absent)
    return page.save(figure, folder, "fig09_scalability", legend=legend, caption=text)


def _entries(
    labels: Iterable[str], cores: int | None, measured: pd.DataFrame, projected: pd.DataFrame, *, with_formulas: bool
) -> list[Artist]:
    """Return the entries of the legend; cores: the machine's, if there were more workers."""
    entries = page.entries_of(labels, linestyle="none")
    if not measured.empty:
        entries.append(page.guide_entry("one repeat", color="#000000", marker=".", markersize=3, linestyle="none"))
    entries.append(page.guide_entry("ideal, or no difference", linewidth=0.8))
    if cores is not None:
        entries.append(page.guide_entry(f"to the right more workers than {cores} cores", **_CORES_LINE))
    if with_formulas:
        entries.append(page.guide_entry("formula, model", linewidth=1.0, linestyle=style.MODEL_LINE))
    if not projected.empty and model.has_counted(projected):
        entries.append(page.guide_entry("model, counted bytes", linewidth=1.0, linestyle=model.COUNTED_LINE))
    return entries


# Speedup and efficiency: the probe scaling


def speedups(steps: pd.DataFrame) -> dict[int, Mapping[Any, float]]:
    """Return ``{p: {repeat: speedup}}``: the step time of one worker over that of p, from one optimizer's rows.

    Empty if one worker was not measured.
    """
    times = steps.pivot_table(index="workers", columns="repeat", values="value")
    if 1 not in times.index:
        return {}
    # Paired within a repeat: a busy spell of the machine is on both sides.
    ratios = times.loc[1] / times
    return {int(workers): ratios.loc[workers].dropna().to_dict() for workers in times.index}


def _draw_measured(axes: np.ndarray, measured: pd.DataFrame, cores: int) -> None:
    """Draw speedup and efficiency."""
    speedup, efficiency = axes
    workers = sorted(measured["workers"].unique())
    _draw_speedups(speedup, measured, by_worker=False)
    _draw_speedups(efficiency, measured, by_worker=True)
    for place, number in enumerate(workers):
        speedup.hlines(number, place - 0.5, place + 0.5, color=style.GUIDE, linewidth=0.8)
    speedup.set_yscale("log", base=2)
    low, high = (np.log2(limit) for limit in speedup.get_ylim())
    every = 1 if high - low < 7 else 2  # at most about seven ticks
    panels.fixed_ticks(speedup.yaxis, (2.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)))
    speedup.set_ylabel("speedup over one worker")
    efficiency.axhline(1, color=style.GUIDE, linewidth=0.8)
    efficiency.set_ylabel("efficiency")
    efficiency.set_ylim(bottom=0)
    for panel in axes:
        panel.set_xticks(range(len(workers)), [f"{number}" for number in workers])
        panel.grid(axis="x", visible=False)
        panel.set(xlim=(-0.5, len(workers) - 0.5), xlabel="workers", title="measured on this machine")
        for place in range(1, len(workers)):
            panel.axvline(place - 0.5, color="#E4E4E4", linewidth=0.5)
        if cores < max(workers):
            panel.axvline(sum(number <= cores for number in workers) - 0.5, **_CORES_LINE)


def _draw_speedups(axes: Axes, steps: pd.DataFrame, *, by_worker: bool) -> None:
    """Draw speedups, or efficiencies if divided ``by_worker``: means over repeats as markers, the repeats as dots."""
    labels, groups = style.in_order(steps["optimizer"]), sorted(steps["workers"].unique())
    for place, label in enumerate(labels):
        look = style.style_of(label)
        shift = APART * (place - (len(labels) - 1) / 2)
        for workers, ratios in speedups(steps[steps["optimizer"] == label]).items():
            values = [value / workers if by_worker else value for value in ratios.values()]
            x = groups.index(workers) + shift  # by place and not by number: groups are as far apart at 2 as at 16
            axes.plot([x] * len(values), values, ".", color="#000000", markersize=2.5, zorder=4)
            axes.plot(x, geometric_mean(values), marker=look.marker, color=look.color, linestyle="none", alpha=0.75)


def _notes_on_scaling(measured: pd.DataFrame, cores: int) -> list[str]:
    """Return the caption's sentences on speedup and efficiency."""
    workload = ", ".join(map(style.workload_name, sorted(measured["workload"].dropna().unique())))
    batch = measured.loc[measured["workers"] == 1, "batch"].max()
    counts = ", ".join(str(number) for number in sorted(measured["workers"].unique()))
    return [
        f"measured: {workload}, {batch:g} examples per step in total, one refresh in 10 steps, with {counts} worker "
        f"processes on a machine of {cores} cores, which more workers share; markers: geometric mean of "
        f"{measured['repeat'].nunique()} repeats; dots: each repeat, paired with one worker's",
    ]


# Memory and bytes of a rank: the probe sharding


def memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the rank with most keeps, by optimizer and number of workers: measured and by formulas."""
    kept = rows[rows["quantity"].isin(KEPT)]
    by_rank = kept.groupby(["optimizer", "workers", "rank"])[["bytes", "computed_bytes"]].sum()
    return by_rank.groupby(["optimizer", "workers"]).max().reset_index()


def sent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the busiest rank sends in a mean step, in the columns of `memory`."""
    keys, columns = ["optimizer", "workers", "rank"], ["bytes", "computed_bytes"]
    refreshing, otherwise = (
        rows[rows["quantity"] == quantity].groupby(keys)[columns].sum().astype(float)
        for quantity in ("sent_refreshing", "sent_otherwise")
    )
    refreshing, otherwise = refreshing.align(otherwise, fill_value=0.0)
    mean = pd.DataFrame({name: cycle_mean(refreshing[name], otherwise[name], PERIOD) for name in columns})
    return mean.groupby(["optimizer", "workers"])[columns].max().reset_index()


def _draw_ranks(axes: np.ndarray, rows: pd.DataFrame) -> set[str]:
    """Draw memory and bytes of a rank, and return the labels of the looks."""
    tables = {"memory per rank": memory(rows), "bytes per rank and step": sent(rows)}
    for panel, (name, table) in zip(axes, tables.items(), strict=True):
        _draw_rank(panel, table)
        panel.set(ylabel=name, title="measured, and by formula")
        panels.byte_axis(panel)
        low, high = panel.get_ylim()
        panel.set_ylim(low / (high / low) ** 0.12, high)  # space for the words at the bottom
    return {model.variant_of(str(label)) for label in rows["optimizer"]}


def _draw_rank(axes: Axes, table: pd.DataFrame) -> None:
    """Draw measured values as markers and formulas as dashed lines, first of DDP and then of sharded training."""
    workers = sorted(table["workers"].unique())
    labels = style.in_order({model.variant_of(str(label)) for label in table["optimizer"]})
    starts = {sharded: sharded * (len(workers) + _GAP) for sharded in (False, True)}
    for label, of_label in table.groupby("optimizer", sort=False):
        look, start = model.look_of(str(label)), starts[str(label).endswith(model.SHARDED)]
        shift = _RANKS_APART * (labels.index(model.variant_of(str(label))) - (len(labels) - 1) / 2)
        x = [start + workers.index(number) + shift for number in of_label["workers"]]
        axes.plot(x, of_label["computed_bytes"], color=look.color, linestyle=style.MODEL_LINE, linewidth=0.8)
        axes.plot(x, of_label["bytes"], color=look.color, linestyle="none", marker=look.marker)
    places = [start + index for start in starts.values() for index in range(len(workers))]
    axes.set_xticks(places, [f"{number}" for number in workers] * 2)
    axes.set_xlabel("ranks")
    for sharded, start in starts.items():
        at, name = (start + (len(workers) - 1) / 2, 0.03), "sharded" if sharded else "DDP"
        text: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 6.5, "color": style.GUIDE}
        panels.annotate(axes, name, at, ("data", "axes fraction"), **text)


def _notes_on_ranks(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentences on memory and bytes of a rank."""
    checked = rows[rows["computed_bytes"].notna()]
    exact = int((checked["bytes"] == checked["computed_bytes"]).sum())
    is_windowed = rows["optimizer"] == f"mkor_windowed{model.SHARDED}"
    live = rows[(rows["quantity"] == "peak_live") & is_windowed]["bytes"]
    whole = rows[(rows["quantity"] == "gradients") & ~rows["optimizer"].str.endswith(model.SHARDED)]["bytes"]
    notes = [
        f"memory and bytes: {style.workload_name(str(rows['workload'].iloc[0]))}, the rank with most; memory: "
        "parameters, gradients, momentum and the preconditioner's state, counted; bytes: counted in the "
        f"preconditioner's collectives, mean of {PERIOD} steps; dashed: formulas, exact in {exact} of {len(checked)} "
        "cases"
    ]
    if len(live) and len(whole):
        made, gradient = (panels.amount(float(f"{sizes.max():.3g}")) for sizes in (live, whole))
        notes.append(
            f"tensors that windowed MKOR makes in a sharded step: {made} at any time, beside {gradient} of a whole "
            "gradient"
        )
    return notes
