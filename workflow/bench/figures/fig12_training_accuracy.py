"""Figure 12: training accuracy over training time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import by_seed
from workflow.bench.analysis.estimates import paired_difference, studies_of
from workflow.bench.analysis.step_times import Timed
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig11_training_time import caption, listed, model_name, read, verdict
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import Results

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PROBES = ("step_time",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training accuracy over training seconds, a panel for each experiment."""
    experiments = read(results, "accuracy")
    figure, (axes,) = page.new_figure(1, len(experiments), height=2.4)
    for panel, (name, experiment) in zip(axes, experiments.items(), strict=True):
        if len(experiments) > 1:
            panel.set_title(styles.data_title(experiment.runs, width=22), fontsize=7)
        if experiment.metrics.empty:
            reasons = experiment.runs.loc[~experiment.runs["status"].isin(ENDED), "reason"].dropna()
            reason = str(reasons.iloc[0]) if len(reasons) else f"{name}: no training accuracy in its runs"
            panels.explain_empty(panel, reason, width=24)
        else:
            _draw(panel, experiment)
    axes[0].set_ylabel("training accuracy (%)")
    legend = panels.curve_entries([experiment.metrics for experiment in experiments.values()])
    note = (
        "Accuracy on a fixed part of the training data, in evaluation mode, on an axis on which 90, 99 and 99.9 % are "
        "equally far apart; for questions, the share of answers with both ends right"
    )
    text = caption(results, experiments, [note])
    reading = "A curve ends with its last iteration; the axis stretches towards 100 %."
    return page.save(figure, folder, "fig12_training_accuracy", legend, text, _message(experiments), reading)


def _draw(axes: Axes, experiment: Timed) -> None:
    """Draw an experiment's curves, SGD's above the others', and its targets with their names."""
    metrics = experiment.metrics
    length, unit = panels.time_scale(metrics)
    panels.accuracy_axis(axes.yaxis, metrics["value"])
    goals, is_sgd = panels.targets(experiment.runs, "train", "accuracy"), metrics["optimizer"] == "sgd"
    panels.draw_curves(axes, metrics[~is_sgd], x="train_seconds", scale=length, rising=True, goals=goals)
    panels.draw_curves(axes, metrics[is_sgd], x="train_seconds", scale=length, rising=True)
    for goal in goals:
        look: dict[str, Any] = {"xytext": (-3, -2), "ha": "right", "va": "top", "color": page.GUIDE}
        panels.annotate(axes, f"target: {100 * goal:g} %", (1, goal), panels.ROW_AT_EDGE, **look)
    axes.set_xlabel(f"training time ({unit})")


def _message(experiments: Mapping[str, Timed]) -> str:
    """Return the title: on which data MKOR ends above or below SGD, seed by seed, with the medians of both."""
    verdicts = []
    for experiment in experiments.values():
        rows = experiment.metrics.sort_values("step").groupby(["optimizer", "seed"]).tail(1)
        # A run that broke down ends with nothing.
        ends = rows.assign(value=rows["value"].astype(float).where(rows["status"] == "finished", 0.0))
        ours, theirs = (by_seed(ends[ends["optimizer"] == label]) for label in ("mkor", "sgd"))
        if difference := paired_difference(ours, theirs, studies_of(experiment.runs)):
            shown = ", ".join(f"{100 * median([*side.values()]):.3g}" for side in (ours, theirs))
            verdicts.append(verdict(model_name(experiment), f"{shown} %", difference, 0, ("higher", "lower")))
    return f"MKOR's last training accuracy vs SGD's: {listed(verdicts)}" if verdicts else ""
