"""Figure 21 (ours): the share of KFAC's gain that each rung keeps, and what remains where inputs are centred."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from workflow.bench.analysis import looks
from workflow.bench.analysis.estimates import Estimate, shown_level
from workflow.bench.analysis.ladder import (
    BASES,
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
    "sgd": looks.MethodStyle("over SGD", "#0072B2", "o", "-"),
    "adamw": looks.MethodStyle("over AdamW", "#B35806", "s", "-"),
}
_APART: Final = 0.22
"""The distance of the two base optimizers from the middle of a row."""
_SPAN: Final = (-45.0, 145.0)
"""The shares that a panel shows, in percent."""
_ENDS: Final = ("mkor", "both_sides", TOP)
"""The rungs that are trained with centred inputs, too."""
_NOTES: Final = (
    "Above: gain of a rung over gain of KFAC; a gain is the logarithm of the base optimizer's iterations over the "
    "rung's, the mean over the sweep's targets; Fieller's interval over tuning studies, which may leave the panel; a "
    "triangle at its edge is a share beyond it, and there is none where the interval of KFAC's own gain reaches 0. "
    "Centring alone is the base optimizer with centred inputs",
    "Below: iterations over those of the base optimizer with the same inputs, geometric mean over targets, seeds and "
    "studies, t interval over studies; below 1 saves iterations. Above each panel: what the runs say of the prediction",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a column for each workload: shares of KFAC's gain above, plain and centred inputs below."""
    found, left_out = ladders(results)
    declared = predictions(found)
    workloads = list(dict.fromkeys(ladder.workload for ladder in found))
    figure, axes = page.new_figure(2, len(workloads), height=3.5, sharex="row", sharey="row")
    for (upper, lower), workload in zip(axes.T, workloads, strict=True):
        of_workload = [ladder for ladder in found if ladder.workload == workload]
        lines = _draw_shares(upper, [ladder for ladder in of_workload if not ladder.centred])
        title = looks.data_title(of_workload[0].runs, width=66 // len(workloads))  # 66 letters in all panels
        upper.set_title(title, pad=4 + 7.5 * lines)
        _draw_ratios(lower, of_workload)
        _head(lower, [f"{NAMES[one.base]}: {one.said}" for one in declared if one.workload == workload])
    for upper in axes[0]:
        upper.set_xlim(*_SPAN)
        panels.fixed_ticks(upper.xaxis, (0, 50, 100))
        upper.set_xlabel("gain kept (%)")
    low, high = axes[1, 0].get_xlim()
    for lower in axes[1]:
        ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10) if high > 4 * low else (0.3, 0.5, 0.7, 1, 1.4, 2)
        panels.fixed_ticks(lower.xaxis, ticks)
        lower.set_xlabel("iterations, base: 1")
    plain = replace(_LOOKS["sgd"], name="plain inputs", color=page.GUIDE, marker="D")
    legend = [*map(page.marker_entry, (*_LOOKS.values(), plain)), page.hollow_entry("centred inputs", "D")]
    legend.append(page.guide_entry(f"{shown_level()} interval", color="#777777", linewidth=1.6))
    notes = [*_NOTES, *sentences(found, looks.workload_name)]
    notes += [f"Not shown: {'; '.join(left_out)}"] if left_out else []
    runs = runs_of(found)
    text = page.caption(results, runs, notes=notes, summarized=False)
    reading = "Above: KFAC is 100 %. Below: left of 1 is faster."
    return page.save(figure, folder, "fig21_ladder", legend, text, _message(found), reading, columns=5)


def _message(found: Sequence[Ladder]) -> str:
    """Return the title: the shares of KFAC's gain that MKOR keeps, and the decision on centred inputs."""
    shares = [share.value for one in found if not one.centred and (share := one.share("mkor")) is not None]
    decision = in_general(decisions_by_workload(predictions(found)))
    vanishes = f"that it vanishes with centred inputs {'is open' if decision == 'open' else decision}"
    if not shares:
        return f"MKOR's gain in iterations: {vanishes}"
    low, high = (f"{100 * share:.0f}" if share <= 1 else "more than 100" for share in (min(shares), max(shares)))
    kept = low if low == high else f"{low} to {high}"
    return f"MKOR keeps {kept} % of KFAC's gain; {vanishes}"


def _draw_shares(axes: Axes, plain: Sequence[Ladder]) -> int:
    """Draw the share of KFAC's gain in a row for each rung, the base optimizers beside each other.

    Returns the number of lines above the panel, which say where there is no share.
    """
    for end in (0, 100):
        axes.axvline(end, color=page.GUIDE, linewidth=0.8)
    rungs = [rung for rung in RUNGS if rung != TOP]
    undefined: list[str] = []
    for ladder in plain:
        shares = {rung: share for rung in rungs if (share := ladder.share(rung)) is not None}
        for rung, share in shares.items():
            row = rungs.index(rung) + _APART * (2 * list(BASES).index(ladder.base) - 1)
            _draw(axes, share.scaled(100), row, _LOOKS[ladder.base], span=_SPAN)
        if not shares:
            undefined += [f"{_LOOKS[ladder.base].name}:", ladder.no_share(TOP)]
    _head(axes, undefined)
    forest.name_rows(axes, [RUNGS[rung] for rung in rungs])
    return len(undefined)


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


def _draw(
    axes: Axes,
    found: Estimate,
    row: float,
    look: looks.MethodStyle,
    *,
    hollow: bool = False,
    span: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Draw a marker with its interval; a value outside of ``span`` is a triangle at its edge."""
    low, high = span
    if found.has_interval:
        axes.hlines(row, max(found.low, low), min(found.high, high), color=look.color, linewidth=1.6, alpha=0.55)
    marker = "<" if found.value < low else ">" if found.value > high else look.marker
    face: dict[str, Any] = {"markerfacecolor": "white"} if hollow else {}
    value = min(max(found.value, low), high)
    axes.plot(value, row, marker=marker, color=look.color, markersize=4.2, clip_on=False, **face)


def _head(axes: Axes, lines: Sequence[str]) -> None:
    """Write small lines right above a panel."""
    panels.annotate(axes, "\n".join(lines), (0.5, 1), ha="center", va="bottom", xytext=(0, 1.5), color=page.SOFT)
