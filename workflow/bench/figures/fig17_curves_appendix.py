"""Figure 17, appendix: fine-tuning through Kronecker adapters, and a recurrent network of Kronecker products."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from workflow.bench.analysis import looks
from workflow.bench.analysis.field import Contest, contests
from workflow.bench.figures import _field as field
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("krona", "kronecker_rnn")

CURVES: Final = EXPERIMENTS
"""Experiments of a few optimizers, which have a panel of curves each."""


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the target's metric over the iterations of both experiments.

    Raises:
        NoDataError: neither experiment has runs.
    """
    curves = [contest for contest in contests(results) if contest.experiment in CURVES]
    if not curves:
        raise NoDataError(f"neither {' nor '.join(CURVES)} has runs in {results.root}: run make field first.")
    figure, (axes,) = style.new_figure(1, len(curves), height=2.3)
    for panel, contest in zip(axes, curves, strict=True):
        panel.set_title(looks.data_title(contest.runs, width=34), fontsize=7)
        _draw_curves(panel, contest)
    note = "the target's metric, its median over seeds (thin lines)"
    texts: page.Texts = {
        "caption": field.caption(results, curves, [note]),
        "reading": "Median over seeds, which are thin lines.",
    }
    return page.save(figure, folder, "fig17_curves_appendix", legend=[], **texts)


def _draw_curves(axes: Axes, contest: Contest) -> None:
    """Draw the target's metric over the iterations, a named curve for each label."""
    goal = contest.sweep.goal
    shown = panels.ended(contest.metrics, goal.split, goal.metric)
    panels.loss_axis(axes, shown)
    panels.draw_curves(axes, shown, x="step", scale=1.0)
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"{goal.split} {goal.metric}")
    low, high = axes.get_ylim()
    last = shown.sort_values("step").groupby(["optimizer", "seed"])["value"].last().groupby("optimizer").mean()
    scale = np.log if axes.get_yscale() == "log" else np.asarray
    place = {
        str(label): float((scale(value) - scale(low)) / (scale(high) - scale(low))) for label, value in last.items()
    }
    field.name_lines(axes, {label: min(place[label], 1.0) for label in looks.in_order(place)})
