"""Figure 6: validation accuracy over epochs and time, and each optimizer's epochs and time to the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.step_times import StepTimes, timed
from workflow.bench.analysis.time_to_target import to_target
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
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
_BELOW: Final = (
    "Below, on separate axes, the paper's ResNet-50 on ImageNet; what is validation accuracy here is test accuracy "
    "there"
)


class _Column(NamedTuple):
    """The quantities on the horizontal axes of a column of panels."""

    x: str
    scale: float  # steps per epoch, or seconds per unit of time
    quantity: Literal["steps", "seconds"]
    names: tuple[str, str, str]  # of the axes from top to bottom
    published: pd.Series


def _columns(accuracies: pd.DataFrame, paper: pd.DataFrame) -> tuple[_Column, _Column]:
    """Return the column over epochs and the column over training time."""
    later = accuracies[accuracies["step"] > 0]
    per_epoch = float((later["step"] / later["epoch"]).median()) if len(later) else 1.0
    length, unit = panels.time_scale(accuracies)
    published_length, published_unit = style.time_unit(float(paper["time_to_target_s"].max()))
    target = f"{paper['target_top1'].iloc[0]:g} %"
    epochs = ("epoch", "epochs to the target", f"published: epochs to {target}")
    time = f"training time ({unit})", f"training time to the target ({unit})"
    hours = paper["time_to_target_s"] / published_length
    return (
        _Column("step", per_epoch, "steps", epochs, paper["epochs_to_target"]),
        _Column("train_seconds", length, "seconds", (*time, f"published: time to {target} ({published_unit})"), hours),
    )


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation accuracy over epochs and time, every label's epochs and time to the target, and published ones.

    Raises:
        NoDataError: no run has a validation accuracy.
    """
    measured = timed(StepTimes(results.probe("step_time")), results.runs(EXPERIMENT), results.metrics(EXPERIMENT))
    runs = measured.runs
    accuracies = panels.ended(measured.metrics, "validation", "accuracy")
    if accuracies.empty:
        raise NoDataError(f"no validation accuracy in {results.root / f'{EXPERIMENT}.csv'}: run {EXPERIMENT} first.")
    labels = style.in_order(accuracies["optimizer"])
    goals = panels.targets(runs, "validation", "accuracy")
    aimed = runs if goals else runs[:0]  # a target on another metric, the loss, is no crossing of these curves
    paper = published("resnet50_imagenet")
    paper = paper.set_index(paper["optimizer"].str.lower()).loc[style.in_order(paper["optimizer"].str.lower())]
    heights = (1.75, 0.17 * len(labels) + 0.15, 0.17 * len(paper) + 0.15)
    figure, axes = style.new_figure(3, 2, height=sum(heights) + 1.3, height_ratios=heights)
    for (upper, middle, lower), column in zip(axes.T, _columns(accuracies, paper), strict=True):
        _draw_accuracies(upper, accuracies, column, goals)
        took = {label: to_target(aimed[aimed["optimizer"] == label], column.quantity) for label in labels}
        panels.draw_times_to_target(middle, took, column.scale)
        middle.set_xlim(upper.get_xlim())  # so that a marker stands below the point at which its curve crosses
        _draw_published(lower, column.published)
        for panel, name in zip((upper, middle, lower), column.names, strict=True):
            panel.set_xlabel(name)
    names = [style.style_of(label).name for label in labels], [*map(style.paper_name, paper["optimizer"])]
    for (left, right), of_row in zip(axes[1:], names, strict=True):
        panels.name_rows(left, of_row)
        panels.name_rows(right, [""] * len(of_row))
    axes[0, 1].tick_params(labelleft=False)
    axes[0, 0].set_ylabel("validation accuracy (%)")
    legend = panels.curve_entries([accuracies])
    if goals:
        legend.append(panels.target_entry(f"target: {', '.join(f'{100 * goal:g}' for goal in goals)} %"))
    legend.append(page.published_entry("published (ImageNet, 64 GPUs)"))
    notes = [_WITH_TARGET if goals else _WITHOUT_TARGET, measured.note(style.workload_name), _BELOW]
    text = page.caption(results, runs, notes=notes)
    return page.save(figure, folder, "fig06_resnet50_accuracy", legend=legend, caption=text)


def _draw_accuracies(axes: Axes, accuracies: pd.DataFrame, column: _Column, goals: Sequence[float]) -> None:
    """Draw the curves of all labels, and the targets, on an axis in per cent that holds all of them."""
    values = accuracies["value"].astype(float)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = max(0.04 * (high - low), 0.005)
    axes.set_ylim(max(low - margin, 0.0), min(high + margin, 1.0) if high < 1 else 1.01)
    panels.percent_axis(axes.yaxis)
    panels.draw_curves(axes, accuracies, x=column.x, scale=column.scale, rising=True, goals=goals)
    end = float(accuracies[column.x].max()) / column.scale
    axes.set_xlim(-0.02 * end, 1.02 * end)


def _draw_published(axes: Axes, values: pd.Series) -> None:
    """Draw one row per method of the paper, hollow, on an axis with the paper's own scale."""
    for row, value in enumerate(values):
        axes.plot(value, row, marker="o", color=style.GUIDE, markerfacecolor="none", markersize=5)
        panels.annotate(axes, f"{value:.3g}", (value, row), "data", xytext=(6, 0), fontsize=7)
    axes.set_xlim(0, 1.25 * max(values))
