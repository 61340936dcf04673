"""Figure 18 (ours): how far each side of MKOR turns the gradient."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow.bench.analysis import styles
from workflow.bench.analysis.styles import MethodStyle
from workflow.bench.analysis.wording import number
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

PROBES = ("factors",)
WHOLE: Final = "mkor"
"""The label of MKOR with both sides and the paper's vectors."""
FACTORS: Final = {
    ("right", WHOLE): MethodStyle("J_R, input side", "#000000", "o", "-"),
    ("left", WHOLE): MethodStyle("J_L, output side, as in the paper", styles.style_of(WHOLE).color, "v", "-"),
    ("left", "mkor_scaled"): MethodStyle("J_L, with g × 65,536", styles.style_of("mkor_scaled").color, "s", "--"),
    ("left", "mkor_normalized"): MethodStyle("J_L, with |g| = 3", styles.style_of("mkor_normalized").color, "p", ":"),
}
"""The factors that the probe follows, by side and vectors."""
_SIZES: Final = {"o": 3.6, "v": 6.5, "s": 4.8, "p": 3.2}
"""The sizes of the markers: where all have the same value, each remains visible."""
ROUNDING: Final = 1e-16
"""The least change of direction that is drawn."""


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the changes of direction over iterations by workload."""
    rows = results.some_rows("factors")
    rows = rows.assign(drawn=rows["direction_change"].clip(lower=ROUNDING))
    figure, axes = draw_factors(rows, "drawn")
    for panel in axes:
        panel.set_ylim(ROUNDING / 10, 10)
        panels.decade_ticks(panel.yaxis)
    axes[0].set_ylabel("turned by 1 − cos")
    notes = [
        "1 − cos of the gradient and the update that one side alone gives; thin lines: layers, thick lines: their "
        f"median; drawn from {ROUNDING:g} on: a g of zero, as before a batch normalization, turns nothing; all factors "
        "follow one training, with the paper's g",
        _changes(rows),
    ]
    text = page.footer(results, rows, notes=notes)
    reading = f"How far one side alone turns the gradient; {ROUNDING:g} is none. Thin: layers; thick: their median."
    return page.save(figure, folder, "fig18_factors", entries(), text, _message(rows), reading, columns=2)


def draw_factors(rows: pd.DataFrame, quantity: str) -> tuple[Figure, Sequence[Axes]]:
    """Draw a quantity of each layer's factors over iterations on a log axis, a panel for each workload."""
    names = page.probed_workloads(rows)
    figure, (axes,) = page.new_figure(1, len(names), height=2.3, sharey=True)
    for panel, workload in zip(axes, names, strict=True):
        of_workload = rows[rows["workload"] == workload]
        panel.set_title(f"{styles.workload_name(workload)},\n{of_workload['layer'].nunique()} layers", fontsize=7)
        panel.set_yscale("log")
        by_factor = of_workload.groupby(["side", "vectors"])
        for key, look in FACTORS.items():
            if key in by_factor.groups:
                _draw_layers(panel, by_factor.get_group(key), quantity, look)
        panel.set_xlabel("iteration")
    return figure, axes


def _message(rows: pd.DataFrame) -> str:
    """Return the title: how far each side of MKOR turns the gradient, at most, in the layers' median and in one."""
    of_mkor = rows[rows["vectors"] == WHOLE].dropna(subset="direction_change")
    medians = of_mkor.groupby(["side", "workload", "step"])["direction_change"].median()
    if not {"left", "right"} <= {*of_mkor["side"]}:
        return ""
    right, left = (float(medians[side].max()) for side in ("right", "left"))
    most = float(of_mkor.loc[of_mkor["side"] == "left", "direction_change"].max())
    least = f"by {rounded_up(left):g}; in one layer by {rounded_up(most):g}" if most > ROUNDING else "not at all"
    of_input = f"In the median layer MKOR's input side turns the gradient by up to 1−cos = {rounded_up(right, 2):g}"
    return f"{of_input}, its output side {least}"


def rounded_up(value: float, digits: int = 1) -> float:
    """Return a number above 0 with so many significant digits, rounded up as a bound must be."""
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    # A number of so few digits is its own bound, whatever rounding made of it.
    return math.ceil(value / unit * (1 - 1e-6)) * unit


def entries() -> list[Artist]:
    """Return the legend's entries of the factors."""
    return [
        page.line_entry(look, markersize=_SIZES[look.marker], label=re.sub(r"J_[LR]", r"$\g<0>$", look.name))
        for look in FACTORS.values()
    ]


def _draw_layers(axes: Axes, rows: pd.DataFrame, quantity: str, look: MethodStyle) -> None:
    """Draw a thin line for each layer and a thick one for their median."""
    by_step = rows.pivot_table(index="step", columns="layer", values=quantity)
    axes.plot(by_step.index, by_step, color=look.color, linewidth=0.4, alpha=0.3)
    median = by_step.median(axis=1)
    line: dict[str, Any] = {"linestyle": look.line, "marker": look.marker, "markersize": _SIZES[look.marker]}
    axes.plot(median.index, median, color=look.color, linewidth=1.5, **line)


def _changes(rows: pd.DataFrame) -> str:
    """Return the caption's numbers of the changes of direction."""
    by_factor = rows.groupby(["side", "vectors"])
    phrases = []
    for key, look in FACTORS.items():
        if key in by_factor.groups:
            of_factor = by_factor.get_group(key)
            medians, most = of_factor.groupby("workload")["drawn"].median(), of_factor["direction_change"].max()
            ends = page.span(number(value, 2) for value in (medians.min(), medians.max()))
            phrases.append(f"{look.name}: {ends}, {number(most, 2)}")
    return f"1 − cos, medians by workload and largest: {'; '.join(phrases)}"
