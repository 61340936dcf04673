"""Figure 17, appendix: every optimizer against its base, and the angle of its step to that of SGD, a row each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.field import Contest, contests
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import fig17_field as field
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = FIELD
PROBES = ("field_steps",)

_SHOWN: Final = ("field_autoencoder", "field_autoencoder_lamb", "field_alexnet", "field_language_model")
_ROW_INCHES: Final = 0.135
_NOTES: Final = (
    "Targets are what the base reaches after 30, 40, ... 100 % of its steps, without trivial and early ones; "
    "iterations to these targets over those of the base optimizer, geometric mean and t interval over studies, below 1 "
    "in the method's favor; methods without a base are compared to the one named above the panel, which has a bare "
    "marker, and those with another base to that one; a run that misses a target enters with its budget",
    "cosine: of a matrix's whole step, momentum and the rule of the base included, against SGD's step with the same "
    "gradients, rate and momentum, a dot for each workload (median over matrices and the steps 21 to 40 of the first "
    "study's values, without a schedule). That a method is inert is another cosine: of each single gradient before and "
    "after preconditioning, the median over the training of all runs. So Eva, inert, whose lengths differ from step to "
    "step, adds the same gradients with other weights in the momentum, and its steps are not those of SGD",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a row for each label: its iterations over its base's by workload, and the cosine of its step to SGD's."""
    found = [contest for contest in contests(results) if contest.experiment in _SHOWN]
    if not found:
        raise NoDataError(f"none of {', '.join(_SHOWN)} has runs in {results.root}: run make field first.")
    steps = results.probe("field_steps")
    steps = steps[steps["experiment"].isin(_SHOWN)]
    present = {label for contest in found for label in contest.labels}
    of_families = [label for members in field.FAMILIES.values() for label in members if label in present]
    labels = of_families + styles.in_order(present - {*of_families})
    figure, (axes,) = page.new_figure(1, len(found) + 1, height=0.6 + _ROW_INCHES * len(labels))
    names = [_name_of(label, found) for label in labels]
    for number, (panel, contest) in enumerate(zip(axes, found, strict=False)):
        title = styles.data_title(contest.runs, width=10)
        panel.set_title(f"{title}\nover {styles.style_of(contest.base).name}", fontsize=6)
        _draw_ratios(panel, contest, labels)
        _name(panel, names if number == 0 else [""] * len(names))
    axes[-1].set_title("whole step's\ncosine to SGD's,\nsteps 21 to 40", fontsize=6)
    _draw_cosines(axes[-1], steps, labels)
    _name(axes[-1], [""] * len(names))
    text = field.caption(results, found, _NOTES, [] if len(steps) else ["field_steps"])
    reading = (
        "Left of 1 is faster. Cosines are of whole steps, with momentum; inert methods keep each gradient's direction."
    )
    legend = [
        page.row_bar_entry(),
        page.guide_entry("it goes on outside", color="#777777", linestyle="none", marker=">"),
    ]
    return page.save(figure, folder, "fig17_ratios_appendix", legend, text, reading=reading)


def _name_of(label: str, found: Sequence[Contest]) -> str:
    """Return a label's name, with its base where that is another one than the panels name."""
    bases = {
        base
        for contest in found
        if label in contest.labels and (base := contest.base_of(label)) not in (label, contest.base)
    }
    own = in_words(styles.style_of(base).short for base in sorted(bases)) if bases else ""
    return f"{styles.style_of(label).name}, over {own}" if own else styles.style_of(label).name


def _draw_ratios(axes: Axes, contest: Contest, labels: Sequence[str]) -> None:
    """Draw the iterations of each label over those of its base, a row each."""
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    rows = {row: label for row, label in enumerate(labels) if label in contest.labels}
    bare = [row for row, label in rows.items() if contest.base_of(label) == label]
    found = {row: contest.steps(label).estimate for row, label in rows.items() if row not in bare}
    ratios = {row: ratio for row, ratio in found.items() if ratio is not None}
    # Values and not intervals set the limits: one wide interval would press all markers together.
    values = [1.0, *(ratio.value for ratio in ratios.values())]
    low, high = max(min(values) / 1.5, 0.03), min(max(values) * 1.5, 30.0)
    axes.set_xlim(low, high)
    for row, ratio in ratios.items():
        forest.draw_estimate(axes, cut(ratio, low, high), row, rows[row])
    for row in bare:
        look = styles.style_of(rows[row])
        axes.plot(1, row, marker=look.marker, color=look.color, markersize=4)
    panels.fixed_ticks(axes.xaxis, (0.03, 0.1, 0.3, 1, 3, 10))
    axes.tick_params(axis="x", labelsize=6)


def cut(ratio: Estimate, low: float, high: float) -> Estimate:
    """Return a ratio without the ends of its interval that lie beyond a panel's limits: they become arrows."""
    return replace(
        ratio, low=ratio.low if ratio.low >= low else 0.0, high=ratio.high if ratio.high <= high else math.inf
    )


def _draw_cosines(axes: Axes, steps: pd.DataFrame, labels: Sequence[str]) -> None:
    """Draw a dot for each workload in each label's row."""
    for row, label in enumerate(labels):
        values = steps.loc[steps["optimizer"] == label, "cosine"].dropna().astype(float)
        axes.plot(values, [row] * len(values), ".", color=styles.style_of(label).color, markersize=3.5)
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    low, _ = axes.get_xlim()
    axes.set_xlim(min(low, -0.1), 1.1)
    panels.fixed_ticks(axes.xaxis, (-1, -0.5, 0, 0.5, 1))
    axes.tick_params(axis="x", labelsize=6)


def _name(axes: Axes, names: Sequence[str]) -> None:
    forest.name_rows(axes, names)
    axes.tick_params(axis="y", labelsize=5.8, length=0)
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0, linewidth=0)
