"""Figure 12: training accuracy over training time and over iterations."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.figures.fig11_training_time import begin_panel, caption, read
from workflow.bench.results.tables import Results

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PROBES = ("step_time",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training accuracy over training seconds, and below over iterations, by experiment.

    Raises:
        NoDataError: no experiment has a training accuracy.
    """
    experiments = read(results, "accuracy")
    goals = {name: panels.targets(of_name.runs, "train", "accuracy") for name, of_name in experiments.items()}
    figure, axes = style.new_figure(2, len(experiments), height=3.7)
    for (upper, lower), (name, experiment) in zip(axes.T, experiments.items(), strict=True):
        reason = begin_panel(upper, name, experiment, "training accuracy")
        if reason:
            panels.explain_empty(lower, reason, width=24)
            continue
        length, unit = panels.time_scale(experiment.metrics)
        for panel, x, scale in ((upper, "train_seconds", length), (lower, "step", 1.0)):
            panel.set_ylim(-0.02, 1.02)
            panels.percent_axis(panel.yaxis)
            panels.draw_curves(panel, experiment.metrics, x=x, scale=scale, rising=True, goals=goals[name])
        upper.set_xlabel(f"training time ({unit})")
        lower.set_xlabel("iteration")
    for panel in axes[:, 0]:
        panel.set_ylabel("training accuracy (%)")
    legend = panels.curve_entries([experiment.metrics for experiment in experiments.values()])
    if any(goals.values()):
        legend.append(panels.target_entry())
    note = (
        "Accuracy on a fixed part of the training data, in evaluation mode, on one scale from 0 to 100 %; for "
        "questions, the share of answers with both ends right"
    )
    text = caption(results, experiments, [note])
    return page.save(figure, folder, "fig12_training_accuracy", legend=legend, caption=text)
