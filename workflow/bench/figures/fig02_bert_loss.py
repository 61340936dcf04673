"""Figure 2: BERT pre-training loss over iterations and over training time, and all optimizers' final losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import studies_of
from workflow.bench.analysis.step_times import StepTimes, timed
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.time_to_target import budgets, reaching, target_ratio, to_target
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("bert_pretraining",)
PROBES = ("step_time",)

CURVES: Final = ("kaisa", "mkor", "mkor_normalized")
"""The labels that have a curve beside the base optimizer's: the paper's rival, and MKOR with one side acting and both.

The others have a row below: ten curves would hide each other.
"""
_NOTES: Final = (
    "Masked-language and next-sentence loss on the validation data, where the paper's Figure 2 shows the training "
    "loss; every run starts from one shared phase-1 checkpoint. Above: the base optimizer, KFAC and MKOR",
    "Below: every optimizer's loss against the base optimizer's at the same iteration, paired by seed, and training "
    "time to the target, or of the whole run without a target; dots are runs, a triangle at an edge is a run beyond it",
)
_START: Final = 0.1
_CUT: Final = f"The loss axis leaves out the first {100 * _START:g} % of the iterations, in which most of the fall lies"
_OTHER_SCHEDULE: Final = (
    "Runs with more or fewer steps than the base optimizer's follow another schedule, so they have no difference"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw validation loss over steps and over training seconds; below, final differences and training times."""
    (name,) = EXPERIMENTS
    times = StepTimes(results.probe("step_time"))
    measured = timed(times, results.runs(name), results.metrics(name))
    runs, metrics = measured.runs, measured.metrics
    losses = panels.ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'bert_pretraining.csv'}: run bert_pretraining first.")
    labels = styles.in_order(losses["optimizer"])
    rows = 0.15 * len(labels) + 0.15
    figure, axes = page.new_figure(2, 2, height=2.75 + rows, height_ratios=(1.9, rows))
    base = common_base(runs)
    drawn = losses[losses["optimizer"].isin({*CURVES, base or labels[0]})]
    drawn = drawn if len(drawn) else losses
    goals, later = panels.targets(runs, "validation", "loss"), _without_start(drawn)
    length, unit = panels.time_scale(losses)
    for panel, x, scale in ((axes[0, 0], "step", 1.0), (axes[0, 1], "train_seconds", length)):
        panels.loss_axis(panel, later)
        panels.draw_curves(panel, drawn, x=x, scale=scale, goals=goals)
    axes[0, 0].set(xlabel="iteration", ylabel="validation loss")
    axes[0, 1].set_xlabel(f"training time ({unit})")
    axes[0, 1].tick_params(labelleft=False)
    # At one iteration of schedules of different lengths, one run is at its end and the other is not.
    compared = set(runs.loc[runs["steps"].isin(runs.loc[runs["optimizer"] == base, "steps"]), "run"])
    comparable = panels.losses_to_compare(metrics[metrics["run"].isin(compared)])
    forest.draw_differences(axes[1, 0], comparable, base, labels)
    took = {label: (to_target if goals else budgets)(runs[runs["optimizer"] == label], "seconds") for label in labels}
    end = float(losses["train_seconds"].max()) / length
    for panel in axes[:, 1]:
        panel.set_xlim(-0.03 * end, 1.03 * end)
    studies = {label: studies_of(runs[runs["optimizer"] == label]) for label in labels}
    _draw_times(axes[1, 1], took, studies, length)
    forest.name_rows(axes[1, 1], [""] * len(labels))
    axes[1, 1].set_xlabel(f"training time {'to the target' if goals else 'of the run'} ({unit})")
    notes = [*_NOTES, measured.note(styles.workload_name)]
    if len(later) < len(drawn):
        notes.append(_CUT)
    if set(losses["run"]) - compared:
        notes.append(_OTHER_SCHEDULE)
    legend = panels.curve_entries([drawn]) + ([panels.target_entry()] if goals else [])
    text = page.caption(results, runs, notes=notes)
    title = _message(runs, comparable, times if goals else None)
    reading = "Below: all optimizers; dots are runs, left is better."
    return page.save(figure, folder, "fig02_bert_loss", legend, text, title, reading)


def _draw_times(
    axes: Axes, took: Mapping[str, Mapping[int, float]], studies: Mapping[str, Mapping[int, float]], scale: float
) -> None:
    """Draw a row for each label: dots are runs, the marker is their estimate with its interval, if it is finite.

    took: by label and seed, infinite for a run that never reached the target; studies: the tuning study of each seed,
    by label; scale: the unit of the axis. To the right stands how many of a label's runs reached the target, if not all
    of them.
    """
    for row, (label, unscaled) in enumerate(took.items()):
        times = {seed: value / scale for seed, value in unscaled.items()}
        if (summary := reaching(times, studies[label])) is None:
            continue
        forest.draw_runs(axes, [value for value in times.values() if math.isfinite(value)], row, label)
        if math.isfinite(summary.took.value):
            forest.draw_estimate(axes, summary.took, row, label, runs=list(times.values()))
        if summary.censored:
            forest.write_beside(axes, row, f"{summary.reached} of {summary.runs}", "reached")


def _message(runs: pd.DataFrame, losses: pd.DataFrame, times: StepTimes | None) -> str:
    """Return the title: MKOR's final loss against the base's, and with ``times`` that to the target.

    It is empty without final losses.
    """
    base = common_base(runs)
    try:
        changes, _ = forest.final_changes(losses, base)
    except NoDataError:
        return ""
    if not changes.get("mkor"):
        return ""
    name = styles.style_of(str(base)).name
    change = median(changes["mkor"])
    beside = f"ends at a loss {abs(change):.1f} % {'below' if change < 0 else 'above'} {name}'s"
    alone = " in one run" if len(changes["mkor"]) == 1 else ""
    title = f"{styles.data_title(runs)}: MKOR {beside + alone if math.isfinite(change) else 'diverges in most runs'}"
    ours, theirs = (runs[runs["optimizer"] == label] for label in ("mkor", base))
    compared = target_ratio(ours, theirs, times) if times else None
    ratio = compared.ratio if compared else None
    if ratio is None or not 0 < ratio.value < math.inf:
        return title
    return f"{title} and takes {ratio.value:.2f} times {name}'s time to the target{forest.undecided(ratio)}"


def _without_start(losses: pd.DataFrame) -> pd.DataFrame:
    """Return the losses after the start of training if they fill less than half of an axis that shows all losses."""
    later = losses[losses["step"] > _START * losses["step"].max()]
    (low, high, _), (least, most, _) = panels.loss_limits(later), panels.loss_limits(losses)
    return later if len(later) and high - low < (most - least) / 2 else losses
