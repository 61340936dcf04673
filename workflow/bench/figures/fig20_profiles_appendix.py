"""Figure 20, appendix: performance profiles over targets and seeds, a panel for each experiment."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.target_sweep import TargetSweep, profiles
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.figures.fig20_target_sweep import TARGETS_NOTE, draw_empty, sweeps_of
from workflow.bench.results.tables import Results

EXPERIMENTS = ("*",)

_COLUMNS: Final = 3
_LARGEST_FACTOR: Final = 8.0
"""The right end of the axis of factors, unless all factors are smaller."""
_NOTE: Final = (
    "the share of (target, seed) pairs in which an optimizer takes at most so many times the iterations of the best "
    "one; pairs that no optimizer solves are left out"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the performance profile of each experiment.

    Raises:
        NoDataError: there is no run.
    """
    shown, left_out = sweeps_of(results)
    notes = [TARGETS_NOTE, _NOTE, *left_out]
    if not shown:
        return draw_empty(results, folder, "fig20_profiles_appendix", notes)
    rows = -(-len(shown) // _COLUMNS)
    figure, axes = style.new_figure(rows, min(_COLUMNS, len(shown)), height=1.6 * rows)
    titles = style.data_titles([(one.experiment, one.runs) for one in shown], width=24)
    for panel, title, one in zip(axes.flat, titles, shown, strict=False):
        panel.set_title(title, fontsize=6.5)
        _draw_profiles(panel, one.sweep)
    for panel in axes.flat[len(shown) :]:
        panel.remove()
    for panel in axes[:, 0]:
        panel.set_ylabel("solved (%)")
    for panel in axes.flat[: len(shown)][-_COLUMNS:]:
        panel.set_xlabel("factor of the best")
    runs = pd.concat([one.runs for one in shown], ignore_index=True)
    legend = page.entries_of(chain.from_iterable(one.sweep.courses for one in shown))
    legend += panels.spread_entries({len(one.crossings) for each in shown for one in each.sweep.courses.values()})
    texts: page.Texts = {
        "caption": page.caption(results, runs, notes=notes),
        "reading": "Share of targets and seeds reached within a factor of the best; upper left is better.",
    }
    return page.save(figure, folder, "fig20_profiles_appendix", legend=legend, **texts)


def _draw_profiles(axes: Axes, sweep: TargetSweep) -> None:
    """Draw the share of problems that each label solves within a factor of the best label's iterations."""
    by_label = profiles(sweep)
    factors = np.concatenate([*by_label.values()]) if by_label else np.array([])
    finite = factors[np.isfinite(factors)]
    if not len(finite):
        panels.explain_empty(
            axes, "no target is reached" if len(factors) else "no seed is shared by all optimizers", width=24
        )
        return
    end = min(_LARGEST_FACTOR, max(1.5, 1.05 * float(finite.max())))
    for label in style.in_order(by_label):
        solved = by_label[label][by_label[label] <= end]
        x = [1.0, *solved, end]
        y = np.minimum(np.arange(len(x)), len(solved)) / len(by_label[label])
        look = style.style_of(label)
        axes.step(x, y, where="post", color=look.color, linestyle=look.line, linewidth=1.1)
    panels.profile_axes(axes, end)
