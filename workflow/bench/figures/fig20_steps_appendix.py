"""Figure 20, appendix: iterations to eight targets, a panel for each experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.target_sweep import TargetSweep
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig20_target_sweep import draw_each
from workflow.bench.results.tables import Results

EXPERIMENTS = ("*",)

_NOTE: Final = (
    "iterations at which the smoothed metric crosses each target; a curve ends where runs miss the target, and a band "
    "that reaches the top has no upper bound"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw iterations over the share of the base optimizer's steps, by experiment."""
    reading = "A curve ends where runs miss the target, a band at the top has no upper bound."
    labels = ("base's steps (%)", "iterations")
    return draw_each(results, folder, "fig20_steps_appendix", _draw_steps, _NOTE, reading, labels, 1.75, banded=True)


def _draw_steps(axes: Axes, sweep: TargetSweep) -> list[str]:
    """Draw the iterations to each target, one curve per label; return the labels that reach one."""
    # As if each share were a step of training, so that curves and intervals are those of `draw_curves`.
    rows = [
        {"optimizer": label, "seed": seed, "status": "finished", "step": share, "value": steps, "train_seconds": 0.0}
        for label, course in sweep.courses.items()
        for seed, crossings in course.crossings.items()
        for share, steps in zip(sweep.targets, crossings, strict=True)
    ]
    taken = pd.DataFrame(rows)
    finite = taken.loc[np.isfinite(taken["value"]) & (taken["value"] > 0), "value"]
    if finite.empty:
        panels.explain_empty(axes, "no run reaches a target", width=24)
        return []
    axes.set_yscale("log")
    axes.set_ylim(finite.min() / 1.15, finite.max() * 1.15)
    panels.draw_curves(axes, taken, x="step", scale=0.01)
    panels.plain_log_ticks(axes)
    axes.set_xlim(28, 102)
    middles = taken.groupby(["optimizer", "step"])["value"].median()
    return [*middles[np.isfinite(middles)].index.unique("optimizer")]
