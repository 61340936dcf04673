"""Figure 2: BERT pre-training loss over iterations and over training time, all optimizers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.common_steps import by_seed, last_common_values
from workflow.bench.analysis.time_to_target import to_target
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import draw_curves, ended, legend, targets, time_scale
from workflow.bench.figures._rows import base_of, draw_differences, draw_reaching, name_rows
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("bert_pretraining",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation loss over steps and over training seconds; below final differences, and the time to the target.

    Raises NoDataError where no run of bert_pretraining has a validation loss.
    """
    runs, metrics = results.runs("bert_pretraining"), results.metrics("bert_pretraining")
    losses = ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'bert_pretraining.csv'}: run bert_pretraining first.")
    labels = style.in_order(losses["optimizer"])
    rows = 0.15 * len(labels) + 0.15
    figure, axes = style.new_figure(2, 2, height=2.75 + rows, height_ratios=(1.9, rows))
    length, unit = time_scale(losses)
    low, high, scale = style.loss_limits(losses)
    goals = targets(runs, "validation", "loss")
    for panel, x, divisor, name in (
        (axes[0, 0], "step", 1.0, "iteration"),
        (axes[0, 1], "train_seconds", length, f"training time ({unit})"),
    ):
        panel.set_yscale(scale)
        panel.set_ylim(low, high)
        draw_curves(panel, losses, x=x, scale=divisor)
        for goal in goals:
            style.target_line(panel, goal)
        panel.set_xlabel(name)
    axes[0, 0].set_ylabel("validation loss")
    axes[0, 1].tick_params(labelleft=False)

    base = base_of(runs)
    # At one iteration of schedules of different lengths, one run is at its end and the other under way.
    alike = runs.loc[runs["steps"].isin(runs.loc[runs["optimizer"] == base, "steps"]), "run"]
    broken = metrics[metrics["split"].isna()]
    compared = losses if broken.empty else pd.concat([losses, broken])
    try:
        last, step = last_common_values(compared[compared["run"].isin(alike)])
        finals = {str(label): by_seed(of_label) for label, of_label in last.groupby("optimizer")}
        if base not in finals:
            raise NoDataError("the base optimizer has no run to pair with")
        draw_differences(axes[1, 0], finals, base, labels)
        axes[1, 0].set_xlabel(f"loss − {style.style_of(base).name}'s, iteration {step:g}")
    except NoDataError as error:
        style.say(axes[1, 0], str(error))
    by_time = axes[1, 1]
    if goals:
        took = {label: to_target(runs[runs["optimizer"] == label], "seconds") for label in labels}
        end = float(losses["train_seconds"].max()) / length
        for panel in axes[:, 1]:
            panel.set_xlim(-0.03 * end, 1.03 * end)
        draw_reaching(
            by_time,
            {label: {seed: seconds / length for seed, seconds in of_label.items()} for label, of_label in took.items()},
            1.03 * end,
        )
        name_rows(by_time, [""] * len(labels))
        by_time.set_xlabel(f"training time to the target ({unit})")
    else:
        style.say(by_time, "the runs have no target on the validation loss")
    notes = [
        "Masked-language and next-sentence loss, every run from one shared phase-1 checkpoint",
        "Below: loss at equal iterations minus the base optimizer's, paired by seed, and training time to the first "
        "evaluation at the target; dots are runs. Evaluation is not counted in the training time",
    ]
    if set(losses["run"]) - set(alike):
        notes.append("Runs with more or fewer steps than the base optimizer's follow another schedule: no difference")
    style.finish(figure, legend(labels, [losses]), caption(results, runs, notes=notes), columns=3)
    return style.save(figure, folder, "fig02_bert_loss")
