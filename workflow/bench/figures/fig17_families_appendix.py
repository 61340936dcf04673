"""Figure 17, appendix: the performance profile of every optimizer, by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import shown_level
from workflow.bench.analysis.field import Profile, contests, pooled_profiles
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import fig17_field as field
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.tables import Results

EXPERIMENTS = FIELD

_GRID: Final = np.geomspace(1, 8, 200)
"""Factors of the best at which profiles are drawn."""
_NOTE: Final = (
    "The share of (target, seed) pairs in which an optimizer takes at most so many times the iterations of the best "
    "one, the mean over workloads; in each panel optimizers are ranked as in fig17_field; bands: of the first one, the "
    "interval of a bootstrap that draws workloads, and of each of them seeds, all of a study together where the values "
    "were tuned over studies. Labels of one workload alone have no profile. Gray: the other families"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the profiles by family, those of the other families in gray."""
    everything = contests(results)
    chosen = field.pooled(everything)
    profiles = pooled_profiles(chosen, _GRID) if chosen else {}
    order = [label for label in (field.ranked(chosen) if chosen else {}) if label in profiles]
    figure, axes = page.new_figure(3, 2, height=4.4)
    for panel, (family, members) in zip(axes.flat, field.FAMILIES.items(), strict=True):
        panel.set_title(family)
        _draw_profiles(panel, profiles, [label for label in order if label in members])
    for panel in axes[:, 0]:
        panel.set_ylabel("reached (%)")
    for panel in axes[-1]:
        panel.set_xlabel("factor of the best's iterations")
    legend = [
        page.band_entry(f"{shown_level()} interval of the family's first"),
        page.guide_entry("the other families", color="#DDDDDD", linewidth=0.8),
    ]
    text = field.caption(results, everything, [_NOTE])
    reading = "Share of targets reached within a factor of the best optimizer's iterations; upper left is better."
    return page.save(figure, folder, "fig17_families_appendix", legend, text, reading=reading)


def _draw_profiles(axes: Axes, profiles: Mapping[str, Profile], shown: Sequence[str]) -> None:
    """Draw some profiles, named beside the panel, with the band of the first of them; all others in gray."""
    panels.profile_axes(axes, _GRID[-1])
    if not shown:
        panels.explain_empty(axes, "no optimizer of this family has runs on all of these workloads")
        return
    for label in styles.in_order(profiles.keys() - set(shown)):  # a set has another order in each process
        axes.plot(_GRID, profiles[label].share, color="#DDDDDD", linewidth=0.5, zorder=1)
    for place, label in enumerate(shown):
        look, profile = styles.style_of(label), profiles[label]
        line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.1, "marker": look.marker}
        axes.plot(_GRID, profile.share, **line, markersize=3, markevery=(10 + 7 * place, 60))
        if place == 0:
            axes.fill_between(_GRID, profile.low, profile.high, color=look.color, alpha=0.18, linewidth=0)
    entries = [page.line_entry(styles.style_of(label), linewidth=1.1, markersize=3) for label in shown]
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "borderaxespad": 0.3}
    axes.legend(handles=entries, fontsize=6, handlelength=2.6, handletextpad=0.5, labelspacing=0.35, **beside)
