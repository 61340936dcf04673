"""Figure 17 (ours): the field, ranked by iterations to the base optimizer's targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import Estimate, shown_level
from workflow.bench.analysis.field import Contest, contests, pooled_ratio
from workflow.bench.analysis.wording import in_words
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
"""The labels of the field; the appendices show them by family."""
POOLED: Final = ("field_autoencoder", "field_alexnet", "field_language_model")
"""The experiments that are pooled: those of all families."""
FIRST: Final = 12
"""Ranks that have a row."""
ALWAYS: Final = ("sgd", "adamw", "muon", "kaisa", "mkor", "mkor_normalized")
"""Labels that have a row wherever they rank: the references, and what this project is about."""
_LONGEST: Final = 130
"""The most letters of a title; it names as many leaders as fit."""
_MARKERS: Final = {"o": 5.0, "s": 3.7, "^": 4.0}
"""The markers of workloads with their sizes: where several have the same value, each remains visible."""
_BAR: Final[Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 2.4}
_ROW_INCHES: Final = 0.165
_NOTES: Final = (
    "Iterations to what the base optimizer reaches after 30, 40, ... 100 % of its steps over those of the base itself, "
    "by workload (hollow, geometric mean over targets and seeds), and their geometric mean over workloads, by which "
    "optimizers are ranked, with its t interval over studies (of tuning; the mean over workloads is one value in each "
    "study); a run that misses a target enters with its budget. The leaders are the ranks before the first one whose "
    "iterations over those of rank 1, paired by seed, have an interval above 1",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the ranked rows."""
    everything = contests(results)
    chosen = pooled(everything)
    if not chosen:
        raise NoDataError(f"none of {', '.join(POOLED)} has runs in {results.root}: run make field first.")
    ratios = ranked(chosen)
    order = [*ratios]
    shown = [label for rank, label in enumerate(order) if rank < FIRST or label in ALWAYS]
    figure, ((axes,),) = page.new_figure(1, 1, height=0.7 + _ROW_INCHES * len(shown))
    _draw_rows(axes, {label: ratios[label] for label in shown}, chosen)
    forest.name_rows(axes, [f"{order.index(label) + 1}  {styles.style_of(label).name}" for label in shown])
    text = caption(results, everything, _NOTES)
    reading = f"The first {FIRST} of {len(order)}, and references; left of 1 is faster than the base."
    message = _message(ratios, chosen)
    return page.save(figure, folder, "fig17_field", _entries(chosen), text, message, reading, columns=2)


def ranked(chosen: Sequence[Contest]) -> dict[str, Estimate]:
    """Return each label's iterations over those of the contests' bases (`pooled_ratio`), the best label first.

    Labels without a ratio in one of the contests are left out.
    """
    shared = set.intersection(*({*contest.labels} for contest in chosen))
    ratios = {label: pooled_ratio(chosen, label) for label in styles.in_order(shared)}
    found = {label: ratio for label, ratio in ratios.items() if ratio is not None}
    return dict(sorted(found.items(), key=lambda item: item[1].value))


def _draw_rows(axes: Axes, ratios: Mapping[str, Estimate], chosen: Sequence[Contest]) -> None:
    """Draw a row per label: hollow markers are workloads, the bar is their geometric mean, with its interval."""
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    for row, (label, mean) in enumerate(ratios.items()):
        color = styles.style_of(label).color
        if row % 2 == 0:
            axes.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0, linewidth=0)
        if mean.has_interval:
            forest.draw_interval(axes, mean, row, color)
        axes.plot(mean.value, row, color=color, **_BAR)
        for (marker, size), contest in zip(_MARKERS.items(), chosen, strict=False):
            hollow: dict[str, Any] = {"markerfacecolor": "white", "markersize": size, "markeredgewidth": 0.9}
            if (ratio := contest.sweep.steps_ratio(label, contest.base).estimate) is not None:
                axes.plot(ratio.value, row, marker=marker, color=color, zorder=5, **hollow)
    panels.fixed_ticks(axes.xaxis, (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 5))
    axes.set_xlabel("iterations to the targets, base: 1")
    axes.tick_params(axis="y", length=0)


def _message(ratios: Mapping[str, Estimate], chosen: Sequence[Contest]) -> str:
    """Return the title: the first ranks that no interval sets apart from rank 1, and MKOR's; empty without labels."""
    if not ratios:
        return ""
    first, *others = [*ratios]
    leaders = [first, *takewhile(lambda label: not _is_slower(chosen, label, first), others)]
    values = page.span(f"{ratios[label].value:.2f}" for label in (first, leaders[-1]))
    lead = "lead" if len(leaders) > 1 else "leads"
    end = f" {lead} {len(ratios)} optimizers at {values} times the base's iterations"
    if "mkor" in ratios and "mkor" not in leaders:
        end += f"; MKOR ranks {[*ratios].index('mkor') + 1} at {ratios['mkor'].value:.2f}"
    names = [styles.style_of(label).name for label in leaders]
    listed = [names, *([*names[:shown], f"{len(names) - shown} others"] for shown in range(len(names) - 2, 0, -1))]
    return next((title for one in listed if len(title := in_words(one) + end) <= _LONGEST), names[0] + end)


def _is_slower(chosen: Sequence[Contest], label: str, first: str) -> bool:
    """Return whether the whole interval of a label's iterations over those of the first rank lies above 1."""
    ratio = pooled_ratio(chosen, label, first)
    return ratio is not None and ratio.low > 1


def _entries(chosen: Sequence[Contest]) -> list[Artist]:
    names = (f"{styles.data_title(contest.runs)}, over {styles.style_of(contest.base).name}" for contest in chosen)
    mean = page.guide_entry(f"geometric mean, {shown_level()} interval", linewidth=2.2, **_BAR)
    return [*map(page.hollow_entry, names, _MARKERS), mean]


# What the appendices share


def pooled(everything: Sequence[Contest]) -> list[Contest]:
    """Return the contests that are pooled."""
    return [contest for contest in everything if contest.experiment in POOLED]


def caption(results: Results, everything: Sequence[Contest], notes: Iterable[str], absent: Iterable[str] = ()) -> str:
    """Return the caption of a figure of the field whose statistics are over tuning studies, as its notes say."""
    runs = pd.concat([contest.runs for contest in everything], ignore_index=True)
    return page.caption(results, runs, notes=notes, absent=absent, summarized=False)
