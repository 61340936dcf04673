"""Figure 9: strong scaling over worker processes, measured, and over many GPUs by a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import paired_ratio
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import fig09_model_appendix as model
from workflow.bench.results.tables import Results

PROBES = ("scaling", "projection")
APART: Final = 0.2
"""Distance between the methods' markers in a group of one number of workers; the groups are one apart."""
_MODELLED: Final = ("kaisa", "eva", "mkor")
"""The methods whose model is drawn; the appendix has others."""
_CORES_LINE: Final[Any] = {"color": "#000000", "linewidth": 0.8, "linestyle": (0, (1, 1.2))}


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the measured speedup over worker processes, and a step of BERT-Large on many GPUs by the model."""
    rows, projected = (results.probe(name) for name in PROBES)
    if rows.empty and projected.empty:
        results.some_rows(PROBES[0])  # raises
    # Results of earlier versions have rows of a model of this machine's links.
    measured = rows[(rows["quantity"] == "step_ms") & (rows["source"] == "measured")].astype({"workers": int})
    both = not measured.empty and not projected.empty
    ratios = {"width_ratios": (1, 1.5)} if both else {}
    figure, (axes,) = page.new_figure(1, 2 if both else 1, height=2.5, **ratios)
    shown, notes, entries = {*measured["optimizer"]}, list[str](), list[Artist]()
    if not measured.empty:
        cores = int(measured["cores"].max())
        _draw_measured(axes[0], measured, cores)
        notes.append(_note_on_scaling(measured, cores))
        entries += [
            page.guide_entry("one repeat", color="#000000", marker=".", markersize=3, linestyle="none"),
            page.guide_entry("ideal speedup" + (", base's step" if both else ""), linewidth=0.8),
        ]
        if cores < measured["workers"].max():
            entries.append(page.guide_entry(f"to the right more workers than {cores} cores", **_CORES_LINE))
    if not projected.empty:
        steps = model.steps_over_base(projected, model.SMALL)
        steps = steps[steps["optimizer"].isin(_MODELLED)]
        model.draw_steps(axes[-1], steps, projected)
        axes[-1].set_title(f"{styles.workload_name(model.SMALL[0])} on {model.SMALL[1]},\ncomputed by a model")
        shown |= {*steps["optimizer"]}
        notes += model.notes(projected)
    legend = page.entries_of(shown, linestyle="none") + entries
    absent = [f"probe {name}" for name in PROBES if results.probe(name).empty]
    text = page.footer(results, rows if len(rows) else projected, notes=notes, absent=absent)
    reading = "White: measured on this machine. Gray: computed by a model." if len(projected) else ""
    message = "" if projected.empty else model.message(projected, model.SMALL)
    return page.save(figure, folder, "fig09_scalability", legend, text, message, reading)


def _measured_message(measured: pd.DataFrame, cores: int) -> str:
    """Return the end of the panel's title, on the most workers that have a core each; empty if two did not run."""
    most = max((number for number in measured["workers"].unique() if 1 < number <= cores), default=0)
    by_label = [speedups(rows).get(most, {}) for _, rows in measured.groupby("optimizer")]
    found = [ratio for ratios in by_label if (ratio := paired_ratio(ratios, dict.fromkeys(ratios, 1.0)))]
    if not found:
        return ""
    span = page.span(f"{value:.2f}" for value in sorted(ratio.value for ratio in found))
    remark = max((forest.undecided(ratio) for ratio in found), key=len)
    return f", {most} workers:\n{span} times{remark}"


# Speedup: the probe scaling


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


def _draw_measured(axes: Axes, measured: pd.DataFrame, cores: int) -> None:
    """Draw speedups: means over repeats as markers, the repeats as dots, and the ideal as a line a group."""
    labels = styles.in_order(measured["optimizer"])
    workers = sorted(number for number in measured["workers"].unique() if number > 1)
    for place, label in enumerate(labels):
        look = styles.style_of(label)
        shift = APART * (place - (len(labels) - 1) / 2)
        for number, ratios in speedups(measured[measured["optimizer"] == label]).items():
            if number == 1:
                continue
            x = workers.index(number) + shift  # by place and not by number: groups are as far apart at 2 as at 16
            axes.plot([x] * len(ratios), [*ratios.values()], ".", color="#000000", markersize=2.5, zorder=4)
            mean = geometric_mean(ratios.values())
            axes.plot(x, mean, marker=look.marker, color=look.color, linestyle="none", alpha=0.75)
    for place, number in enumerate(workers):
        axes.hlines(number, place - 0.5, place + 0.5, color=page.GUIDE, linewidth=0.8)
        if place:
            axes.axvline(place - 0.5, color="#E4E4E4", linewidth=0.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=min(0.95, axes.get_ylim()[0]))  # no speedup, which is 1, is on the axis
    panels.plain_log_ticks(axes)
    axes.minorticks_off()
    axes.set_xticks(range(len(workers)), [f"{number}" for number in workers])
    axes.grid(axis="x", visible=False)
    axes.set(xlim=(-0.5, len(workers) - 0.5), xlabel="workers", ylabel="speedup over one worker")
    workload = styles.workload_name(str(measured["workload"].iloc[0]))
    axes.set_title(f"{workload}{_measured_message(measured, cores)}")
    if cores < max(workers):
        axes.axvline(sum(number <= cores for number in workers) - 0.5, **_CORES_LINE)


def _note_on_scaling(measured: pd.DataFrame, cores: int) -> str:
    """Return the caption's sentence on speedup and efficiency."""
    workload = ", ".join(map(styles.workload_name, sorted(measured["workload"].dropna().unique())))
    batch = measured.loc[measured["workers"] == 1, "batch"].max()
    counts = ", ".join(str(number) for number in sorted(measured["workers"].unique()))
    return (
        f"measured: {workload}, {batch:g} examples per step in total, one refresh in 10 steps, with {counts} worker "
        f"processes on a machine of {cores} cores, which more workers share; markers: geometric mean of "
        f"{measured['repeat'].nunique()} repeats; dots: each repeat, paired with one worker's"
    )
