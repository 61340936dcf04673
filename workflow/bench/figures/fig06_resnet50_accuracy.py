"""Figure 6: validation accuracy over epochs and time, and what the target takes against the base optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.captions import inert_labels
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.step_times import StepTimes, timed
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.time_to_target import Quantity, target_ratio, to_target
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results, published

EXPERIMENTS = ("resnet50_imagenet",)
PROBES = ("step_time",)
PUBLISHED = ("resnet50_imagenet",)

EXPERIMENT: Final = "resnet50_imagenet"
CURVES: Final = ("sgd", "kaisa", "mkor", "mkor_normalized")
"""The labels that have a curve; the others have a row below, and would hide these."""
PAPER: Final = ("sgd", "kaisa", "mkor")
"""The labels in whose rows the paper's numbers stand, those of its optimizers of these names."""
_WITH_TARGET: Final = (
    "Below: epochs and time at which the smoothed accuracy crosses the target, over those of the base optimizer, "
    "paired by seed; dots are runs, the marker is their median, or with many the estimate over tuning studies with its "
    "interval; a run that never reached it counts as infinitely long"
)
_WITHOUT_TARGET: Final = "Below: empty, since the runs have no target on the validation accuracy"
_BELOW: Final = "hollow: the paper's ResNet-50 on ImageNet on 64 GPUs, to a test accuracy of {target}, over its SGD"


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation accuracy over epochs and time, and each label's epochs and time to the target over the base's."""
    times = StepTimes(results.probe("step_time"))
    measured = timed(times, results.runs(EXPERIMENT), results.metrics(EXPERIMENT))
    runs = measured.runs
    accuracies = panels.ended(measured.metrics, "validation", "accuracy")
    if accuracies.empty:
        raise NoDataError(f"no validation accuracy in {results.root / f'{EXPERIMENT}.csv'}: run {EXPERIMENT} first.")
    labels = styles.in_order(accuracies["optimizer"])
    base = common_base(runs) or labels[0]
    goals = panels.targets(runs, "validation", "accuracy")
    aimed = runs if goals else runs[:0]  # a target on another metric, the loss, is no crossing of these curves
    paper = published("resnet50_imagenet")
    by_name = paper.set_index(paper["optimizer"].str.lower())
    drawn = accuracies[accuracies["optimizer"].isin({*CURVES, base})]
    rows = 0.17 * len(labels) + 0.15
    figure, axes = page.new_figure(2, 2, height=2.5 + rows, height_ratios=(1.75, rows))
    later = accuracies[accuracies["step"] > 0]
    per_epoch = float((later["step"] / later["epoch"]).median()) if len(later) else 1.0
    length, unit = panels.time_scale(accuracies)
    columns: dict[Quantity, tuple[str, float, str, str, str]] = {
        "steps": ("step", per_epoch, "epoch", "epochs", "epochs_to_target"),
        "seconds": ("train_seconds", length, f"training time ({unit})", "time", "time_to_target_s"),
    }
    ratios = []
    for (upper, lower), (quantity, (x, scale, name, what, in_paper)) in zip(axes.T, columns.items(), strict=True):
        _draw_accuracies(upper, drawn, x, scale, goals)
        of_label = {label: aimed[aimed["optimizer"] == label] for label in labels}
        took = {label: to_target(rows, quantity) for label, rows in of_label.items()}
        step_times = times if quantity == "seconds" else None
        found = {label: target_ratio(rows, of_label[base], step_times) for label, rows in of_label.items()}
        compared = {label: one.ratio if one else None for label, one in found.items()}
        ratios.append(_draw_ratios(lower, took, compared, base, by_name[in_paper]))
        upper.set_xlabel(name)
        lower.set_xlabel(f"{what} to the target, {styles.style_of(base).name}: 1")
    cosines = runs.dropna(subset=["direction_cosine"])
    inert = inert_labels(zip(cosines["optimizer"], cosines["direction_cosine"], strict=True))
    names = (styles.style_of(label).name + (", inert" if label in inert else "") for label in labels)
    forest.name_rows(axes[1, 0], names)
    forest.name_rows(axes[1, 1], [""] * len(labels))
    axes[0, 1].tick_params(labelleft=False)
    axes[0, 0].set_ylabel("validation accuracy (%)")
    legend = panels.curve_entries([drawn])
    if goals:
        legend.append(panels.target_entry(f"target: {', '.join(f'{100 * goal:g}' for goal in goals)} %"))
    legend.append(page.published_entry("published (ImageNet)"))
    at = f"{paper['target_top1'].iloc[0]:g} %"
    notes = [_WITH_TARGET if goals else _WITHOUT_TARGET, measured.note(styles.workload_name), _BELOW.format(target=at)]
    text = page.caption(results, runs, notes=notes)
    reading = "Below: left of 1 is faster; dots are runs, hollow the paper's ratio."
    reading += " Inert: keeps the gradient's direction." if inert else ""
    title = _message(runs, ratios, base)
    return page.save(figure, folder, "fig06_resnet50_accuracy", legend, text, title, reading)


def _message(runs: pd.DataFrame, ratios: Sequence[Mapping[str, Estimate]], base: str) -> str:
    """Return the title: MKOR's epochs and time to the target over those of the base, as far as they can be compared."""
    epochs, seconds = (by_label.get("mkor") for by_label in ratios)
    if epochs is None:
        return ""
    name = styles.style_of(base).name
    start = f"{styles.data_title(runs)}: MKOR reaches the target in {epochs.value:.2f} times {name}'s epochs"
    time = f" and {seconds.value:.2f} times its time{forest.undecided(seconds)}" if seconds else ""
    return f"{start}{forest.undecided(epochs)}{time}"


