"""Figure 12: training accuracy over training time and over iterations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import explain_empty, target_line
from workflow.bench.figures._captions import caption
from workflow.bench.figures._curves import draw_curves, targets, time_scale
from workflow.bench.figures._page import save
from workflow.bench.figures._training import Experiment, all_runs, read, set_title, time_note, why_empty
from workflow.bench.results.tables import Results

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PROBES = ("step_time",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training accuracy over training seconds, and below over iterations, by experiment.

    Raises:
        NoDataError: no experiment has a training accuracy.
    """
    experiments = read(results, EXPERIMENTS, "accuracy")
    figure, axes = style.new_figure(2, len(experiments), height=3.7)
    for panels, (name, experiment) in zip(axes.T, experiments.items(), strict=True):
        set_title(panels[0], experiment.runs)
        if experiment.rows.empty:
            for panel in panels:
                explain_empty(panel, why_empty(experiment.runs, name, "training accuracy"), width=24)
        else:
            _draw(panels, experiment)
    for panel in axes[:, 0]:
        panel.set_ylabel("training accuracy (%)")
    frames = [experiment.rows for experiment in experiments.values()]
    legend = _legend.of_curves({label for frame in frames for label in frame["optimizer"]}, frames)
    if any(targets(experiment.runs, "train", "accuracy") for experiment in experiments.values()):
        legend.append(_legend.target_entry())
    notes = [
        "Accuracy on a fixed part of the training data, in evaluation mode, on one scale from 0 to 100 %; for "
        "questions, the share of answers with both ends right",
        time_note(experiments),
    ]
    absent = [name for name in EXPERIMENTS if name not in experiments or not experiments[name].has_results]
    text = caption(results, all_runs(experiments), notes=notes, absent=absent)
    return save(figure, folder, "fig12_training_accuracy", legend=legend, caption=text)


def _draw(panels: Sequence[Axes], experiment: Experiment) -> None:
    """Draw the accuracy over training time in the first panel, and over iterations in the second one."""
    length, unit = time_scale(experiment.rows)
    for panel, x, scale in ((panels[0], "train_seconds", length), (panels[1], "step", 1.0)):
        panel.set_ylim(-0.02, 1.02)
        panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
        draw_curves(panel, experiment.rows, x=x, scale=scale, rising=True)
        for level in targets(experiment.runs, "train", "accuracy"):
            target_line(panel, level)
    panels[0].set_xlabel(f"training time ({unit})")
    panels[1].set_xlabel("iteration")
