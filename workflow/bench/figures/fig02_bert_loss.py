"""Figure 2: BERT pre-training loss over training time, and what the target takes against the base optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.wording import signed
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _time_to_target as time_to_target
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("bert_pretraining",)
PROBES = ("step_time",)

_NOTE: Final = (
    "Masked-language and next-sentence loss on the validation data, where the paper's Figure 2 shows the training "
    "loss; every run starts from one shared phase-1 checkpoint"
)
_START: Final = 0.1


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation loss over training time, and each label's iterations and time to the target over its base's."""
    (experiment,) = EXPERIMENTS
    notes = (_NOTE, _final_losses(results.runs(experiment), results.metrics(experiment)))
    subject = time_to_target.Subject(
        experiment, "loss", "iterations", _loss_axis, "validation loss", "{:g}".format, notes=notes
    )
    return time_to_target.make(results, folder, "fig02_bert_loss", subject)


def _final_losses(runs: pd.DataFrame, metrics: pd.DataFrame) -> str:
    """Return the caption's sentence on each label's last loss against the base optimizer's; empty without a pair."""
    base = common_base(runs)
    # At one iteration of schedules of different lengths, one run is at its end and the other is not.
    alike = runs.loc[runs["steps"].isin(runs.loc[runs["optimizer"] == base, "steps"]), "run"]
    try:
        losses = panels.losses_to_compare(metrics[metrics["run"].isin(alike)])
        changes, step = forest.final_changes(losses, runs, base)
    except NoDataError:
        return ""
    parts = []
    for label in styles.in_order(changes.keys() - {base}):
        found = changes[label].estimate
        interval = f" [{signed(found.low)}, {signed(found.high)}]" if found.has_interval else ""
        parts.append(f"{styles.style_of(label).name} {signed(found.value)}{interval}")
    against = f"Loss at iteration {step:g} against {styles.style_of(str(base)).name}'s, paired by seed"
    return f"{against}: {', '.join(parts)}" if parts else ""


def _loss_axis(axes: Axes, losses: pd.DataFrame) -> str:
    """Set the axis to the losses after the start of training if they fill less than half of one with all losses."""
    later = losses[losses["step"] > _START * losses["step"].max()]
    (low, high, _), (least, most, _) = panels.loss_limits(later), panels.loss_limits(losses)
    is_cut = len(later) > 0 and high - low < (most - least) / 2
    panels.loss_axis(axes, later if is_cut else losses)
    left_out = f"the first {100 * _START:g} % of the iterations, in which most of the fall lies"
    return f"The loss axis leaves out {left_out}" if is_cut else ""
