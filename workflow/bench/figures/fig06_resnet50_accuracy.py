"""Figure 6: validation accuracy over training time, and what the target takes against the base optimizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.time_to_target import Quantity
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _time_to_target as time_to_target
from workflow.bench.results.tables import Results, published

EXPERIMENTS = ("resnet50_imagenet",)
PROBES = ("step_time",)
PUBLISHED = ("resnet50_imagenet",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation accuracy over training time, and each label's epochs and time to the target over its base's."""
    (experiment,) = EXPERIMENTS
    paper = published("resnet50_imagenet")
    by_label = paper.set_index(paper["optimizer"].str.lower())
    columns: dict[Quantity, str] = {"steps": "epochs_to_target", "seconds": "time_to_target_s"}
    ratios = {quantity: (by_label[name] / by_label[name]["sgd"]).drop("sgd") for quantity, name in columns.items()}
    at = f"{paper['target_top1'].iloc[0]:g} %"
    subject = time_to_target.Subject(
        experiment,
        "accuracy",
        "epochs",
        _accuracy_axis,
        "validation accuracy (%)",
        lambda goal: f"{100 * goal:g} %",
        paper={quantity: of_one.to_dict() for quantity, of_one in ratios.items()},
        paper_name="published (ImageNet)",
        notes=(f"Hollow: the paper's ResNet-50 on ImageNet on 64 GPUs, to a test accuracy of {at}, over its SGD",),
    )
    return time_to_target.make(results, folder, "fig06_resnet50_accuracy", subject)


def _accuracy_axis(axes: Axes, accuracies: pd.DataFrame) -> str:
    """Set an axis in per cent that holds all accuracies."""
    values = accuracies["value"].astype(float)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = max(0.04 * (high - low), 0.005)
    axes.set_ylim(max(low - margin, 0.0), min(high + margin, 1.0) if high < 1 else 1.01)
    panels.percent_axis(axes.yaxis)
    return ""
