"""Figure 14 (ours): time of a factor update and of preconditioning over the width of a layer, with fitted slopes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import estimate, wider_half
from workflow.bench.analysis.fits import cycle_mean, mean_by_width, width_laws
from workflow.bench.analysis.wording import number
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

PROBES = ("cost_scaling",)
PARTS: Final = {"factor": "factor update", "precondition": "preconditioning"}
FLOOR: Final = "floor"
_NAMED: Final = ("kaisa", "mkor")
_PERIOD: Final = 10
"""The inverse update period of the caption's work of a step."""
_APART: Final = 0.055
"""The least distance of two exponents, as a share of the panel's height."""


def _name_slopes(axes: Axes, rows: pd.DataFrame) -> None:
    """Write each label's exponent, with its marker, to the right of its last point, without overlap."""
    low, high = np.log10(axes.get_ylim())
    lowest = -1.0
    ends = {str(label): float(mean_by_width(times).iloc[-1]) for label, times in rows.groupby("optimizer")}
    # From the lowest curve upwards, each exponent at its curve's height or above the exponent before.
    for label in sorted(ends, key=lambda label: ends[label]):
        wide = rows[rows["optimizer"].eq(label) & rows["dimension"].isin(wider_half(rows["dimension"]))]
        if not (laws := width_laws(wide)):
            continue
        exponent = estimate([law.exponent for law in laws.values()]).value
        lowest = max((np.log10(ends[label]) - low) / (high - low), lowest + _APART)
        look = styles.style_of(label)
        marked: dict[str, Any] = {"marker": look.marker, "color": look.color, "linestyle": "none"}
        axes.plot(1.04, lowest, transform=axes.transAxes, clip_on=False, **marked)
        panels.annotate(axes, f"$d^{{{round(exponent, 2) + 0.0:.2f}}}$", (1.04, lowest), xytext=(5, 0), fontsize=7)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the times of both parts and of copying a matrix over the width, on logarithmic axes."""
    rows = results.some_rows("cost_scaling")
    figure, (axes,) = page.new_figure(1, len(PARTS), height=3.0, sharey=True)
    for panel, (part, title) in zip(axes, PARTS.items(), strict=True):
        panel.set_title(title)
        panel.set_xscale("log")
        panel.set_yscale("log")
        of_part = rows[rows["part"].isin((part, FLOOR))]
        for label in styles.in_order(of_part["optimizer"]):
            repeats, look = of_part[of_part["optimizer"] == label], styles.style_of(label)
            means, spread = mean_by_width(repeats), repeats.groupby("dimension")["ms"].agg(["min", "max"])
            panel.plot(means.index, means, color=look.color, linewidth=0.8, marker=look.marker)
            panel.vlines(means.index, spread["min"], spread["max"], color=look.color, linewidth=1.6, alpha=0.55)
        panels.fixed_ticks(panel.xaxis, rows["dimension"].unique())
        panel.set_xlabel("width d of the layer")
    panels.plain_log_ticks(axes[0])
    # Not before all curves are drawn: the panels share an axis, whose limits place the exponents.
    for panel, part in zip(axes, PARTS, strict=True):
        _name_slopes(panel, rows[rows["part"].isin((part, FLOOR))])
    axes[0].set_ylabel("time (ms)")
    legend = page.entries_of(rows["optimizer"], linestyle="none")
    notes = [
        "markers: geometric means of the repeats; bars: fastest and slowest repeat; right of the curves: exponent of "
        "the power law in the width d, fitted in each repeat to the wider half of the widths, as claim C11 does: at "
        "small widths fixed costs are measured; a matrix that outgrows the caches costs more for each entry",
        "factor update: one factor of width d, without the capture of its rows; preconditioning: a gradient [d, d] "
        "with the factors of both sides; copy: of a float32 matrix [d, d], a floor of methods that update one",
        *_on_a_step(rows),
    ]
    if once := _timed_once(rows):
        notes.append(f"timed only once, because slow: {once}")
    text = page.footer(results, rows, notes=notes)
    widths = wider_half(rows["dimension"])
    span = page.span(f"{width:,}" for width in (widths[0], widths[-1]))
    reading = f"Beside the curves: power of the width, fitted at {span}. Bars: fastest and slowest repeat."
    return page.save(figure, folder, "fig14_cost_scaling", legend, text, _message(rows), reading, columns=2)


def _at_the_largest_width(rows: pd.DataFrame) -> tuple[int, dict[str, dict[str, float]]]:
    """Return the largest width at which KFAC and MKOR have both parts, and their mean times by part and label.

    Width 0, and no times, if there is none.
    """
    means = {
        (part, label): mean_by_width(rows[rows["optimizer"].eq(label) & rows["part"].eq(part)])
        for part in PARTS
        for label in _NAMED
    }
    width = max(set.intersection(*({*mean.index} for mean in means.values())), default=0)
    if not width:
        return 0, {}
    return width, {part: {label: float(means[part, label][width]) for label in _NAMED} for part in PARTS}


def _message(rows: pd.DataFrame) -> str:
    """Return the title: KFAC's times over MKOR's at the largest width, by part."""
    width, ms = _at_the_largest_width(rows)
    if not width:
        return ""
    update, precondition = (ms[part]["kaisa"] / ms[part]["mkor"] for part in PARTS)
    start = f"At width {width:,} KFAC takes {update:,.0f} times as long as MKOR to update a factor"
    return f"{start}, and {number(precondition, 2)} times to precondition"


def _on_a_step(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentence on KFAC's work of a mean step over MKOR's, if there are times of both."""
    width, ms = _at_the_largest_width(rows)
    if not width:
        return []
    # A layer has two factors, updated in one of so many steps, and is preconditioned in all of them.
    always, update = ms["precondition"], ms["factor"]
    kfac, mkor = (cycle_mean(2 * update[label] + always[label], always[label], _PERIOD) for label in _NAMED)
    ratio = number(kfac / mkor, 2)
    return [f"with both factors updated in one of {_PERIOD} steps, KFAC's work on a step is {ratio} times MKOR's"]


def _timed_once(rows: pd.DataFrame) -> str:
    """Return the optimizers, parts and widths that were timed only once, for the caption."""
    counts = rows.groupby(["optimizer", "part", "dimension"]).size()
    once = counts[(counts == 1) & (counts.max() > 1)].reset_index()
    return ", ".join(
        f"{styles.style_of(str(label)).name} {PARTS.get(str(part), part)} at {', '.join(map('{:g}'.format, widths))}"
        for (label, part), widths in once.groupby(["optimizer", "part"])["dimension"]
    )
