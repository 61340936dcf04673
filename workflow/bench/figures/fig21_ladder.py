"""Figure 21 (ours): the iterations that each rung saves, and what remains where inputs are centred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import Estimate, shown_level
from workflow.bench.analysis.ladder import (
    BASES,
    CENTRING,
    NAMES,
    RUNGS,
    TOP,
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
_APART: Final = 0.22
"""The distance of the two base optimizers from the middle of a row."""
_ENDS: Final = ("mkor", "both_sides", TOP)
"""The rungs that are trained with centred inputs, too."""
_NOTES: Final = (
    "Iterations over those of the base optimizer: geometric mean over the sweep's targets, seeds and tuning studies, t "
    "interval over studies; below 1 saves iterations. The base has the same inputs; centring alone is the base "
    "optimizer with centred inputs over itself with plain ones",
    "Above: plain inputs. Below: plain inputs above centred ones; above each panel what the runs say of the "
    "prediction. Shares of KFAC's gain are in the table ladder",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a column for each workload: all rungs with plain inputs above, plain and centred inputs below."""
    found, left_out = ladders(results)
    declared = predictions(found)
    workloads = list(dict.fromkeys(ladder.workload for ladder in found))
    figure, axes = page.new_figure(2, len(workloads), height=3.5, sharex=True, sharey="row")
    for (upper, lower), workload in zip(axes.T, workloads, strict=True):
        of_workload = [ladder for ladder in found if ladder.workload == workload]
        _draw_rungs(upper, [ladder for ladder in of_workload if not ladder.centred])
        upper.set_title(styles.data_title(of_workload[0].runs, width=66 // len(workloads)))  # 66 letters in all panels
        _draw_ratios(lower, of_workload)
        _head(lower, [f"{NAMES[one.base]}: {one.said}" for one in declared if one.workload == workload])
    low, high = axes[1, 0].get_xlim()
    for lower in axes[1]:
        ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10) if high > 4 * low else (0.3, 0.5, 0.7, 1, 1.4, 2)
        panels.fixed_ticks(lower.xaxis, ticks)
        lower.set_xlabel("iterations, base: 1")
    plain = replace(_LOOKS["sgd"], name="plain inputs", color=page.GUIDE, marker="D")
    legend = [*map(page.marker_entry, (*_LOOKS.values(), plain)), page.hollow_entry("centred inputs", "D")]
    legend.append(page.guide_entry(f"{shown_level()} interval", color="#777777", linewidth=1.6))
    notes = [*_NOTES, *sentences(found, styles.workload_name)]
    notes += [f"Not shown: {'; '.join(left_out)}"] if left_out else []
    runs = runs_of(found)
    text = page.caption(results, runs, notes=notes, summarized=False)
    reading = "Left of 1: fewer iterations than the base. Above the lower panels: does the prediction hold?"
    return page.save(figure, folder, "fig21_ladder", legend, text, _message(found), reading, columns=5)


def _message(found: Sequence[Ladder]) -> str:
    """Return the title: where MKOR saves iterations and where centring does, and the decision on centred inputs."""
    plain = [one for one in found if not one.centred]
    counts = []
    for verb, rung in (("MKOR saves iterations", "mkor"), ("centring the inputs", CENTRING)):
        ratios = [ratio for one in plain if (ratio := one.ratio(rung)) is not None]
        if ratios:
            counts.append(f"{verb} in {sum(ratio.high < 1 for ratio in ratios)} of {len(ratios)} cases")
    decision = in_general(decisions_by_workload(predictions(found)))
    removes = f"that centring removes MKOR's gain {'is open' if decision == 'open' else decision}"
    return f"{', '.join(counts)}; {removes}" if counts else removes.capitalize()


def _draw_rungs(axes: Axes, plain: Sequence[Ladder]) -> None:
    """Draw iterations over the base's in a row for each rung, the base optimizers beside each other."""
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    for ladder in plain:
        for row, rung in enumerate(RUNGS):
            if (ratio := ladder.ratio(rung)) is not None:
                _draw(axes, ratio, row + _APART * (2 * list(BASES).index(ladder.base) - 1), _LOOKS[ladder.base])
    forest.name_rows(axes, [*RUNGS.values()])


def _draw_ratios(axes: Axes, of_workload: Sequence[Ladder]) -> None:
    """Draw iterations over the base's: for each rung and base optimizer plain inputs above centred ones."""
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    rows = [(base, rung) for base in BASES for rung in _ENDS]
    for ladder in of_workload:
        for rung in _ENDS:
            if (ratio := ladder.ratio(rung)) is None:
                continue
            row = rows.index((ladder.base, rung)) + (_APART if ladder.centred else -_APART)
            _draw(axes, ratio, row, _LOOKS[ladder.base], hollow=ladder.centred)
    axes.axhline(len(_ENDS) - 0.5, color="#BBBBBB", linewidth=0.6)
    forest.name_rows(axes, [RUNGS[rung] for _, rung in rows])


def _draw(axes: Axes, found: Estimate, row: float, look: styles.MethodStyle, *, hollow: bool = False) -> None:
    """Draw a marker with its interval."""
    if found.has_interval:
        axes.hlines(row, found.low, found.high, color=look.color, linewidth=1.6, alpha=0.55)
    face: dict[str, Any] = {"markerfacecolor": "white"} if hollow else {}
    axes.plot(found.value, row, marker=look.marker, color=look.color, markersize=4.2, **face)


def _head(axes: Axes, lines: Sequence[str]) -> None:
    """Write small lines right above a panel."""
    panels.annotate(axes, "\n".join(lines), (0.5, 1), ha="center", va="bottom", xytext=(0, 1.5), color=page.SOFT)
