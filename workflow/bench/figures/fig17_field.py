"""Figure 17 (ours): the field, ranked by iterations to the base optimizer's targets, and profiles of its families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import captions, styles
from workflow.bench.analysis.field import Contest, Profile, contests, pooled_profiles
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = FIELD

FAMILIES: Final[Mapping[str, Sequence[str]]] = {
    "First order": ("sgd", "adamw", "nadamw", "lamb", "schedule_free_adamw", "adafisher", "adafisher_convex"),
    "Muon": ("muon", "muon_exact", "normuon", "newton_muon", "soap_muon", "mkor_muon", "mkor_muon_exact"),
    "Shampoo": ("shampoo", "distributed_shampoo", "soap", "soap_period_1", "kl_shampoo", "sketchy", "psgd_kron"),
    "KFAC": ("kaisa", "kaisa_again", "dp_kfac", "thermo_kfac", "rs_kfac", "b_kfac", "cgfac", "cgfac_block"),
    "Other natural gradients": ("kld_wrm", "kld_wrm_q", "singd", "hylo", "eva", "foof", "mac", "smac"),
    "MKOR": ("mkor", "mkor_h", "mkor_windowed", "mkor_normalized"),
}
"""The labels that one panel shows in color."""
POOLED: Final = ("field_autoencoder", "field_alexnet", "field_language_model")
"""The experiments that are pooled: those of all families."""
GRID: Final = np.geomspace(1, 8, 200)
"""Factors of the best at which profiles are drawn."""
_GAP: Final = 0.115
"""The least distance of two names beside a panel, in its height."""
PROFILES_NOTE: Final = (
    "profiles: the share of (target, seed) pairs in which an optimizer takes at most so many times the iterations of "
    "the best one, the mean over workloads; bands: intervals of a bootstrap that draws workloads, and of each of them "
    "tuning studies, or the seeds of a single one. Labels of one workload alone have no profile"
)
FIRST: Final = 12
"""Ranks that have a row."""
ALWAYS: Final = ("sgd", "adamw", "muon", "kaisa", "mkor", "mkor_normalized")
"""Labels that have a row wherever they rank: the references, and what this project is about."""
_MARKERS: Final = ("o", "s", "^", "D")
_BAR: Final[Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 2.4}
_ROW_INCHES: Final = 0.165
_NOTES: Final = (
    "Left: iterations to what the base optimizer reaches after 30, 40, ... 100 % of its steps over those of the base "
    "itself, by workload (hollow, geometric mean over targets and seeds), and their geometric mean over workloads, by "
    "which optimizers are ranked; a run that misses a target enters with its budget",
    "right: the best optimizer of each family and MKOR, the others gray; their bands stand in the appendix; "
    + PROFILES_NOTE,
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the ranked rows, and the profile of the best of each family."""
    everything = contests(results)
    chosen = pooled(everything)
    if not chosen:
        raise NoDataError(f"none of {', '.join(POOLED)} has runs in {results.root}: run make field first.")
    ratios = ranked(chosen)
    order = [*ratios]
    shown = [label for rank, label in enumerate(order) if rank < FIRST or label in ALWAYS]
    figure, ((rows, profile),) = page.new_figure(1, 2, height=0.7 + _ROW_INCHES * len(shown), width_ratios=(1, 1.1))
    _draw_rows(rows, {label: ratios[label] for label in shown})
    forest.name_rows(rows, [f"{order.index(label) + 1}  {styles.style_of(label).name}" for label in shown])
    leaders = [next((label for label in order if label in members), "") for members in FAMILIES.values()]
    named = [label for label in order if label in {*leaders, "mkor"}]
    draw_profiles(profile, profiles_of(everything), named, banded=False, gap=0.06)
    profile.set(xlabel="factor of the best's iterations", ylabel="targets reached (%)")
    text = caption(results, everything, _NOTES)
    reading = f"Left: the first {FIRST} of {len(order)}, and references; left of 1 is faster than the base."
    return page.save(figure, folder, "fig17_field", _entries(chosen), text, _message(ratios), reading, columns=2)


def ranked(chosen: Sequence[Contest]) -> dict[str, list[float]]:
    """Return each label's iterations over those of a contest's base, by contest, the best label first.

    Labels without a ratio in one of the contests are left out; the geometric mean over contests ranks.
    """
    shared = set.intersection(*({*contest.labels} for contest in chosen))
    found: dict[str, list[float]] = {}
    for label in styles.in_order(shared):
        ratios = [contest.sweep.steps_ratio(label, contest.base).estimate for contest in chosen]
        if all(ratio is not None for ratio in ratios):
            found[label] = [ratio.value for ratio in ratios if ratio is not None]
    return dict(sorted(found.items(), key=lambda item: geometric_mean(item[1])))


