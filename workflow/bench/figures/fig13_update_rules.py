"""Figure 13 (ours): the published, the exact and the released update rule beside the base optimizer and KFAC."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.common_steps import by_seed, last_common_values
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import draw_curves, ended, legend
from workflow.bench.figures._rows import base_of, draw_differences
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("update_rules",)


def _draw_loss(axes: Axes, losses: pd.DataFrame) -> None:
    """Loss over iterations, one curve a label, on a scale that the finished runs fill."""
    low, high, scale = style.loss_limits(losses)
    axes.set_yscale(scale)
    axes.set_ylim(low, high)
    draw_curves(axes, losses, x="step", scale=1.0)
    if scale == "log":
        style.plain_log_ticks(axes)
    axes.set_xlabel("iteration")


def make(results: Results, folder: Path) -> list[Path]:
    """Draw loss over iterations and the paired final differences to the base optimizer, by workload.

    Raises NoDataError where update_rules has no validation loss.
    """
    runs, metrics = results.runs("update_rules"), results.metrics("update_rules")
    losses = ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'update_rules.csv'}: run update_rules first.")
    workloads = sorted(losses["workload"].unique())
    figure, axes = style.new_figure(2, len(workloads), height=4.2, height_ratios=(1.5, 1))
    for column, workload in enumerate(workloads):
        of_workload = losses[losses["workload"] == workload]
        labels = style.in_order(of_workload["optimizer"])
        axes[0, column].set_title(style.workload_name(workload))
        _draw_loss(axes[0, column], of_workload)
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
        draw_differences(axes[1, column], finals, base, [label for label in labels if label != base])
    for column in range(1, len(workloads)):
        previous = [text.get_text() for text in axes[1, column - 1].get_yticklabels()]
        if previous == [text.get_text() for text in axes[1, column].get_yticklabels()]:
            axes[1, column].set_yticklabels([])
    axes[0, 0].set_ylabel("validation loss")
    handles = legend(losses["optimizer"], [losses])
    notes = [
        "Below: difference of the final loss at equal iterations, paired by seed, with its interval; dots are seeds, "
        "left of 0 is better than the base optimizer. On a logarithmic axis the summary over seeds is of logarithms"
    ]
    style.finish(figure, handles, caption(results, runs, notes=notes), columns=3)
    return style.save(figure, folder, "fig13_update_rules")
