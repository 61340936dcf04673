"""Figure 2: BERT pre-training loss over iterations and over training time, all optimizers."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from workflow.bench import style
from workflow.bench.captions import caption
from workflow.bench.results import NoDataError, Results
from workflow.bench.statistics import curve

EXPERIMENTS = ("bert_pretraining",)


def _target(runs: pd.DataFrame) -> float | None:
    """The loss that the experiment's file sets as the target, where it sets one on the validation loss."""
    if "target" not in runs or runs["target"].dropna().empty:
        return None
    target = json.loads(runs["target"].dropna().iloc[0])
    is_loss = target and target.get("metric") == "loss" and target.get("split") == "validation"
    return target.get("below") if is_loss else None


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation loss over steps and over training seconds, with intervals over seeds.

    Raises NoDataError where no run of bert_pretraining has a validation loss.
    """
    runs, metrics = results.runs("bert_pretraining"), results.metrics("bert_pretraining")
    losses = metrics[(metrics["split"] == "validation") & (metrics["metric"] == "loss")]
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'bert_pretraining.csv'}: run bert_pretraining first.")
    labels = style.in_order(losses["optimizer"])
    curves = {label: curve(losses[losses["optimizer"] == label]) for label in labels}
    figure, axes = style.new_figure(1, 2, height=2.5, sharey=True)
    by_step, by_time = axes[0]
    length, unit = style.time_unit(max(losses["train_seconds"].max(), 1.0))
    low, high, axis = style.loss_limits(losses)
    for panel, x, scale in ((by_step, "step", 1.0), (by_time, "train_seconds", length)):
        panel.set_yscale(axis)
        for label in labels:
            style.draw_curve(panel, curves[label], label, x=x, scale=scale)
        panel.set_ylim(low, high)
        for label in labels:
            style.mark_failures(panel, losses[losses["optimizer"] == label], label, x=x, scale=scale)
    target = _target(runs)
    if target is not None:
        for panel in (by_step, by_time):
            style.target_line(panel, target)
    by_step.set(xlabel="iteration", ylabel="validation loss")
    by_time.set(xlabel=f"training time ({unit}), evaluation not counted")
    handles: list = [style.method_handle(label) for label in labels]
    if runs["seed"].nunique() > 1:
        handles.append(style.band_handle("95 % interval"))
    if (losses["status"] != "finished").any():
        handles.append(style.failure_handle())
    notes = ["Masked-language and next-sentence loss, every run from one shared phase-1 checkpoint"]
    style.finish(figure, handles, caption(results, runs, notes=notes), columns=3)
    return style.save(figure, folder, "fig02_bert_loss")
