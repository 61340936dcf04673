"""Figure 17, appendix: fine-tuning through Kronecker adapters, and a recurrent network of Kronecker products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.field import Contest, contests
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import fig17_field as field
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("krona", "kronecker_rnn")


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the target's metric over the iterations of both experiments."""
    curves = [contest for contest in contests(results) if contest.experiment in EXPERIMENTS]
    if not curves:
        raise NoDataError(f"neither {' nor '.join(EXPERIMENTS)} has runs in {results.root}: run make field first.")
    figure, (axes,) = page.new_figure(1, len(curves), height=2.3)
    for panel, contest in zip(axes, curves, strict=True):
        panel.set_title(styles.data_title(contest.runs, width=34), fontsize=7)
        _draw_curves(panel, contest)
    note = "the target's metric, its median over seeds (thin lines)"
    text = field.caption(results, curves, [note])
    reading = "Median over seeds, which are thin lines."
    return page.save(figure, folder, "fig17_curves_appendix", [], text, reading=reading)


def _draw_curves(axes: Axes, contest: Contest) -> None:
    """Draw the target's metric over the iterations, a named curve for each label."""
    goal = contest.sweep.goal
    shown = panels.ended(contest.metrics, goal.split, goal.metric)
    panels.loss_axis(axes, shown)
    panels.draw_curves(axes, shown, x="step", scale=1.0)
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"{goal.split} {goal.metric}")
    last = shown.sort_values("step").groupby(["optimizer", "seed"])["value"].last().groupby("optimizer").mean()
    scale = np.log if axes.get_yscale() == "log" else np.asarray
    low, high = map(scale, axes.get_ylim())
    heights = {
        label: min(float((scale(last[label]) - low) / (high - low)), 1.0) for label in styles.in_order(last.index)
    }
    field.name_lines(axes, heights)