def _draw_accuracies(axes: Axes, accuracies: pd.DataFrame, x: str, scale: float, goals: Sequence[float]) -> None:
    """Draw the curves of the labels, and the targets, on an axis in per cent that holds all of them."""
    values = accuracies["value"].astype(float)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = max(0.04 * (high - low), 0.005)
    axes.set_ylim(max(low - margin, 0.0), min(high + margin, 1.0) if high < 1 else 1.01)
    panels.percent_axis(axes.yaxis)
    panels.draw_curves(axes, accuracies, x=x, scale=scale, rising=True, goals=goals)
    end = float(accuracies[x].max()) / scale
    axes.set_xlim(-0.02 * end, 1.02 * end)


def _draw_ratios(
    axes: Axes,
    took: Mapping[str, Mapping[int, float]],
    compared: Mapping[str, Estimate | None],
    base: str,
    published_values: pd.Series,
) -> dict[str, Estimate]:
    """Draw a row per label: what it took to the target over what the base took, by seed; return the drawn ratios.

    Hollow: the same ratio of the paper's numbers. To the right stands how many runs reached the target, if not all.
    """
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    drawn = {}
    for row, (label, times) in enumerate(took.items()):
        reached = [value for value in times.values() if math.isfinite(value)]
        if len(reached) < len(times):
            forest.write_beside(axes, row, f"{len(reached)} of {len(times)}", "reached")
        by_seed = {seed: times[seed] / took[base][seed] for seed in times if took[base].get(seed, 0) > 0}
        finite = [ratio for ratio in by_seed.values() if math.isfinite(ratio) and ratio > 0]
        ratio = compared[label]
        if label == base and reached:
            axes.plot(1, row, marker=styles.style_of(base).marker, color=styles.style_of(base).color, markersize=5)
        elif ratio is not None and math.isfinite(median(by_seed.values())):
            forest.draw_estimate(axes, ratio, row, label, runs=list(by_seed.values()))
            drawn[label] = replace(ratio, value=forest.shown_value(ratio, list(by_seed.values())))
        if label != base:
            forest.draw_runs(axes, finite, row, label)
        if label != base and label in PAPER and base in published_values:
            hollow = published_values[label] / published_values[base]
            axes.plot(hollow, row - 0.22, marker="o", color=page.GUIDE, markerfacecolor="none", markersize=4)
    panels.fixed_ticks(axes.xaxis, (0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5))
    return drawn
