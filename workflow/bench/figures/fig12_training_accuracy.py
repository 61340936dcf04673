"""Figure 12: training accuracy over training time and over iterations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow.bench.analysis import styles
from workflow.bench.analysis.step_times import Timed
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig11_training_time import MARKED, begin_panel, caption, read
from workflow.bench.results.tables import Results

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PROBES = ("step_time",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training accuracy over training seconds, and below over iterations, by experiment."""
    experiments = read(results, "accuracy")
    goals = {name: panels.targets(of_name.runs, "train", "accuracy") for name, of_name in experiments.items()}
    figure, axes = page.new_figure(2, len(experiments), height=3.7)
    for (upper, lower), (name, experiment) in zip(axes.T, experiments.items(), strict=True):
        reason = begin_panel(upper, name, experiment, "training accuracy")
        if reason:
            panels.explain_empty(lower, reason, width=24)
            continue
        length, unit = panels.time_scale(experiment.metrics)
        for panel, x, scale in ((upper, "train_seconds", length), (lower, "step", 1.0)):
            panels.accuracy_axis(panel.yaxis, experiment.metrics["value"])
            look: dict[str, Any] = {"rising": True, "marked": MARKED, "goals": goals[name]}
            panels.draw_curves(panel, experiment.metrics, x=x, scale=scale, **look)
        upper.set_xlabel(f"training time ({unit})")
        lower.set_xlabel("iteration")
    for panel in axes[:, 0]:
        panel.set_ylabel("training accuracy (%)")
    legend = panels.curve_entries([experiment.metrics for experiment in experiments.values()], MARKED)
    if limits := sorted({100 * limit for of_name in goals.values() for limit in of_name}):
        legend.append(panels.target_entry(f"target: {', '.join(f'{limit:g}' for limit in limits)} %"))
    note = (
        "Accuracy on a fixed part of the training data, in evaluation mode, on an axis on which 90, 99 and 99.9 % are "
        "equally far apart; for questions, the share of answers with both ends right"
    )
    text = caption(results, experiments, [note])
    reading = "The axis stretches towards 100 %."
    return page.save(figure, folder, "fig12_training_accuracy", legend, text, _message(experiments), reading)


def _message(experiments: Mapping[str, Timed]) -> str:
    """Return the title: the last training accuracy of MKOR and of SGD by workload, medians over seeds."""
    phrases = []
    for experiment in experiments.values():
        rows = experiment.metrics.sort_values("step").groupby(["optimizer", "run"])["value"].last()
        last = rows.groupby("optimizer").median()
        if {"mkor", "sgd"} <= {*last.index}:
            model = styles.workload_name(str(experiment.runs["workload"].iloc[0]))
            phrases.append(f"{100 * last['mkor']:.3g} and {100 * last['sgd']:.3g} % ({model})")
    return f"Training accuracy at the end with MKOR and with SGD: {', '.join(phrases)}" if phrases else ""
