"""Figure 9, appendix: strong scaling over worker processes or GPUs, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import paired_ratio
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results

PROBES = ("scaling",)
APART: Final = 0.24
"""Distance between the methods' markers in a group of one number of workers; the groups are one apart."""
_DOTS_BESIDE: Final = 0.06
"""Distance of a marker's repeats from it."""
_CORES_LINE: Final[Any] = {"color": "#000000", "linewidth": 0.8, "linestyle": (0, (1, 1.2))}


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the measured speedup over one worker."""
    return draw(results, folder, "fig09_speedup_appendix")


def draw(results: Results, folder: Path, name: str, absent: Sequence[str] = ()) -> list[Path]:
    """Draw the measured speedup under the name of a figure.

    Args:
        results: the rows of this machine.
        folder: the folder to write to.
        name: the name of the figure.
        absent: what else the figure has no results of.

    Raises:
        NoDataError: two workers were not measured.
    """
    rows = results.some_rows("scaling")
    measured = measured_steps(rows)
    if (measured["workers"] < 2).all():
        raise NoDataError(f"the probe scaling measured no more than one worker in {results.root}.")
    figure, ((axes,),) = page.new_figure(1, 1, height=2.3)
    cores = int(measured["cores"].max())
    _draw_measured(axes, measured, cores)
    legend = [
        *page.entries_of(measured["optimizer"], linestyle="none"),
        page.guide_entry("one repeat", color="#777777", marker=".", markersize=4, linestyle="none"),
        page.guide_entry("ideal speedup", linewidth=0.8),
    ]
    if cores < measured["workers"].max():
        legend.append(page.guide_entry(f"to the right more workers than {cores} cores", **_CORES_LINE))
    text = page.footer(results, rows, notes=[_note_on_scaling(measured, cores)], absent=absent)
    reading = "Measured on this machine, with one batch for all workers."
    return page.save(figure, folder, name, legend, text, _message(measured), reading)


def measured_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of measured steps of the probe `scaling`."""
    # Results of earlier versions have rows of a model of this machine's links.
    return rows[(rows["quantity"] == "step_ms") & (rows["source"] == "measured")].astype({"workers": int})


def most_workers(measured: pd.DataFrame) -> int:
    """Return the most workers that ran with a core, or a GPU, each; 0 if two did not."""
    return max((number for number in measured["workers"].unique() if 1 < number <= measured["cores"].max()), default=0)


def _message(measured: pd.DataFrame) -> str:
    """Return the title: each method's speedup on the most workers that have a core each; empty if two did not run."""
    most, phrases = most_workers(measured), []
    for label in styles.in_order(measured["optimizer"]):
        ratios = speedups(measured[measured["optimizer"] == label]).get(most, {})
        if found := paired_ratio(ratios, dict.fromkeys(ratios, 1.0)):
            phrases.append(f"{styles.style_of(label).short} {found.value:.2f}{forest.undecided(found)}")
    workload = styles.workload_name(str(measured["workload"].iloc[0]))
    return f"{workload}, measured: speedup of {most} workers {', '.join(phrases)}" if phrases else ""


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
            mean = geometric_mean(ratios.values())
            axes.plot(x, mean, marker=look.marker, color=look.color, linestyle="none")
            # Beside the marker, which would hide them.
            dots = [x + _DOTS_BESIDE] * len(ratios)
            axes.plot(dots, [*ratios.values()], ".", color=look.color, markersize=3.5)
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
