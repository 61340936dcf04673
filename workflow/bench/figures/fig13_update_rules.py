"""Figure 13 (ours): MKOR's published, exact and released update rule, the base optimizer, and KFAC."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import loss_axis, plain_log_ticks
from workflow.bench.figures._captions import caption
from workflow.bench.figures._curves import draw_curves, ended, losses_to_compare
from workflow.bench.figures._page import save
from workflow.bench.figures._rows import base_of, draw_differences
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("update_rules",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw loss over iterations, and the paired final differences from the base optimizer, by workload.

    Raises:
        NoDataError: no run of update_rules has a validation loss.
    """
    runs, metrics = results.runs("update_rules"), results.metrics("update_rules")
    losses = ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'update_rules.csv'}: run update_rules first.")
    workloads = sorted(losses["workload"].unique())
    bases = {workload: base_of(runs[runs["workload"] == workload]) for workload in workloads}
    # The same rows in all panels, so that their names stand once; a workload without one of them has an empty row.
    labels = [label for label in style.in_order(losses["optimizer"]) if label not in bases.values()]
    figure, axes = style.new_figure(2, len(workloads), height=4.2, height_ratios=(1.5, 1))
    for (upper, lower), workload in zip(axes.T, workloads, strict=True):
        upper.set_title(style.workload_name(workload))
        _draw_losses(upper, losses[losses["workload"] == workload])
        of_workload = losses_to_compare(metrics[metrics["workload"] == workload])
        draw_differences(lower, of_workload, bases[workload], labels, most_ticks=5 if len(workloads) < 3 else 3)
        lower.tick_params(axis="x", labelsize=7)
        lower.set_xlabel(lower.get_xlabel().replace(", iteration", ",\niteration"))
    _name_rows_once(axes[1])
    axes[0, 0].set_ylabel("validation loss")
    notes = [
        "Below: difference of the final loss at equal iterations, paired by seed, with its interval; dots are seeds, "
        "and left of 0 is better than the base optimizer. On a logarithmic axis the statistics over seeds are those of "
        "logarithms"
    ]
    legend = _legend.of_curves(losses["optimizer"], [losses])
    return save(figure, folder, "fig13_update_rules", legend=legend, caption=caption(results, runs, notes=notes))


def _draw_losses(axes: Axes, losses: pd.DataFrame) -> None:
    """Draw loss over iterations, one curve per label."""
    loss_axis(axes, losses)
    draw_curves(axes, losses, x="step", scale=1.0)
    if axes.get_yscale() == "log":
        plain_log_ticks(axes)
    axes.set_xlabel("iteration")


def _name_rows_once(panels: Sequence[Axes]) -> None:
    """Leave out the names of a panel's rows if the panel to its left has the same ones."""
    names = [[text.get_text() for text in panel.get_yticklabels()] for panel in panels]
    for panel, in_panel, in_left in zip(panels[1:], names[1:], names, strict=False):
        if in_panel == in_left:
            panel.set_yticklabels([])
