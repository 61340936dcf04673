"""Figure 20, appendix: performance profiles over targets and seeds, a panel for each experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.target_sweep import TargetSweep, profiles
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig20_target_sweep import draw_each
from workflow.bench.results.tables import Results

EXPERIMENTS = ("*",)

_LARGEST_FACTOR: Final = 8.0
"""The right end of the axis of factors, unless all factors are smaller."""
_MARKERS: Final[Any] = {"linestyle": "none", "markersize": 3}
_NOTE: Final = (
    "the share of (target, seed) pairs in which an optimizer takes at most so many times the iterations of the best "
    "one; pairs that no optimizer solves are left out"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the performance profile of each experiment."""
    reading = "Share of targets and seeds reached within a factor of the best; upper left is better."
    labels = ("factor of the best", "solved (%)")
    name = "fig20_profiles_appendix"
    return draw_each(results, folder, name, _draw_profiles, _NOTE, reading, labels, 1.6, banded=False)


def _draw_profiles(axes: Axes, sweep: TargetSweep) -> list[str]:
    """Draw the share of problems that each label solves within a factor of the best; return the labels drawn."""
    by_label = profiles(sweep)
    factors = np.concatenate([*by_label.values()]) if by_label else np.array([])
    finite = factors[np.isfinite(factors)]
    if not len(finite):
        panels.explain_empty(
            axes, "no target is reached" if len(factors) else "no seed is shared by all optimizers", width=24
        )
        return []
    end = min(_LARGEST_FACTOR, max(1.5, 1.05 * float(finite.max())))
    for place, label in enumerate(styles.in_order(by_label)):
        solved = by_label[label][by_label[label] <= end]
        x = [1.0, *solved, end]
        y = np.minimum(np.arange(len(x)), len(solved)) / len(by_label[label])
        look = styles.style_of(label)
        # At places of its own, so that markers tell the curves apart without color.
        at = np.geomspace(1.0, end, 4)[:-1] * end ** (place / (3 * len(by_label)))
        axes.plot(at, y[np.searchsorted(x, at, side="right") - 1], marker=look.marker, color=look.color, **_MARKERS)
        axes.step(x, y, where="post", color=look.color, linestyle=look.line, linewidth=1.1)
    panels.profile_axes(axes, end)
    return [*by_label]
