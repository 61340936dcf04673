"""Figure 6: validation accuracy over epochs and time, and each optimizer's epochs and time to the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.probed_seconds import timed
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import to_target
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import accuracy_axis, target_line
from workflow.bench.figures._captions import caption
from workflow.bench.figures._curves import draw_curves, ended, targets, time_scale
from workflow.bench.figures._page import save
from workflow.bench.figures._rows import draw_times_to_target, name_rows
from workflow.bench.results.tables import NoDataError, Results, published

EXPERIMENTS = ("resnet50_imagenet",)
PROBES = ("step_time",)
PUBLISHED = ("resnet50_imagenet",)

EXPERIMENT: Final = "resnet50_imagenet"
_WITH_TARGET: Final = (
    "Middle: where the smoothed accuracy crosses the target; dots are runs, the marker is their mean, or their median "
    "if one never reached it and counts as infinitely long"
)
_WITHOUT_TARGET: Final = "Middle: empty, since the runs have no target on the validation accuracy"


@dataclass(frozen=True)
class _Column:
    """One column of panels: the quantities on its horizontal axes."""

    x: Literal["step", "train_seconds"]
    scale: float
    """Steps per epoch, or seconds per unit of time."""
    quantity: Literal["steps", "seconds"]
    xlabel: str
    xlabel_to_target: str
    published: pd.Series
    xlabel_published: str


def _columns(accuracies: pd.DataFrame, paper: pd.DataFrame) -> tuple[_Column, _Column]:
    """Return the column over epochs and the column over training time."""
    later = accuracies[accuracies["step"] > 0]
    per_epoch = float((later["step"] / later["epoch"]).median()) if len(later) else 1.0
    length, unit = time_scale(accuracies)
    published_length, published_unit = style.time_unit(float(paper["time_to_target_s"].max()))
    target = f"{paper['target_top1'].iloc[0]:g} %"
    epochs = _Column(
        "step",
        per_epoch,
        "steps",
        "epoch",
        "epochs to the target",
        paper["epochs_to_target"],
        f"published: epochs to {target}",
    )
    time = _Column(
        "train_seconds",
        length,
        "seconds",
        f"training time ({unit})",
        f"training time to the target ({unit})",
        paper["time_to_target_s"] / published_length,
        f"published: time to {target} ({published_unit})",
    )
    return epochs, time


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation accuracy over epochs and time, every label's epochs and time to the target, and published ones.

    Raises:
        NoDataError: no run has a validation accuracy.
    """
    measured = timed(StepTimes(results.probe("step_time")), results.runs(EXPERIMENT), results.metrics(EXPERIMENT))
    runs, metrics = measured.runs, measured.metrics
    accuracies = ended(metrics, "validation", "accuracy")
    if accuracies.empty:
        raise NoDataError(f"no validation accuracy in {results.root / f'{EXPERIMENT}.csv'}: run {EXPERIMENT} first.")
    labels = style.in_order(accuracies["optimizer"])
    goals = targets(runs, "validation", "accuracy")
    paper = published("resnet50_imagenet")
    paper = paper.set_index(paper["optimizer"].str.lower()).loc[style.in_order(paper["optimizer"].str.lower())]
    heights = (1.75, 0.17 * len(labels) + 0.15, 0.17 * len(paper) + 0.15)
    figure, axes = style.new_figure(3, 2, height=sum(heights) + 1.3, height_ratios=heights)
    for panels, column in zip(axes.T, _columns(accuracies, paper), strict=True):
        _draw_accuracies(panels[0], accuracies, column, goals)
        _draw_to_target(panels[1], runs if goals else runs[:0], labels, column)
        panels[1].set_xlim(panels[0].get_xlim())
        _draw_published(panels[2], column)
    name_rows(axes[1, 0], [style.style_of(label).name for label in labels])
    name_rows(axes[1, 1], [""] * len(labels))
    name_rows(axes[2, 0], map(style.paper_name, paper["optimizer"]))
    name_rows(axes[2, 1], [""] * len(paper))
    axes[0, 1].tick_params(labelleft=False)
    axes[0, 0].set_ylabel("validation accuracy (%)")
    legend = _legend.of_curves(labels, [accuracies])
    if goals:
        legend.append(_legend.target_entry(f"target: {', '.join(f'{100 * goal:g}' for goal in goals)} %"))
    legend.append(_legend.published_entry("published (ImageNet, 64 GPUs)"))
    notes = [
        _WITH_TARGET if goals else _WITHOUT_TARGET,
        measured.note(style.workload_name),
        "Below, on separate axes, the paper's ResNet-50 on ImageNet; what is validation accuracy here is test accuracy "
        "there",
    ]
    return save(figure, folder, "fig06_resnet50_accuracy", legend=legend, caption=caption(results, runs, notes=notes))


def _draw_accuracies(axes: Axes, accuracies: pd.DataFrame, column: _Column, goals: Sequence[float]) -> None:
    """Draw the curves of all labels, and the targets."""
    accuracy_axis(axes, accuracies)
    draw_curves(axes, accuracies, x=column.x, scale=column.scale, rising=True)
    for goal in goals:
        target_line(axes, goal)
    end = float(accuracies[column.x].max()) / column.scale
    axes.set_xlim(-0.02 * end, 1.02 * end)
    axes.set_xlabel(column.xlabel)


def _draw_to_target(axes: Axes, runs: pd.DataFrame, labels: Sequence[str], column: _Column) -> None:
    """Draw every label's epochs or time to the target."""
    took = {label: to_target(runs[runs["optimizer"] == label], column.quantity) for label in labels}
    scaled = {label: {seed: value / column.scale for seed, value in by_seed.items()} for label, by_seed in took.items()}
    draw_times_to_target(axes, scaled)
    axes.set_xlabel(column.xlabel_to_target)


def _draw_published(axes: Axes, column: _Column) -> None:
    """Draw one row per method of the paper, hollow, on an axis with the paper's own scale."""
    for row, value in enumerate(column.published):
        axes.plot(value, row, marker="o", color=style.GUIDE, markerfacecolor="none", markersize=5)
        axes.annotate(f"{value:.3g}", (value, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_xlim(0, 1.25 * max(column.published))
    axes.set_xlabel(column.xlabel_published)
