"""Figure 13 (ours): the published, the exact and the released update rule beside the base optimizer and KFAC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench import style
from workflow.bench.captions import caption
from workflow.bench.results import NoDataError, Results, by_seed, last_common_values
from workflow.bench.statistics import curve, paired_difference

EXPERIMENTS = ("update_rules",)


def base_of(runs: pd.DataFrame) -> str | None:
    """The label of the first-order optimizer that the second-order runs of one workload wrap, if it ran itself."""
    for text in runs.loc[runs["update_rule"].notna(), "hyperparameters"].dropna():
        base = json.loads(text).get("base", "sgd")
        if base in set(runs["optimizer"]):
            return str(base)
    return None


def _draw_curves(axes: Axes, losses: pd.DataFrame, labels: list[str]) -> None:
    """Loss over iterations, one curve a label, on a scale that the finished runs fill."""
    low, high, scale = style.loss_limits(losses)
    axes.set_yscale(scale)
    for label in labels:
        style.draw_curve(axes, curve(losses[losses["optimizer"] == label]), label)
    axes.set_ylim(low, high)
    for label in labels:
        style.mark_failures(axes, losses[losses["optimizer"] == label], label)
    if scale == "log":
        style.plain_log_ticks(axes)
    axes.set_xlabel("iteration")


def _draw_differences(axes: Axes, finals: Mapping[str, Mapping[int, float]], base: str, labels: list[str]) -> None:
    """One row a method: final loss minus the base optimizer's, paired by seed, small dots the seeds."""
    rows = [label for label in labels if label != base]
    axes.axvline(0, color="#444444", linewidth=0.8)
    for place, label in enumerate(rows):
        look = style.style_of(label)
        pairs = {seed: value - finals[base][seed] for seed, value in finals[label].items() if seed in finals[base]}
        finite = [difference for difference in pairs.values() if np.isfinite(difference)]
        axes.plot(finite, [place + 0.26] * len(finite), ".", color=look.color, markersize=3, alpha=0.75)
        summary = paired_difference(finals[label], finals[base])
        if summary is not None:
            axes.hlines(place, summary.low, summary.high, color=look.color, linewidth=2.2, alpha=0.55)
            axes.plot(summary.value, place, marker=look.marker, color=look.color, markersize=5)
        if len(finite) < len(pairs):
            axes.annotate(
                f"× {len(pairs) - len(finite)} of {len(pairs)} did not finish",
                (0.985, place - 0.36),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                fontsize=6.5,
                color=look.color,
            )
    axes.set_yticks(range(len(rows)), [style.style_of(label).name for label in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"final loss − {style.style_of(base).name}'s")


def make(results: Results, folder: Path) -> list[Path]:
    """Draw loss over iterations and the paired final differences to the base optimizer, by workload.

    Raises NoDataError where update_rules has no validation loss.
    """
    runs, metrics = results.runs("update_rules"), results.metrics("update_rules")
    losses = metrics[(metrics["split"] == "validation") & (metrics["metric"] == "loss")]
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'update_rules.csv'}: run update_rules first.")
    workloads = sorted(losses["workload"].unique())
    figure, axes = style.new_figure(2, len(workloads), height=4.2, height_ratios=(1.5, 1))
    for column, workload in enumerate(workloads):
        of_workload = losses[losses["workload"] == workload]
        labels = style.in_order(of_workload["optimizer"])
        axes[0, column].set_title(style.workload_name(workload))
        _draw_curves(axes[0, column], of_workload, labels)
        base = base_of(runs[runs["workload"] == workload])
        if base is None:
            style.say(axes[1, column], "the base optimizer has no run to pair with")
            continue
        without = metrics[(metrics["workload"] == workload) & metrics["split"].isna()]
        try:
            last, _ = last_common_values(pd.concat([of_workload, without]) if len(without) else of_workload)
        except NoDataError as error:
            style.say(axes[1, column], str(error))
            continue
        finals = {str(label): by_seed(rows) for label, rows in last.groupby("optimizer")}
        if base not in finals:
            style.say(axes[1, column], "the base optimizer has no run to pair with")
            continue
        _draw_differences(axes[1, column], finals, base, [label for label in labels if label in finals])
    for column in range(1, len(workloads)):
        previous = [text.get_text() for text in axes[1, column - 1].get_yticklabels()]
        if previous == [text.get_text() for text in axes[1, column].get_yticklabels()]:
            axes[1, column].set_yticklabels([])
    axes[0, 0].set_ylabel("validation loss")
    handles: list = [style.method_handle(label) for label in style.in_order(losses["optimizer"])]
    handles.append(style.band_handle("95 % interval"))
    if (losses["status"] != "finished").any():
        handles.append(style.failure_handle())
    notes = [
        "Below: difference of the final loss at equal iterations, paired by seed, with its interval; dots are seeds, "
        "left of 0 is better than the base optimizer"
    ]
    style.finish(figure, handles, caption(results, runs, notes=notes), columns=3)
    return style.save(figure, folder, "fig13_update_rules")
