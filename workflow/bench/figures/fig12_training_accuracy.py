"""Figure 12: training accuracy over training time and over iterations."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import accuracy_axis, draw_curves, ended, legend, targets, time_scale
from workflow.bench.figures._training import title, why_empty
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training accuracy over training seconds, and below over iterations, by experiment.

    Raises NoDataError where no experiment has a training accuracy.
    """
    runs = {name: results.runs(name) for name in EXPERIMENTS}
    metrics = {name: results.metrics(name) for name in EXPERIMENTS}
    accuracies = {name: ended(metrics[name], "train", "accuracy") for name in EXPERIMENTS}
    if all(frame.empty for frame in accuracies.values()):
        raise NoDataError(f"no training accuracy of {', '.join(EXPERIMENTS)} in {results.root}: run one of them first.")
    figure, axes = style.new_figure(2, len(EXPERIMENTS), height=3.7)
    for column, (name, found) in enumerate(accuracies.items()):
        by_time, by_step = axes[:, column]
        by_time.set_title(title(runs[name], name), fontsize=7)
        if found.empty:
            for panel in (by_time, by_step):
                style.say(panel, why_empty(runs[name], name, "training accuracy"), width=24)
            continue
        length, unit = time_scale(found)
        for panel, x, scale in ((by_time, "train_seconds", length), (by_step, "step", 1.0)):
            accuracy_axis(panel, found)
            draw_curves(panel, found, x=x, scale=scale, rising=True)
            for level in targets(runs[name], "train", "accuracy"):
                style.target_line(panel, level, rising=True)
        by_time.set_xlabel(f"training time ({unit})")
        by_step.set_xlabel("iteration")
    for row in (0, 1):
        axes[row, 0].set_ylabel("training accuracy (%)")
    shown = {label for frame in accuracies.values() for label in frame["optimizer"]}
    everything = pd.concat([frame for frame in runs.values() if not frame.empty], ignore_index=True)
    notes = [
        "Accuracy on a fixed part of the training data, in evaluation mode, not counted in the training time; of "
        "questions, the share with both ends right"
    ]
    absent = [name for name in EXPERIMENTS if metrics[name].empty]
    footer = caption(results, everything, notes=notes, absent=absent)
    style.finish(figure, legend(shown, accuracies.values()), footer, columns=3)
    return style.save(figure, folder, "fig12_training_accuracy")
