"""Figure 21 (ours): the iterations that each rung saves, and what remains where inputs are centred."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import shown_level
from workflow.bench.analysis.ladder import (
    BASES,
    CENTRING,
    RUNGS,
    Ladder,
    ladders,
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
_CENTRED: Final = ("mkor", "kfac")
"""The rungs that have a row with centred inputs, too; the table ladder has all."""
_ROWS: Final = {(rung, False): name for rung, name in RUNGS.items()} | {
    (rung, True): f"{RUNGS[rung]}, centred inputs" for rung in _CENTRED
}
"""The names of the rows, by rung and inputs."""
_BAR: Final = "#222222"
_FACE: Final = 0.3
"""The opacity of a marker's face: on a dark one a narrow interval cannot be seen."""
_ROW_INCHES: Final = 0.23
_NOTES: Final = (
    "Iterations over those of the base optimizer: geometric mean over the sweep's targets, seeds and tuning studies, t "
    "interval over studies; below 1 saves iterations. The base has the same inputs; centring alone is the base "
    "optimizer with centred inputs over itself with plain ones. The title counts intervals that lie below 1. Shares of "
    "KFAC's gain, both sides acting on centred inputs and the decisions on the prediction are in the table ladder",
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
        panel.axhline(len(RUNGS) - 0.5, color=page.SOFT, linewidth=0.6)
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
    reading = "Left of 1: fewer iterations than the base, which has centred inputs below the line, plain ones above it."
    return page.save(figure, folder, "fig21_ladder", _entries(), text, _message(found), reading)


def _draw(axes: Axes, ladder: Ladder) -> None:
    """Draw one ladder's markers with their intervals."""
    look, apart = _LOOKS[ladder.base], _APART * (2 * list(BASES).index(ladder.base) - 1)
    for row, (rung, centred) in enumerate(_ROWS):
        if centred != ladder.centred or (ratio := ladder.ratio(rung)) is None:
            continue
        axes.plot(ratio.value, row + apart, marker=look.marker, color=look.color, **_faint(look))
        if ratio.has_interval:
            axes.hlines(row + apart, ratio.low, ratio.high, color=_BAR, linewidth=1.0, zorder=4)


def _faint(look: styles.MethodStyle) -> dict[str, Any]:
    """Return the properties of a marker on which an interval can be seen."""
    return {"markersize": 3.8, "markerfacecolor": (look.color, _FACE)}


def _entries() -> list[Artist]:
    interval = page.guide_entry(f"{shown_level()} interval", color=_BAR, linewidth=1.0)
    return [*(page.marker_entry(look, **_faint(look)) for look in _LOOKS.values()), interval]


def _message(found: Sequence[Ladder]) -> str:
    """Return the title: in how many panels and bases MKOR saves iterations, over centred inputs too, and centring."""
    counts: list[str] = []
    for what, rung, centred in (
        ("MKOR saves iterations", "mkor", False),
        ("on centred inputs", "mkor", True),
        ("centring alone saves them", CENTRING, False),
    ):
        ratios = [ratio for one in found if one.centred == centred and (ratio := one.ratio(rung)) is not None]
        if ratios:
            pairs = "" if counts else " pairs of workload and base"
            counts.append(f"{what} in {sum(ratio.high < 1 for ratio in ratios)} of {len(ratios)}{pairs}")
    return ", ".join(counts)
