"""Figure 17 (ours): the field, ranked by iterations to the base optimizer's targets, and profiles of its families."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import looks
from workflow.bench.analysis.field import Contest, contests
from workflow.bench.figures import _field as field
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = FIELD

FIRST: Final = 12
"""Ranks that have a row."""
ALWAYS: Final = ("sgd", "adamw", "muon", "kaisa", "mkor", "mkor_normalized")
"""Labels that have a row wherever they rank: the references, and what this project is about."""
_MARKERS: Final = ("o", "s", "^", "D")
_ROW_INCHES: Final = 0.165
_NOTES: Final = (
    "Left: iterations to what the base optimizer reaches after 30, 40, ... 100 % of its steps over those of the base "
    "itself, by workload (hollow, geometric mean over targets and seeds), and their geometric mean over workloads, by "
    "which optimizers are ranked; a run that misses a target enters with its budget",
    "right: the best optimizer of each family and MKOR, the others gray; their bands stand in the appendix; "
    + field.PROFILES_NOTE,
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the ranked rows, and the profile of the best of each family.

    Raises:
        NoDataError: no experiment of the field that compares all families has runs.
    """
    everything = contests(results)
    chosen = field.pooled(everything)
    if not chosen:
        raise NoDataError(f"none of {', '.join(field.POOLED)} has runs in {results.root}: run make field first.")
    ratios = ranked(chosen)
    order = [*ratios]
    shown = [label for rank, label in enumerate(order) if rank < FIRST or label in ALWAYS]
    figure, ((rows, profile),) = style.new_figure(1, 2, height=0.7 + _ROW_INCHES * len(shown), width_ratios=(1, 1.1))
    _draw_rows(rows, {label: ratios[label] for label in shown})
    forest.name_rows(rows, [f"{order.index(label) + 1}  {looks.style_of(label).name}" for label in shown])
    leaders = [next((label for label in order if label in members), "") for members in field.FAMILIES.values()]
    named = [label for label in order if label in {*leaders, "mkor"}]
    field.draw_profiles(profile, field.profiles_of(everything), named, banded=False, gap=0.06)
    profile.set(xlabel="factor of the best's iterations", ylabel="targets reached (%)")
    texts: page.Texts = {
        "caption": field.caption(results, everything, _NOTES),
        "message": _message(ratios),
        "reading": f"Left: the first {FIRST} of {len(order)}, and references; left of 1 is faster than the base.",
    }
    return page.save(figure, folder, "fig17_field", legend=_entries(chosen), columns=2, **texts)


def ranked(chosen: Sequence[Contest]) -> dict[str, list[float]]:
    """Return each label's iterations over those of a contest's base, by contest, the best label first.

    Labels without a ratio in one of the contests are left out; the geometric mean over contests ranks.
    """
    shared = set.intersection(*({*contest.labels} for contest in chosen))
    found: dict[str, list[float]] = {}
    for label in looks.in_order(shared):
        ratios = [contest.sweep.steps_ratio(label, contest.base).estimate for contest in chosen]
        if all(ratio is not None for ratio in ratios):
            found[label] = [ratio.value for ratio in ratios if ratio is not None]
    return dict(sorted(found.items(), key=lambda item: _mean(item[1])))


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, ratios)))


def _draw_rows(axes: Axes, ratios: Mapping[str, Sequence[float]]) -> None:
    """Draw a row per label: hollow markers are workloads, the bar is their geometric mean."""
    axes.axvline(1, color=style.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    for row, (label, values) in enumerate(ratios.items()):
        color = looks.style_of(label).color
        if row % 2 == 0:
            axes.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0, linewidth=0)
        for marker, value in zip(_MARKERS, values, strict=False):
            hollow: dict[str, Any] = {"markerfacecolor": "white", "markersize": 3.4, "markeredgewidth": 0.8}
            axes.plot(value, row, marker=marker, color=color, alpha=0.8, **hollow)
        axes.plot(_mean(values), row, marker="|", color=color, markersize=9, markeredgewidth=2.4, zorder=5)
    low, high = axes.get_xlim()
    panels.fixed_ticks(axes.xaxis, [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5) if low < tick < high])
    axes.set_xlabel("iterations, base: 1")
    axes.tick_params(axis="y", length=0)


def _message(ratios: Mapping[str, Sequence[float]]) -> str:
    """Return the title: the first of the ranks with its mean, and the rank of MKOR; empty without labels."""
    if not ratios:
        return ""
    first, *_ = order = [*ratios]
    leads = f"{looks.style_of(first).name} leads {len(order)} optimizers"
    title = f"{leads} at {_mean(ratios[first]):.2f} times the base's iterations"
    if "mkor" not in ratios or first == "mkor":
        return title
    return f"{title}; MKOR ranks {order.index('mkor') + 1} at {_mean(ratios['mkor']):.2f}"


def _entries(chosen: Sequence[Contest]) -> list[Artist]:
    entries = [
        page.hollow_entry(f"{looks.data_title(contest.runs)}, over {looks.style_of(contest.base).name}", marker)
        for contest, marker in zip(chosen, _MARKERS, strict=False)
    ]
    bar: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 9, "markeredgewidth": 2.4}
    entries.append(page.guide_entry("geometric mean", **bar))
    return entries
