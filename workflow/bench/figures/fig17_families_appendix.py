"""Figure 17, appendix: the performance profile of every optimizer, by family."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.analysis.estimates import shown_level
from workflow.bench.analysis.field import contests
from workflow.bench.figures import _page as page
from workflow.bench.figures import fig17_field as field
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.tables import Results

EXPERIMENTS = FIELD


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the profiles by family, those of the other families in gray."""
    everything = contests(results)
    profiles = field.profiles_of(everything)
    figure, axes = page.new_figure(3, 2, height=3.9)
    for panel, (family, members) in zip(axes.flat, field.FAMILIES.items(), strict=True):
        panel.set_title(family)
        field.draw_profiles(panel, profiles, members)
    for panel in axes[:, 0]:
        panel.set_ylabel("solved (%)")
    for panel in axes[-1]:
        panel.set_xlabel("factor of the best")
    legend = [page.band_entry(f"{shown_level()} interval, bootstrap")]
    text = field.caption(results, everything, [field.PROFILES_NOTE, "gray: the other families"])
    reading = "Share of targets reached within a factor of the best's iterations; gray: the others."
    return page.save(figure, folder, "fig17_families_appendix", legend, text, reading=reading)
