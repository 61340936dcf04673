"""Figure 23 (ours): speedups over AdamW over the width of a model, and the largest width as it was predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.ladder import Decision
from workflow.bench.analysis.widths import HELD_OUT, PLACES, Where, Widths, sentences, widths
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

EXPERIMENTS = ("width",)

_APART: Final = 0.1
"""The distance of two labels at one width, in the logarithm of the width."""
_PREDICTED: Final = 0.05
"""The distance of a predicted value to the right of the measured one, in the logarithm of the width."""
_DASH: Final[Mapping[str, Any]] = {"linestyle": "none", "marker": "_", "markersize": 10, "markeredgewidth": 1.8}
"""The look of a predicted value."""
_HOLLOW: Final[Mapping[str, Any]] = {"linestyle": "none", "markerfacecolor": "white", "markersize": 6, "zorder": 3}
"""The look of a bound, on the label's own marker: of a smaller star the inside cannot be seen."""
_NAMED: Final = 2
"""The title names so many optimizers of one decision, and counts more."""
_VERBS: Final[Mapping[Decision, str]] = {"holds": "holds", "fails": "fails", "open": "is open"}
_NOTES: Final = (
    "AdamW's iterations over the optimizer's, geometric mean over seeds and tuning studies, t interval over studies; "
    "at the final quality: to what AdamW has reached after 90 % of its steps; over the sweep: the geometric mean over "
    "the targets. Hollow: a run of the optimizer missed a target and counts with its budget, so that the speedup is at "
    "most this, and its interval has an upper end alone. Dash: what a straight line through the smaller widths has at "
    "the largest, one line in each study, of optimizers that miss few targets. The slopes are in the table width",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw speedups over the width, at the final quality and over the sweep."""
    found = widths(results)
    labels = styles.in_order(found.labels)
    figure, (axes,) = page.new_figure(1, 2, height=2.6, sharey=True)
    for panel, where in zip(axes, PLACES, strict=True):
        panel.set_title(where)
        _draw_speedups(panel, found, labels, where)
    axes[0].set_ylabel("speedup in iterations\nover AdamW")
    panels.plain_log_ticks(axes[0])
    bound = page.hollow_entry("at most: a run missed a target", markersize=_HOLLOW["markersize"])
    legend = [*page.entries_of(labels), page.guide_entry("predicted", **_DASH), bound, page.bar_entry()]
    notes = [*_NOTES, *sentences(found, lambda label: styles.style_of(label).name)]
    text = page.caption(results, found.runs, notes=notes, summarized=False)
    reading = "Above 1: fewer iterations than AdamW. Predicted: from the smaller widths, if few targets are missed."
    return page.save(figure, folder, "fig23_width", legend, text, _message(found), reading)


def _message(found: Widths) -> str:
    """Return the title: whether predictions held, or before MKOR's speedup at the smallest and the largest width."""
    data, where = styles.data_title(found.runs), PLACES[0]
    predicted = {label: found.extrapolated(label, where) for label in styles.in_order(found.labels)}
    tested = {label: one for label, one in predicted.items() if one and one.measured is not None}
    if tested:
        by_decision: dict[str, list[str]] = {}
        for label, one in tested.items():
            by_decision.setdefault(_VERBS[one.decision], []).append(styles.style_of(label).name)
        counts = [
            f"{verb} for {in_words(names) if len(names) <= _NAMED else f'{len(names)} of {len(tested)} optimizers'}"
            for verb, names in sorted(by_decision.items())
        ]
        return f"{data}: at width {HELD_OUT} the predicted speedup over AdamW {', '.join(counts)}"
    speedups = found.speedups("mkor", where) if "mkor" in found.labels else {}
    if len(speedups) < 2:
        return ""
    (small, first), *_, (large, last) = speedups.items()
    ends = f"{first.value:.2f} at width {small:g}{forest.undecided(first)}"
    ends += f", {last.value:.2f} at {large:g}{forest.undecided(last)}"
    return f"{data}: MKOR's speedup over AdamW {where} is {ends}"


def _draw_speedups(axes: Axes, found: Widths, labels: list[str], where: Where) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axhline(1, color=page.GUIDE, linewidth=0.8)
    for label, place in panels.places_beside(labels, _APART).items():
        speedups, missed = found.speedups(label, where), found.missed(label, where)
        # Of what may be less the lower end is unknown.
        bounds = {width: replace(one, low=one.value) for width, one in speedups.items() if missed[width]}
        panels.draw_estimates(axes, speedups | bounds, label, place)
        look, heights = styles.style_of(label), [one.value for one in bounds.values()]
        axes.plot([place * width for width in bounds], heights, marker=look.marker, color=look.color, **_HOLLOW)
        if (extrapolated := found.extrapolated(label, where)) is not None:
            predicted = {HELD_OUT * math.exp(_PREDICTED): extrapolated.predicted}
            panels.draw_estimates(axes, predicted, label, place, **_DASH)
    panels.fixed_ticks(axes.xaxis, sorted({*found.sweeps, HELD_OUT}))
    axes.set_xlabel("width")
