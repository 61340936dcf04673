"""Figure 21 (ours): the iterations that each rung saves, and what remains where inputs are centred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import shown_level
from workflow.bench.analysis.ladder import (
    BASES,
    CENTRING,
    RUNGS,
    Ladder,
    decisions_by_workload,
    in_general,
    ladders,
    predictions,
    runs_of,
    sentences,
)
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

EXPERIMENTS = ("ladder",)

_LOOKS: Final = {
    "sgd": styles.MethodStyle("over SGD", "#0072B2", "o", "-"),
    "adamw": styles.MethodStyle("over AdamW", "#B35806", "s", "-"),
}
_APART: Final = 0.19
"""The distance of the two base optimizers from the middle of a row."""
_ENDS: Final = ("mkor", "both_sides", "kfac")
"""The rungs that are trained with centred inputs, too."""
_ROWS: Final = {
    (rung, centred): f"{name}, centred inputs" if centred else name
    for rung, name in RUNGS.items()
    for centred in ((False, True) if rung in _ENDS else (False,))
}
"""The names of the rows, by rung and inputs."""
_BAR: Final = "#333333"
_ROW_INCHES: Final = 0.23
_NOTES: Final = (
    "Iterations over those of the base optimizer: geometric mean over the sweep's targets, seeds and tuning studies, t "
    "interval over studies; below 1 saves iterations. The base has the same inputs (hollow: centred ones); centring "
    "alone is the base optimizer with centred inputs over itself with plain ones. The title counts intervals that lie "
    "below 1. Shares of KFAC's gain and the decisions on the prediction are in the table ladder",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a panel for each workload, with a row for each rung and kind of inputs."""
    found, left_out = ladders(results)
    workloads = list(dict.fromkeys(ladder.workload for ladder in found))
    figure, (axes,) = page.new_figure(
        1, len(workloads), height=0.9 + _ROW_INCHES * len(_ROWS), sharex=True, sharey=True
    )
    for panel, workload in zip(axes, workloads, strict=True):
        of_workload = [ladder for ladder in found if ladder.workload == workload]
        panel.set_title(styles.data_title(of_workload[0].runs, width=14), fontsize=7)
        panel.axvline(1, color=page.GUIDE, linewidth=0.8)
        panel.set_xscale("log")
        panel.set_xlabel("iterations, base: 1", fontsize=7)
        for ladder in of_workload:
            _draw(panel, ladder)
    forest.name_rows(axes[0], _ROWS.values())
    low, high = axes[0].get_xlim()
    for panel in axes:
        panels.fixed_ticks(panel.xaxis, (0.1, 0.2, 0.5, 1, 2, 5, 10) if high > 4 * low else (0.3, 0.5, 0.7, 1, 1.4, 2))
        panel.grid(axis="y", visible=False)
    notes = [*_NOTES, *sentences(found, styles.workload_name)]
    notes += [f"Not shown: {'; '.join(left_out)}"] if left_out else []
    text = page.caption(results, runs_of(found), notes=notes, summarized=False)
    reading = "Left of 1: fewer iterations than the base. From top to bottom, rungs keep more of a layer."
    return page.save(figure, folder, "fig21_ladder", _entries(), text, _message(found), reading)


def _draw(axes: Axes, ladder: Ladder) -> None:
    """Draw one ladder's markers with their intervals, hollow with centred inputs."""
    look, apart = _LOOKS[ladder.base], _APART * (2 * list(BASES).index(ladder.base) - 1)
    for row, (rung, centred) in enumerate(_ROWS):
        if centred != ladder.centred or (ratio := ladder.ratio(rung)) is None:
            continue
        face = "white" if centred else look.color
        axes.plot(ratio.value, row + apart, marker=look.marker, color=look.color, markersize=3.4, markerfacecolor=face)
        if ratio.has_interval:
            # Over the marker: a narrow interval would vanish below it.
            axes.hlines(row + apart, ratio.low, ratio.high, color=_BAR, linewidth=1.0, zorder=4)


def _entries() -> list[Artist]:
    centred = [replace(look, name=f"{look.name}, centred inputs") for look in _LOOKS.values()]
    return [
        *map(page.marker_entry, _LOOKS.values()),
        *(page.marker_entry(look, markerfacecolor="white") for look in centred),
        page.guide_entry(f"{shown_level()} interval", color=_BAR, linewidth=1.0),
    ]


def _message(found: Sequence[Ladder]) -> str:
    """Return the title: where MKOR saves iterations and where centring does, and the decision on centred inputs."""
    plain = [one for one in found if not one.centred]
    ratios = {rung: [ratio for one in plain if (ratio := one.ratio(rung)) is not None] for rung in ("mkor", CENTRING)}
    counts = [
        f"{what} in {sum(ratio.high < 1 for ratio in ratios[rung])} of {len(ratios[rung])}{pairs}"
        for what, rung, pairs in (
            ("MKOR saves iterations", "mkor", " pairs of workload and base"),
            ("centring the inputs", CENTRING, ""),
        )
        if ratios[rung]
    ]
    decision = in_general(decisions_by_workload(predictions(found)))
    removes = "centring removes MKOR's gain"
    judged = f"whether {removes} is open" if decision == "open" else f"that {removes} {decision}"
    return f"{', '.join(counts)}; {judged}" if counts else judged.capitalize()
