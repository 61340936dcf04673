"""Figure 2: BERT pre-training loss over iterations and over training time, all optimizers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.probed_seconds import timed
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import budgets, to_target
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import loss_axis, loss_limits, target_line
from workflow.bench.figures._captions import caption
from workflow.bench.figures._curves import draw_curves, ended, losses_to_compare, targets, time_scale
from workflow.bench.figures._page import save
from workflow.bench.figures._rows import base_of, draw_differences, draw_times_to_target, name_rows
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("bert_pretraining",)
PROBES = ("step_time",)

MARKED: Final = ("lamb", "kaisa", "mkor")
"""The labels of thick lines: the base optimizer, the paper's rival, and MKOR. More would hide each other."""
_NOTES: Final = (
    "Masked-language and next-sentence loss on the validation data, where the paper's Figure 2 shows the training "
    "loss; every run starts from one shared phase-1 checkpoint. Above, lines are medians, and the runs or the "
    f"interval are shown for {', '.join(style.style_of(label).name for label in MARKED)}",
    "Below: loss minus the base optimizer's at the same iteration, paired by seed, and training time to the target, or "
    "of the whole run without a target; dots are runs",
)
_START: Final = 0.1
_CUT: Final = f"The loss axis leaves out the first {100 * _START:g} % of the iterations, in which most of the fall lies"
_OTHER_SCHEDULE: Final = (
    "Runs with more or fewer steps than the base optimizer's follow another schedule, so they have no difference"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation loss over steps and over training seconds; below, final differences and training times.

    Raises:
        NoDataError: no run of bert_pretraining has a validation loss.
    """
    (name,) = EXPERIMENTS
    measured = timed(StepTimes(results.probe("step_time")), results.runs(name), results.metrics(name))
    runs, metrics = measured.runs, measured.metrics
    losses = ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'bert_pretraining.csv'}: run bert_pretraining first.")
    labels = style.in_order(losses["optimizer"])
    rows = 0.15 * len(labels) + 0.15
    figure, axes = style.new_figure(2, 2, height=2.75 + rows, height_ratios=(1.9, rows))
    goals = targets(runs, "validation", "loss")
    later = _without_start(losses)
    _draw_losses(axes[0], losses, later, goals)
    base = base_of(runs)
    compared = _comparable(runs, base)
    draw_differences(axes[1, 0], losses_to_compare(metrics[metrics["run"].isin(compared)]), base, labels)
    _draw_times(list(axes[:, 1]), runs, losses, labels, to_a_target=bool(goals))
    notes = [*_NOTES, measured.note(style.workload_name)]
    if len(later) < len(losses):
        notes.append(_CUT)
    if set(losses["run"]) - compared:
        notes.append(_OTHER_SCHEDULE)
    legend = _legend.of_curves(labels, [losses], MARKED)
    if goals:
        legend.append(_legend.target_entry())
    return save(figure, folder, "fig02_bert_loss", legend=legend, caption=caption(results, runs, notes=notes))


def _comparable(runs: pd.DataFrame, base: str | None) -> set[str]:
    """Return the runs with as many steps as the base optimizer's.

    At one iteration of schedules of different lengths, one run is at its end and the other is not.
    """
    steps = runs.loc[runs["optimizer"] == base, "steps"]
    return set(runs.loc[runs["steps"].isin(steps), "run"])


def _without_start(losses: pd.DataFrame) -> pd.DataFrame:
    """Return the losses after the start of training if they fill less than half of an axis that shows all losses."""
    later = losses[losses["step"] > _START * losses["step"].max()]
    (low, high, _), (least, most, _) = loss_limits(later), loss_limits(losses)
    return later if len(later) and high - low < (most - least) / 2 else losses


def _draw_losses(axes: Sequence[Axes], losses: pd.DataFrame, later: pd.DataFrame, goals: Sequence[float]) -> None:
    """Draw the loss over iterations in the first panel, and over training time in the second one.

    later: the losses that the axis holds.
    """
    length, unit = time_scale(losses)
    for panel, x, scale in ((axes[0], "step", 1.0), (axes[1], "train_seconds", length)):
        loss_axis(panel, later)
        draw_curves(panel, losses, x=x, scale=scale, marked=MARKED)
        for goal in goals:
            target_line(panel, goal)
    axes[0].set_xlabel("iteration")
    axes[1].set_xlabel(f"training time ({unit})")
    axes[0].set_ylabel("validation loss")
    axes[1].tick_params(labelleft=False)


def _draw_times(
    axes: Sequence[Axes], runs: pd.DataFrame, losses: pd.DataFrame, labels: Collection[str], *, to_a_target: bool
) -> None:
    """Draw training times in the lower panel, below those of the upper one: to the target, or of the run."""
    length, unit = time_scale(losses)
    by_label = {label: runs[runs["optimizer"] == label] for label in labels}
    took = {
        label: to_target(of_label, "seconds") if to_a_target else budgets(of_label, "seconds")
        for label, of_label in by_label.items()
    }
    scaled = {label: {seed: time / length for seed, time in times.items()} for label, times in took.items()}
    end = float(losses["train_seconds"].max()) / length
    for panel in axes:
        panel.set_xlim(-0.03 * end, 1.03 * end)
    draw_times_to_target(axes[1], scaled)
    name_rows(axes[1], [""] * len(labels))
    axes[1].set_xlabel(f"training time {'to the target' if to_a_target else 'of the run'} ({unit})")
