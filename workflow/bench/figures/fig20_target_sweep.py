"""Figure 20 (ours): iterations to what the base reaches, and performance profiles, by experiment with a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.target_sweep import NoSweepError, TargetSweep, profiles, target_sweep
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("*",)

_COLUMNS: Final = 4
_POINTS: Final = 6.5  # of the letters at the axes: the panels are small
_LARGEST_FACTOR: Final = 8.0
"""The right end of the axis of factors, unless all factors are smaller."""
_NOTES: Final = (
    "Targets are what the base optimizer reaches after 30, 40, ... 100 % of its own steps (the mean over its seeds of "
    "the smoothed metric of the experiment's target). Those that are no better than the trivial predictor, or that the "
    "base crosses by its third evaluation, are left out. Above: iterations at which the smoothed metric crosses each; "
    "a curve ends where runs miss the target, and a band that reaches the top has no upper bound",
    "Below: the share of (target, seed) pairs in which an optimizer takes at most so many times the iterations of the "
    "best one; pairs that no optimizer solves are left out",
)


@dataclass(frozen=True)
class _Shown:
    """The sweep of one experiment on one workload, and its runs."""

    title: str
    sweep: TargetSweep
    runs: pd.DataFrame


def _sweeps(results: Results) -> Iterator[_Shown | str]:
    """Yield the sweep of every experiment and workload with a target, or why there is none, a clause."""
    for name in results.experiments():
        runs = results.runs(name)
        aimed = runs[runs["target"].notna()]
        # The file of an experiment without a target may be large, and is not read.
        metrics = results.metrics(name) if len(aimed) else pd.DataFrame()
        for (workload, _), rows in aimed.groupby(["workload", "dataset"], sort=False):
            base = forest.base_of(rows)
            if base is None:
                yield f"{name} has no run of a base optimizer"
                continue
            try:
                sweep = target_sweep(rows, metrics, base)
            except NoSweepError as problem:
                yield f"{name} {problem}"
            else:
                yield _Shown(f"{style.workload_name(str(workload))}\n{name}", sweep, rows)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw iterations over the share of the base optimizer's steps, and below the performance profile, by experiment.

    Raises:
        NoDataError: there is no run.
    """
    names = results.experiments()
    if not names:
        raise NoDataError(f"no experiment in {results.root} has runs.")
    found = list(_sweeps(results))
    shown = [one for one in found if isinstance(one, _Shown)]
    left_out = dict.fromkeys(one for one in found if isinstance(one, str))
    notes = [*_NOTES, *([f"Not shown: {'; '.join(left_out)}"] if left_out else [])]
    if not shown:
        figure, axes = style.new_figure(1, 1, height=1.0)
        panels.explain_empty(axes[0, 0], "no experiment has runs with a target that tells of training")
        runs = pd.concat([results.runs(name) for name in names], ignore_index=True)
        text = page.caption(results, runs, notes=notes)
        return page.save(figure, folder, "fig20_target_sweep", legend=[], caption=text)
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = style.new_figure(2 * rows, columns, height=2.15 * rows, height_ratios=(1.3, 1) * rows)
    for place in range(rows * columns):
        upper, lower = axes[2 * (place // columns) : 2 * (place // columns) + 2, place % columns]
        if place < len(shown):
            upper.set_title(shown[place].title, fontsize=_POINTS)
            _draw_steps(upper, shown[place].sweep)
            _draw_profiles(lower, shown[place].sweep)
        else:
            upper.remove()
            lower.remove()
    _name_axes(axes)
    runs = pd.concat([one.runs for one in shown], ignore_index=True)
    legend = page.entries_of(chain.from_iterable(one.sweep.courses for one in shown))
    legend += panels.spread_entries({len(one.crossings) for each in shown for one in each.sweep.courses.values()})
    text = page.caption(results, runs, notes=notes)
    return page.save(figure, folder, "fig20_target_sweep", legend=legend, caption=text)


def _draw_steps(axes: Axes, sweep: TargetSweep) -> None:
    """Draw the iterations to each target, one curve per label."""
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
        return
    axes.set_yscale("log")
    axes.set_ylim(finite.min() / 1.15, finite.max() * 1.15)
    panels.draw_curves(axes, taken, x="step", scale=0.01)
    panels.plain_log_ticks(axes)
    axes.set_xlim(28, 102)


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


def _name_axes(axes: np.ndarray) -> None:
    """Name the axes: iterations and problems at the left, shares and factors below each panel that is not removed."""
    for number, row in enumerate(axes):
        is_upper = number % 2 == 0
        row[0].set_ylabel("iterations" if is_upper else "solved (%)", fontsize=7)
        for panel in (panel for panel in row if panel.figure is not None):
            name = "base's steps (%)" if is_upper else "factor of the best"
            panel.set_xlabel(name, fontsize=_POINTS, labelpad=2)
            panel.tick_params(labelsize=_POINTS, pad=2)
