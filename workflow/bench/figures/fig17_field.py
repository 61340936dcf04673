"""Figure 17 (ours): every optimizer side by side, by family, against its base, and what it does to the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import captions
from workflow.bench.analysis.estimates import shown_level
from workflow.bench.analysis.field import Contest, Profile, contests, pooled_profiles
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.tables import Results

EXPERIMENTS = FIELD
PROBES = ("field_steps",)

FAMILIES: Final[Mapping[str, Sequence[str]]] = {
    "First order": ("sgd", "adamw", "nadamw", "lamb", "schedule_free_adamw", "adafisher", "adafisher_convex"),
    "Muon": ("muon", "muon_exact", "normuon", "newton_muon", "soap_muon", "mkor_muon", "mkor_muon_exact"),
    "Shampoo": ("shampoo", "distributed_shampoo", "soap", "soap_period_1", "kl_shampoo", "sketchy", "psgd_kron"),
    "KFAC": ("kaisa", "kaisa_again", "dp_kfac", "thermo_kfac", "rs_kfac", "b_kfac", "cgfac", "cgfac_block"),
    "Other natural gradients": ("kld_wrm", "kld_wrm_q", "singd", "hylo", "eva", "foof", "mac", "smac"),
    "MKOR": ("mkor", "mkor_h", "mkor_windowed", "mkor_normalized"),
}
"""The labels that one panel shows in color."""
_POOLED: Final = ("field_autoencoder", "field_alexnet", "field_language_model")
"""The experiments of the profiles: those of all families."""
_GRID: Final = np.geomspace(1, 8, 200)
_GAP: Final = 0.115
"""The least distance of two names beside a panel, in its height."""
_TITLES: Final = {
    "field_autoencoder": "Autoencoder\nover SGD",
    "field_autoencoder_lamb": "Autoencoder\nover LAMB",
    "field_alexnet": "AlexNet\nover SGD",
    "field_language_model": "Language model\nover AdamW",
}
CURVES: Final = {
    "krona": "BERT, fine-tuned through\nKronecker adapters",
    "kronecker_rnn": "Recurrent network with\nKronecker-product weights",
}
"""Experiments of a few optimizers, which have a panel of curves each."""
_ROW_INCHES: Final = 0.135
_NOTES: Final = (
    "Above: the share of (target, seed) pairs in which an optimizer takes at most so many times the iterations of the "
    "best one, the mean over autoencoder (SGD), AlexNet and language model; bands: intervals of a bootstrap that draws "
    "workloads, and of each of them tuning studies, or the seeds of a single one; gray: the other families. Labels of "
    "one workload alone have no profile",
    "Targets are what the base reaches after 30, 40, ... 100 % of its steps, without trivial and early ones. Below: "
    "iterations to these targets over those of the base optimizer, geometric mean and interval, below 1 in the "
    "method's favor; methods without a base are compared to the one named above the panel, which has a bare marker; a "
    "run that misses a target enters with its budget",
    "At the bottom: the target's metric, its median over seeds (thin lines), of fine-tuning through Kronecker adapters "
    "and of a recurrent network with Kronecker-product weights",
    "cosine, norm: of a matrix's step against the step of SGD with the same gradients, rate and momentum, a dot for "
    "each workload (median over matrices and 20 steps)",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the profiles by family, and below a row for each label.

    Raises:
        NoDataError: no experiment of the field has runs.
    """
    everything = contests(results)
    found = [contest for contest in everything if contest.experiment in _TITLES]
    curves = [contest for contest in everything if contest.experiment in CURVES]
    steps = results.probe("field_steps")
    steps = steps[steps["experiment"].isin([*_TITLES])]
    present = {label for contest in found for label in contest.labels}
    of_families = [label for members in FAMILIES.values() for label in members]
    labels = [label for label in of_families if label in present] + style.in_order(present - set(of_families))
    heights = (1.2, 1.2, 1.3, 0.6 + _ROW_INCHES * len(labels), *((2.1,) if curves else ()))
    figure, axes_of_rows = style.new_figure(len(heights), 2, height=sum(heights), height_ratios=heights)
    above, below = axes_of_rows[:3], style.split_row(figure, axes_of_rows[3], len(found) + 2)
    last = style.split_row(figure, axes_of_rows[4], len(curves)) if curves else []
    chosen = [contest for contest in found if contest.experiment in _POOLED]
    profiles = pooled_profiles(chosen, _GRID) if chosen else {}
    for axes, (family, members) in zip(above.flat, FAMILIES.items(), strict=True):
        axes.set_title(family)
        _draw_profiles(axes, profiles, members)
    for axes in above[:, 0]:
        axes.set_ylabel("solved (%)")
    for axes in above[-1]:
        axes.set_xlabel("factor of the best")
    names = [style.style_of(label).name for label in labels]
    for number, (axes, contest) in enumerate(zip(below, found, strict=False)):
        axes.set_title(_TITLES[contest.experiment], fontsize=6)
        _draw_ratios(axes, contest, labels)
        _name(axes, names if number == 0 else [""] * len(names))
    for axes, column in zip(below[len(found) :], ("cosine", "norm"), strict=True):
        axes.set_title(f"{column}\nof the step", fontsize=6)
        _draw_turns(axes, steps, column, labels)
        _name(axes, [""] * len(names))
    for axes, contest in zip(last, curves, strict=True):
        axes.set_title(CURVES[contest.experiment], fontsize=7)
        _draw_curves(axes, contest)
    runs = pd.concat([contest.runs for contest in everything], ignore_index=True)
    absent = [] if len(steps) else ["field_steps"]
    legend = [page.bar_entry(), page.band_entry(f"{shown_level()} interval, bootstrap")]
    text = captions.caption(results, runs, notes=_NOTES, absent=absent, names=replace(page.NAMES, shows_runs=False))
    return page.save(figure, folder, "fig17_field", legend=legend, caption=text)


