"""Figure 6: test accuracy over epochs and over training time, and what each optimizer took to its target."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.time_to_target import to_target
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import accuracy_axis, draw_curves, ended, legend, targets, time_scale
from workflow.bench.figures._rows import draw_reaching, name_rows
from workflow.bench.results.tables import NoDataError, Results, published

EXPERIMENTS = ("resnet50_imagenet",)
PUBLISHED = ("resnet50_imagenet",)

EXPERIMENT: Final = "resnet50_imagenet"


def _draw_published(axes: Axes, values: list[float]) -> None:
    """One row a method of the paper: what it took, hollow, on an axis of the paper's own scale."""
    for row, value in enumerate(values):
        axes.plot(value, row, marker="o", color="#444444", markerfacecolor="none", markersize=5)
        axes.annotate(f"{value:.3g}", (value, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_xlim(0, 1.25 * max(values))


def make(results: Results, folder: Path) -> list[Path]:
    """Draw test accuracy over epochs and training seconds, what each label took to the target, and what the paper says.

    Raises NoDataError where no run has a test accuracy.
    """
    runs, metrics = results.runs(EXPERIMENT), results.metrics(EXPERIMENT)
    found = ended(metrics, "validation", "accuracy")
    if found.empty:
        raise NoDataError(f"no test accuracy in {results.root / f'{EXPERIMENT}.csv'}: run {EXPERIMENT} first.")
    labels = style.in_order(found["optimizer"])
    goals = targets(runs, "validation", "accuracy")
    later = found[found["step"] > 0]
    per_epoch = float((later["step"] / later["epoch"]).median()) if len(later) else 1.0
    length, unit = time_scale(found)
    of_paper = published("resnet50_imagenet")
    hours, sign = style.time_unit(float(of_paper["time_to_target_s"].max()))
    percent = f"{of_paper['target_top1'].iloc[0]:g} %"
    heights = (1.75, 0.17 * len(labels) + 0.15, 0.17 * len(of_paper) + 0.15)
    figure, axes = style.new_figure(3, 2, height=sum(heights) + 1.3, height_ratios=heights)
    panels: tuple[tuple[str, float, Literal["steps", "seconds"], str, str, pd.Series], ...] = (
        ("step", per_epoch, "steps", "epoch", "epochs to the target", of_paper["epochs_to_target"]),
        (
            "train_seconds",
            length,
            "seconds",
            f"training time ({unit})",
            f"training time to the target ({unit})",
            of_paper["time_to_target_s"] / hours,
        ),
    )
    for column, (x, scale, quantity, along, until, published_values) in enumerate(panels):
        upper, middle, lower = axes[:, column]
        accuracy_axis(upper, found)
        draw_curves(upper, found, x=x, scale=scale, rising=True)
        for goal in goals:
            style.target_line(upper, goal, f"target {100 * goal:g} %", rising=True)
        end = float(found[x].max()) / scale
        upper.set_xlim(-0.02 * end, 1.02 * end)
        upper.set_xlabel(along)
        middle.set_xlim(upper.get_xlim())
        took = {label: to_target(runs[runs["optimizer"] == label], quantity) for label in labels}
        if goals:
            draw_reaching(
                middle,
                {label: {seed: value / scale for seed, value in of_label.items()} for label, of_label in took.items()},
                1.02 * end,
            )
        name_rows(middle, [style.style_of(label).name if column == 0 else "" for label in labels])
        middle.set_xlabel(until)
        _draw_published(lower, published_values.to_list())
        name_rows(lower, of_paper["optimizer"] if column == 0 else [""] * len(of_paper))
        lower.set_xlabel(f"published: epochs to {percent}" if column == 0 else f"published: time to {percent} ({sign})")
    axes[0, 1].tick_params(labelleft=False)
    axes[0, 0].set_ylabel("test accuracy (%)")
    handles = [*legend(labels, [found]), style.published_handle("published (ImageNet, 64 GPUs)")]
    notes = [
        "Middle: first evaluation at the target; dots are runs, the mark their mean, or the median where one never got "
        "there, which counts as infinitely long"
        if goals
        else "Middle: empty, since the runs have no target on the test accuracy",
        "Below, on an axis of its own, what the paper states of ResNet-50 on ImageNet",
    ]
    style.finish(figure, handles, caption(results, runs, notes=notes), columns=3)
    return style.save(figure, folder, "fig06_resnet50_accuracy")
