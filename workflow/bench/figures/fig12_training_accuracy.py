"""Figure 12: training accuracy over training time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow.bench.analysis import styles
from workflow.bench.analysis.step_times import Timed
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig11_training_time import begin_panel, caption, model_name, read
from workflow.bench.results.tables import Results

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PROBES = ("step_time",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training accuracy over training seconds, a panel for each experiment."""
    experiments = read(results, "accuracy")
    goals = {name: panels.targets(of_name.runs, "train", "accuracy") for name, of_name in experiments.items()}
    figure, (axes,) = page.new_figure(1, len(experiments), height=2.4)
    for panel, (name, experiment) in zip(axes, experiments.items(), strict=True):
        if begin_panel(panel, name, experiment, "training accuracy", title=len(experiments) > 1):
            length, unit = panels.time_scale(experiment.metrics)
            panels.accuracy_axis(panel.yaxis, experiment.metrics["value"])
            look: dict[str, Any] = {"x": "train_seconds", "scale": length, "rising": True, "goals": goals[name]}
            panels.draw_curves(panel, experiment.metrics, **look)
            panel.set_xlabel(f"training time ({unit})")
    axes[0].set_ylabel("training accuracy (%)")
    legend = panels.curve_entries([experiment.metrics for experiment in experiments.values()])
    if limits := sorted({100 * limit for of_name in goals.values() for limit in of_name}):
        legend.append(panels.target_entry(f"target: {', '.join(f'{limit:g}' for limit in limits)} %"))
    note = (
        "Accuracy on a fixed part of the training data, in evaluation mode, on an axis on which 90, 99 and 99.9 % are "
        "equally far apart; for questions, the share of answers with both ends right"
    )
    text = caption(results, experiments, [note])
    reading = "A curve ends with its last iteration; the axis stretches towards 100 %."
    return page.save(figure, folder, "fig12_training_accuracy", legend, text, _message(experiments), reading)


def _message(experiments: Mapping[str, Timed]) -> str:
    """Return the title: the last training accuracy of MKOR and of SGD by workload, medians over seeds."""
    shares = {}
    for name, experiment in experiments.items():
        rows = experiment.metrics.sort_values("step").groupby(["optimizer", "run"])["value"].last()
        last = 100 * rows.groupby("optimizer").median()
        if {"mkor", "sgd"} <= {*last.index}:
            shares[name] = f"{last['mkor']:.3g}", f"{last['sgd']:.3g}"
    if len(experiments) == 1 and shares:
        ((name, (ours, theirs)),) = shares.items()
        runs = experiments[name].runs
        steps = runs.loc[runs["optimizer"].isin(("mkor", "sgd")), "steps"].unique()
        after = f" after {steps[0]:,.0f} iterations" if len(steps) == 1 else ""
        return f"{styles.data_title(runs)}: training accuracy{after} is {ours} % with MKOR, {theirs} % with SGD"
    listed = "; ".join(f"{model_name(experiments[name])} {' and '.join(pair)} %" for name, pair in shares.items())
    return f"Last training accuracy with MKOR and SGD: {listed}" if shares else ""
