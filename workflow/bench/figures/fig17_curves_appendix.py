"""Figure 17, appendix: fine-tuning through Kronecker adapters, and a recurrent network of Kronecker products."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from workflow.bench.analysis import styles
from workflow.bench.analysis.field import contests
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("krona", "kronecker_rnn")

_MARKED: Final = ("adamw", "mkor")
"""The labels with intervals, the base optimizer and MKOR; those of all would cover each other."""


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the target's metric over the iterations of both experiments."""
    found = [contest for contest in contests(results) if contest.experiment in EXPERIMENTS]
    if not found:
        raise NoDataError(f"neither {' nor '.join(EXPERIMENTS)} has runs in {results.root}: run make field first.")
    figure, (axes,) = page.new_figure(1, len(found), height=2.5)
    shown = []
    for panel, contest in zip(axes, found, strict=True):
        goal = contest.sweep.goal
        shown.append(panels.ended(contest.metrics, goal.split, goal.metric))
        panels.draw_losses(panel, shown[-1], x="step", scale=1.0, marked=_MARKED)
        panel.set_title(styles.data_title(contest.runs, width=34), fontsize=7)
        panel.set_xlabel("iteration")
        panel.set_ylabel(f"{goal.split} {goal.metric}")
    runs = pd.concat([contest.runs for contest in found], ignore_index=True)
    text = page.caption(results, runs, notes=["the target's metric"])
    reading = "Median over seeds; bold: AdamW and MKOR."
    legend = panels.curve_entries(shown, _MARKED)
    return page.save(figure, folder, "fig17_curves_appendix", legend, text, reading=reading)
