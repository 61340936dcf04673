"""Figure 19, appendix: what tuning finds over its number of trials, a panel for each search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from workflow.bench.analysis import styles
from workflow.bench.analysis.tuning_budget import Search
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig19_tuning_budget import notes_on, searches_of
from workflow.bench.results.tables import Results

EXPERIMENTS = ("*",)
TRIALS = True

_COLUMNS = 3
_MOST = 1.2
"""A panel is cut off if the first quarter of trials reaches beyond this multiple of what the others find."""
_BANDED = ("mkor", "kaisa")
"""The labels with a band; those of all would cover each other."""
_STATISTIC = (
    "Line: the best of so many trials drawn at random from a study, the mean over draws and studies; band: from the "
    "lowest to the highest study, of MKOR and KFAC. A trial that did not finish, or did not reach the target, is no "
    "success; draws without one are left out, and a line begins where half of the draws contain one. A panel in which "
    "the first trials are far worse than the later ones is cut off there"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the best value after each number of trials, with a panel for each workload of each experiment."""
    searches, several = searches_of(results)
    rows = -(-len(searches) // _COLUMNS)
    figure, axes = page.new_figure(rows, _COLUMNS, height=0.4 + 1.55 * rows)
    titles = styles.data_titles(
        [(experiment, _runs(results, experiment, workload)) for experiment, workload in searches], width=24
    )
    for panel, title, found in zip(axes.flat, titles, searches.values(), strict=False):
        panel.set_title(title, fontsize=6.5)
        _draw(panel, found)
    for panel in axes.flat[len(searches) :]:
        panel.remove()
    for panel in axes.flat[: len(searches)][-_COLUMNS:]:
        panel.set_xlabel("trials")
    legend = page.entries_of(label for found in searches.values() for label in found.budgets)
    if any(max(found.studies) > 1 for found in searches.values()):
        legend.append(page.band_entry("range over studies"))
    text = page.caption(results, pd.DataFrame(), notes=[_STATISTIC, *notes_on(searches, several)])
    reading = "The best of so many trials; a curve that still falls at its end gains from more. Bands: MKOR and KFAC."
    return page.save(figure, folder, "fig19_tuning_budget_appendix", legend, text, reading=reading)


def _runs(results: Results, experiment: str, workload: str) -> pd.DataFrame:
    """Return the runs that name a search's data, or if there are none yet a row with its workload alone."""
    runs = results.runs(experiment)
    of_workload = runs[runs["workload"] == workload]
    return of_workload if len(of_workload) else pd.DataFrame({"workload": [workload], "dataset": [None]})


def _draw(axes: Axes, found: Search) -> None:
    """Draw the budgets of one workload's optimizers."""
    shown = "steps to the target" if found.by_steps else found.metric
    axes.set_ylabel(shown, fontsize=6.5)
    if not found.budgets:
        panels.explain_empty(axes, "no optimizer succeeded in every study", width=24)
        return
    for place, label in enumerate(styles.in_order(found.budgets)):
        budget, look = found.budgets[label], styles.style_of(label)
        numbers = range(budget.first, budget.first + len(budget.mean))
        line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.0, "marker": look.marker}
        # At places of its own, so that the markers of lines on top of each other can be seen.
        axes.plot(numbers, budget.mean, **line, markersize=3.4, markevery=(place % 3, 3))
        if label in _BANDED:
            axes.fill_between(numbers, budget.lowest, budget.highest, color=look.color, alpha=0.15, linewidth=0)
    _scale(axes, found)
    axes.set_xlim(1, max(found.trials))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def _scale(axes: Axes, found: Search) -> None:
    """Use a logarithmic axis where values differ by more than a factor of five, and cut off what few trials found.

    The mean of one or two trials may hold a run that diverged, in comparison with which all others are equal.
    """
    budgets = found.budgets.values()
    values = [value for budget in budgets for value in (*budget.lowest, *budget.highest)]
    worst = max(budget.highest[-1] for budget in budgets)
    later = [value for budget in budgets for value in budget.highest[len(budget.highest) // 4 :]]
    top = max(value for value in later if value <= _MOST * worst)
    is_cut = found.is_falling and max(values) > _MOST * top
    low, high = min(values), top if is_cut else max(values)
    is_log = low > 0 and high > 5 * low
    margin = 0.05 * (high - low)
    limits = (low / 1.1, high * 1.1) if is_log else (low - margin, high + margin)
    if is_log:
        axes.set_yscale("log")
    if is_cut:
        axes.set_ylim(*limits)
    if is_log:
        panels.plain_log_ticks(axes)