def _draw_rows(axes: Axes, ratios: Mapping[str, Sequence[float]]) -> None:
    """Draw a row per label: hollow markers are workloads, the bar is their geometric mean."""
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    for row, (label, values) in enumerate(ratios.items()):
        color = styles.style_of(label).color
        if row % 2 == 0:
            axes.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0, linewidth=0)
        for marker, value in zip(_MARKERS, values, strict=False):
            hollow: dict[str, Any] = {"markerfacecolor": "white", "markersize": 3.4, "markeredgewidth": 0.8}
            axes.plot(value, row, marker=marker, color=color, alpha=0.8, **hollow)
        axes.plot(geometric_mean(values), row, color=color, zorder=5, **_BAR)
    panels.fixed_ticks(axes.xaxis, (0.05, 0.1, 0.2, 0.5, 1, 2, 5))
    axes.set_xlabel("iterations, base: 1")
    axes.tick_params(axis="y", length=0)


def _message(ratios: Mapping[str, Sequence[float]]) -> str:
    """Return the title: the first of the ranks with its mean, and the rank of MKOR; empty without labels."""
    if not ratios:
        return ""
    first, *_ = order = [*ratios]
    leads = f"{styles.style_of(first).name} leads {len(order)} optimizers"
    title = f"{leads} at {geometric_mean(ratios[first]):.2f} times the base's iterations"
    if "mkor" not in ratios or first == "mkor":
        return title
    return f"{title}; MKOR ranks {order.index('mkor') + 1} at {geometric_mean(ratios['mkor']):.2f}"


def _entries(chosen: Sequence[Contest]) -> list[Artist]:
    names = (f"{styles.data_title(contest.runs)}, over {styles.style_of(contest.base).name}" for contest in chosen)
    return [*map(page.hollow_entry, names, _MARKERS), page.guide_entry("geometric mean", linestyle="none", **_BAR)]


# What the appendices share


def pooled(everything: Sequence[Contest]) -> list[Contest]:
    """Return the contests that are pooled."""
    return [contest for contest in everything if contest.experiment in POOLED]


def profiles_of(everything: Sequence[Contest]) -> dict[str, Profile]:
    """Return the profiles of the labels that all pooled contests have."""
    chosen = pooled(everything)
    return pooled_profiles(chosen, GRID) if chosen else {}


def caption(results: Results, everything: Sequence[Contest], notes: Iterable[str], absent: Iterable[str] = ()) -> str:
    """Return the caption of a figure of the field, whose intervals are drawn whatever the number of seeds."""
    runs = pd.concat([contest.runs for contest in everything], ignore_index=True)
    names = replace(page.NAMES, shows_runs=False)
    return captions.caption(results, runs, notes=notes, absent=absent, names=names)


def draw_profiles(
    axes: Axes, profiles: Mapping[str, Profile], members: Sequence[str], *, banded: bool = True, gap: float = _GAP
) -> None:
    """Draw some profiles with their names, at least a gap apart, and with their bands; all others in gray."""
    panels.profile_axes(axes, GRID[-1])
    shown = [label for label in members if label in profiles]
    if not shown:
        panels.explain_empty(axes, "no optimizer of this family has runs on all of these workloads")
        return
    for label in styles.in_order(profiles.keys() - set(shown)):  # a set has another order in each process
        axes.plot(GRID, profiles[label].share, color="#DDDDDD", linewidth=0.5, zorder=1)
    for place, label in enumerate(shown):
        look, profile = styles.style_of(label), profiles[label]
        if banded:
            axes.fill_between(GRID, profile.low, profile.high, color=look.color, alpha=0.09, linewidth=0)
        line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.1, "marker": look.marker}
        axes.plot(GRID, profile.share, **line, markersize=3, markevery=(10 + 7 * place, 60))
    name_lines(axes, {label: float(profiles[label].share[-1]) for label in shown}, gap)


def name_lines(axes: Axes, heights: Mapping[str, float], gap: float = _GAP) -> None:
    """Write the names of labels beside a panel, near the right ends of their lines, from 0 at the bottom to 1."""
    for label, height in zip(heights, _spread([*heights.values()], gap), strict=True):
        look = styles.style_of(label)
        panels.annotate(axes, look.name, (1.02, height), color=look.color, annotation_clip=False)


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return heights at least a gap apart, in the same order, near the given ones, and none above 1."""
    order = sorted(range(len(heights)), key=lambda index: -heights[index])
    placed, ceiling = [*heights], 1.0
    for index in order:
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    floor = -0.02  # what fell below the panel pushes the lowest names up again
    for index in reversed(order):
        placed[index] = max(placed[index], floor)
        floor = placed[index] + gap
    return placed
