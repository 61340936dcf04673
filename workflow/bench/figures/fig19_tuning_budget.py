"""Figure 19: what tuning finds over its number of trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from workflow.bench.analysis.tuning_budget import Search, has_several, search
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import NoDataError, Results

TRIALS = True

_COLUMNS = 3
_MOST = 1.2
"""A panel is cut off if the first quarter of trials reaches beyond this multiple of what the others find."""
_STATISTIC = (
    "Line: the best of so many trials drawn at random from a study, the mean over draws and studies; band: from the "
    "lowest to the highest study. A trial that did not finish, or did not reach the target, is no success; draws "
    "without one are left out, and a line begins where half of the draws contain one. A panel in which the first "
    "trials are far worse than the later ones is cut off there"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the best value after each number of trials, with a panel for each workload of each experiment.

    Raises:
        NoDataError: there are no trials, or none that can be shown.
    """
    trials = results.trials()
    if trials.empty:
        raise NoDataError("no trials of tuning; run python -m workflow.bench.tune")
    by_workload = {
        (str(experiment), str(workload)): rows
        for (experiment, workload), rows in trials.groupby(["experiment", "workload"], sort=False)
    }
    # The table does not say to which of a workload's sizes a trial belongs.
    several = {names for names, rows in by_workload.items() if has_several(rows)}
    searches = {names: search(rows) for names, rows in by_workload.items() if names not in several}
    if not searches:
        raise NoDataError("the trials are those of workloads that were tuned at several sizes; none can be shown")
    rows = -(-len(searches) // _COLUMNS)
    figure, axes = style.new_figure(rows, _COLUMNS, height=0.4 + 1.45 * rows)
    for panel, (names, found) in zip(axes.flat, searches.items(), strict=False):
        _draw(panel, *names, found)
    for panel in axes.flat[len(searches) :]:
        panel.remove()
    for panel in axes.flat[: len(searches)][-_COLUMNS:]:
        panel.set_xlabel("trials")
    legend = page.entries_of((label for found in searches.values() for label in found.budgets), marker="")
    if any(max(found.studies) > 1 for found in searches.values()):
        legend.append(page.band_entry("range over studies"))
    notes = [_STATISTIC, _sizes(searches), *_failures(searches)]
    if several:
        places = ", ".join(f"{experiment} {style.workload_name(workload)}" for experiment, workload in sorted(several))
        notes.append(f"Not shown, since they were tuned at several sizes: {places}")
    text = page.caption(results, pd.DataFrame(), notes=notes)
    return page.save(figure, folder, "fig19_tuning_budget", legend=legend, caption=text)


def _draw(axes: Axes, experiment: str, workload: str, found: Search) -> None:
    """Draw the budgets of one workload's optimizers."""
    shown = "steps to the target" if found.by_steps else found.metric
    axes.set_title(f"{style.workload_name(workload)}\n{experiment}", fontsize=6.5)
    axes.set_ylabel(shown, fontsize=6.5)
    if not found.budgets:
        panels.explain_empty(axes, "no optimizer succeeded in every study", width=24)
        return
    for label in style.in_order(found.budgets):
        budget, look = found.budgets[label], style.style_of(label)
        numbers = range(budget.first, budget.first + len(budget.mean))
        axes.plot(numbers, budget.mean, color=look.color, linestyle=look.line, linewidth=1.1)
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


def _sizes(searches: Mapping[tuple[str, str], Search]) -> str:
    """Return a sentence on the numbers of trials and studies."""
    places: dict[str, list[str]] = {}
    for (experiment, workload), found in searches.items():
        trials, studies = (" or ".join(map(str, numbers)) for numbers in (found.trials, found.studies))
        size = f"{trials} trials of each optimizer in {studies} {'study' if studies == '1' else 'studies'}"
        several = sum(name == experiment for name, _ in searches) > 1
        places.setdefault(size, []).append(f"{experiment} {style.workload_name(workload)}" if several else experiment)
    return "; ".join(f"{size}: {', '.join(names)}" for size, names in places.items())


def _failures(searches: Mapping[tuple[str, str], Search]) -> list[str]:
    """Return a sentence on the optimizers of which a study never succeeded, if there are any."""
    failed = [
        f"{', '.join(style.style_of(label).name for label in found.failed)} in {experiment} "
        f"{style.workload_name(workload)}"
        for (experiment, workload), found in searches.items()
        if found.failed
    ]
    return [f"without success in some study: {'; '.join(failed)}"] if failed else []
