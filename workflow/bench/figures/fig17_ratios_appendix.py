"""Figure 17, appendix: every optimizer against its base, and what it does to the gradient, a row each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
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
    "iterations to these targets over those of the base optimizer, geometric mean and interval, below 1 in the "
    "method's favor; methods without a base are compared to the one named above the panel, which has a bare marker, "
    "and those with another base to that one; a run that misses a target enters with its budget",
    "cosine, norm: of a matrix's step against the step of SGD with the same gradients, rate and momentum, a dot for "
    "each workload (median over matrices and 20 steps)",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a row for each label: its iterations over its base's by workload, and the cosine and norm of its step."""
    found = [contest for contest in contests(results) if contest.experiment in _SHOWN]
    if not found:
        raise NoDataError(f"none of {', '.join(_SHOWN)} has runs in {results.root}: run make field first.")
    steps = results.probe("field_steps")
    steps = steps[steps["experiment"].isin(_SHOWN)]
    present = {label for contest in found for label in contest.labels}
    of_families = [label for members in field.FAMILIES.values() for label in members if label in present]
    labels = of_families + styles.in_order(present - {*of_families})
    figure, (axes,) = page.new_figure(1, len(found) + 2, height=0.6 + _ROW_INCHES * len(labels))
    names = [_name_of(label, found) for label in labels]
    for number, (panel, contest) in enumerate(zip(axes, found, strict=False)):
        title = styles.data_title(contest.runs, width=10)
        panel.set_title(f"{title}\nover {styles.style_of(contest.base).name}", fontsize=6)
        _draw_ratios(panel, contest, labels)
        _name(panel, names if number == 0 else [""] * len(names))
    for panel, column in zip(axes[len(found) :], ("cosine", "norm"), strict=True):
        panel.set_title(f"{column}\nof the step", fontsize=6)
        _draw_turns(panel, steps, column, labels)
        _name(panel, [""] * len(names))
    text = field.caption(results, found, _NOTES, [] if len(steps) else ["field_steps"])
    reading = "Iterations to the base's targets, left of 1 is faster; cosine and norm against SGD's step."
    return page.save(figure, folder, "fig17_ratios_appendix", [page.bar_entry()], text, reading=reading)


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
    ends = [1.0]
    for row, label in enumerate(labels):
        if label not in contest.labels:
            continue
        base = contest.base_of(label)
        if label == base:
            look = styles.style_of(label)
            axes.plot(1, row, marker=look.marker, color=look.color, markersize=4)
        elif (ratio := contest.steps(label).estimate) is not None:
            forest.draw_estimate(axes, ratio, row, label)
            ends.append(ratio.value)
    # Values and not intervals set the limits: one wide interval would press all markers together.
    axes.set_xlim(max(min(ends) / 1.5, 0.03), min(max(ends) * 1.5, 30.0))
    panels.fixed_ticks(axes.xaxis, (0.03, 0.1, 0.3, 1, 3, 10))
    axes.tick_params(axis="x", labelsize=6)


def _draw_turns(axes: Axes, steps: pd.DataFrame, column: str, labels: Sequence[str]) -> None:
    """Draw a dot for each workload in each label's row: its cosine, or its norm on a logarithmic axis."""
    for row, label in enumerate(labels):
        values = steps.loc[steps["optimizer"] == label, column].dropna().astype(float)
        axes.plot(values, [row] * len(values), ".", color=styles.style_of(label).color, markersize=3.5)
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    if column == "cosine":
        axes.set_xlim(-0.1, 1.1)
        panels.fixed_ticks(axes.xaxis, (0, 0.5, 1))
    else:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        if high > 1000 * low:
            panels.decade_ticks(axes.xaxis, most=3)
        else:
            panels.fixed_ticks(axes.xaxis, (0.1, 0.3, 1, 3, 10))
    axes.tick_params(axis="x", labelsize=6)


def _name(axes: Axes, names: Sequence[str]) -> None:
    forest.name_rows(axes, names)
    axes.tick_params(axis="y", labelsize=5.8, length=0)
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0, linewidth=0)
