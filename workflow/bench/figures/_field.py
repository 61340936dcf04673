"""What the figures of the field share: families, profiles, and names beside lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import captions, looks
from workflow.bench.analysis.field import Contest, Profile, pooled_profiles
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

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


def pooled(everything: Sequence[Contest]) -> list[Contest]:
    """Return the contests that are pooled."""
    return [contest for contest in everything if contest.experiment in POOLED]


def profiles_of(everything: Sequence[Contest]) -> dict[str, Profile]:
    """Return the profiles of the labels that all pooled contests have."""
    chosen = pooled(everything)
    return pooled_profiles(chosen, GRID) if chosen else {}


def ordered(everything: Iterable[Contest]) -> list[str]:
    """Return the labels of contests by family, then the others."""
    present = {label for contest in everything for label in contest.labels}
    of_families = [label for members in FAMILIES.values() for label in members]
    return [label for label in of_families if label in present] + looks.in_order(present - set(of_families))


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
    for label in looks.in_order(profiles.keys() - set(shown)):  # a set has another order in each process
        axes.plot(GRID, profiles[label].share, color="#DDDDDD", linewidth=0.5, zorder=1)
    for place, label in enumerate(shown):
        look, profile = looks.style_of(label), profiles[label]
        if banded:
            axes.fill_between(GRID, profile.low, profile.high, color=look.color, alpha=0.09, linewidth=0)
        line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.1, "marker": look.marker}
        axes.plot(GRID, profile.share, **line, markersize=3, markevery=(10 + 7 * place, 60))
    name_lines(axes, {label: float(profiles[label].share[-1]) for label in shown}, gap)


def name_lines(axes: Axes, heights: Mapping[str, float], gap: float = _GAP) -> None:
    """Write the names of labels beside a panel, near the right ends of their lines, from 0 at the bottom to 1."""
    for label, height in zip(heights, spread([*heights.values()], gap), strict=True):
        look = looks.style_of(label)
        panels.annotate(axes, look.name, (1.02, height), color=look.color, annotation_clip=False)


def spread(heights: Sequence[float], gap: float, most: float = 1.0) -> list[float]:
    """Return heights at least a gap apart, in the same order, near the given ones, and none above ``most``."""
    order = sorted(range(len(heights)), key=lambda index: -heights[index])
    placed = dict.fromkeys(order, 0.0)
    ceiling = most
    for index in order:
        placed[index] = min(heights[index], ceiling)
        ceiling = placed[index] - gap
    # What fell below the panel pushes the lowest names up again.
    floor = -0.02
    for index in reversed(order):
        placed[index] = max(placed[index], floor)
        floor = placed[index] + gap
    return [placed[index] for index in range(len(heights))]