def _draw_profiles(axes: Axes, profiles: Mapping[str, Profile], members: Sequence[str]) -> None:
    """Draw a family's profiles with their bands and names, and all others in gray."""
    panels.profile_axes(axes, _GRID[-1])
    shown = [label for label in members if label in profiles]
    if not shown:
        panels.explain_empty(axes, "no optimizer of this family has runs on all of these workloads")
        return
    for label in style.in_order(profiles.keys() - set(shown)):  # a set has another order in each process
        axes.plot(_GRID, profiles[label].share, color="#DDDDDD", linewidth=0.5, zorder=1)
    for place, label in enumerate(shown):
        look, profile = style.style_of(label), profiles[label]
        axes.fill_between(_GRID, profile.low, profile.high, color=look.color, alpha=0.09, linewidth=0)
        line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.1, "marker": look.marker}
        axes.plot(_GRID, profile.share, **line, markersize=3, markevery=(10 + 7 * place, 60))
    _name_lines(axes, {label: float(profiles[label].share[-1]) for label in shown})


def _name_lines(axes: Axes, heights: Mapping[str, float]) -> None:
    """Write the names of labels beside a panel, near the right ends of their lines, from 0 at the bottom to 1."""
    for label, height in zip(heights, spread([*heights.values()], _GAP), strict=True):
        look = style.style_of(label)
        panels.annotate(axes, look.name, (1.02, height), color=look.color, annotation_clip=False)


def _draw_curves(axes: Axes, contest: Contest) -> None:
    """Draw the target's metric over the iterations, a named curve for each label."""
    goal = contest.sweep.goal
    shown = panels.ended(contest.metrics, goal.split, goal.metric)
    panels.loss_axis(axes, shown)
    panels.draw_curves(axes, shown, x="step", scale=1.0)
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"{goal.split} {goal.metric}")
    low, high = axes.get_ylim()
    last = shown.sort_values("step").groupby(["optimizer", "seed"])["value"].last().groupby("optimizer").mean()
    scale = np.log if axes.get_yscale() == "log" else np.asarray
    place = {
        str(label): float((scale(value) - scale(low)) / (scale(high) - scale(low))) for label, value in last.items()
    }
    _name_lines(axes, {label: min(place[label], 1.0) for label in style.in_order(place)})


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


def _draw_ratios(axes: Axes, contest: Contest, labels: Sequence[str]) -> None:
    """Draw the iterations of each label over those of its base, a row each."""
    axes.axvline(1, color=style.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    ends = [1.0]
    for row, label in enumerate(labels):
        if label not in contest.labels:
            continue
        base = contest.base_of(label)
        if label == base:
            look = style.style_of(label)
            axes.plot(1, row, marker=look.marker, color=look.color, markersize=4)
        elif (ratio := contest.steps(label).estimate) is not None:
            forest.draw_estimate(axes, ratio, row, label)
            ends.append(ratio.value)
    # Values and not intervals set the limits: one wide interval would press all markers together.
    low, high = max(min(ends) / 1.5, 0.03), min(max(ends) * 1.5, 30.0)
    axes.set_xlim(low, high)
    panels.fixed_ticks(axes.xaxis, [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low < tick < high])
    axes.tick_params(axis="x", labelsize=6)


def _draw_turns(axes: Axes, steps: pd.DataFrame, column: str, labels: Sequence[str]) -> None:
    """Draw a dot for each workload in each label's row: its cosine, or its norm on a logarithmic axis."""
    for row, label in enumerate(labels):
        values = steps.loc[steps["optimizer"] == label, column].dropna().astype(float)
        axes.plot(values, [row] * len(values), ".", color=style.style_of(label).color, markersize=3.5)
    axes.axvline(1, color=style.GUIDE, linewidth=0.8)
    if column == "cosine":
        axes.set_xlim(-0.1, 1.1)
        panels.fixed_ticks(axes.xaxis, (0, 0.5, 1))
    else:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        if high > 1000 * low:
            panels.decade_ticks(axes.xaxis, most=3)
        else:
            panels.fixed_ticks(axes.xaxis, [tick for tick in (0.1, 0.3, 1, 3, 10) if low < tick < high])
    axes.tick_params(axis="x", labelsize=6)


def _name(axes: Axes, names: Sequence[str]) -> None:
    forest.name_rows(axes, names)
    axes.tick_params(axis="y", labelsize=5.8, length=0)
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0, linewidth=0)
