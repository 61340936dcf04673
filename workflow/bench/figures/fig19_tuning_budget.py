"""Figure 19: what half of the trials of tuning would have found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis import styles
from workflow.bench.analysis.tuning_budget import Search, has_several, search
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.results.tables import NoDataError, Results

TRIALS = True

COMPARED: Final = ("mkor", "kaisa")
"""The labels that the title compares, on the searches that both have."""
_BAR: Final[Any] = {"marker": "|", "markersize": 7, "markeredgewidth": 2.4}
_NOTE: Final = (
    "The best of half of the trials, drawn at random from a study, the mean over draws and studies, against the best "
    "of all: by how many per cent the steps to the target, or the loss, are higher, or the accuracy is lower. Dots are "
    "searches (an experiment on a workload), bars the median of several: those that MKOR and KFAC have, of which two "
    "with the same trials count once. A trial that did not finish, or did not reach the "
    "target, is no success; draws without one are left out, and so is a search of which less than half of the draws "
    "contain one"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a row for each optimizer: what half of the trials would cost, a dot for each search."""
    searches, several = searches_of(results)
    costs = _shared(searches, halved(searches))
    if not costs:
        raise NoDataError("no search has an optimizer that succeeds with half of its trials")
    labels = styles.in_order(costs)
    figure, ((axes,),) = page.new_figure(1, 1, height=0.5 + 0.19 * len(labels))
    axes.axvline(0, color=page.GUIDE, linewidth=0.8)
    for row, label in enumerate(labels):
        of_label = [costs[label][names] for names in _distinct(searches, costs[label], label)]
        forest.draw_runs(axes, of_label, row, label, below=0.2)
        if len(of_label) > 1:
            axes.plot(median(of_label), row - 0.12, color=styles.style_of(label).color, **_BAR)
        forest.write_beside(axes, row, str(len(of_label)), "searches")
    forest.name_rows(axes, [styles.style_of(label).name for label in labels])
    axes.set_xlabel("worse than with all trials (%)")
    text = page.caption(results, pd.DataFrame(), notes=[_NOTE, *notes_on(searches, several)])
    reading = "A search is an experiment on a workload; further right gains more from the second half of the trials."
    legend = [
        page.guide_entry("one search", linestyle="none", marker=".", markersize=4),
        page.guide_entry("median of several", linestyle="none", **_BAR),
    ]
    return page.save(figure, folder, "fig19_tuning_budget", legend, text, _message(costs), reading)


def searches_of(results: Results) -> tuple[dict[tuple[str, str], Search], set[tuple[str, str]]]:
    """Return the searches by experiment and workload, and those that cannot be shown, of workloads of several sizes.

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
    return searches, several


def halved(searches: Mapping[tuple[str, str], Search]) -> dict[str, dict[tuple[str, str], float]]:
    """Return by label, for each search, by how many per cent the best of half of the trials is worse than of all."""
    costs: dict[str, dict[tuple[str, str], float]] = {}
    for names, found in searches.items():
        half = max(found.trials) // 2
        for label, budget in found.budgets.items():
            place, last = half - budget.first, budget.mean[-1]
            if 0 <= place < len(budget.mean) and last > 0:
                worse = budget.mean[place] / last - 1 if found.is_falling else 1 - budget.mean[place] / last
                costs.setdefault(label, {})[names] = 100 * worse
    return costs


def _distinct(
    searches: Mapping[tuple[str, str], Search], names: Iterable[tuple[str, str]], *labels: str
) -> list[tuple[str, str]]:
    """Return some searches without those that have the same trials of labels as another one."""
    return [*{tuple(searches[one].budgets[label].runs for label in labels): one for one in names}.values()]


def _shared(
    searches: Mapping[tuple[str, str], Search], costs: Mapping[str, Mapping[tuple[str, str], float]]
) -> dict[str, dict[tuple[str, str], float]]:
    """Return the costs in the searches that `COMPARED` have, if there is one: medians of others do not compare."""
    both = [names for names in searches if all(names in costs.get(label, {}) for label in COMPARED)]
    shared = {*(_distinct(searches, both, *COMPARED) or searches)}
    kept = {label: {names: cost for names, cost in one.items() if names in shared} for label, one in costs.items()}
    return {label: one for label, one in kept.items() if one}


def _message(costs: Mapping[str, Mapping[tuple[str, str], float]]) -> str:
    """Return the title: the median cost of half of the trials for MKOR and KFAC, if both have searches."""
    if not all(label in costs for label in COMPARED):
        return ""
    parts = [f"{median(costs[label].values()):.1f} % ({styles.style_of(label).short})" for label in COMPARED]
    number = len(costs[COMPARED[0]])
    of = f"medians of {number} searches" if number > 1 else "in one search"
    return f"With half of the trials the best result is worse by {in_words(parts)}, {of}"


def notes_on(searches: Mapping[tuple[str, str], Search], several: Iterable[tuple[str, str]]) -> list[str]:
    """Return sentences on the numbers of trials and studies, on failures, and on searches that cannot be shown."""
    places: dict[str, list[str]] = {}
    failed = []
    for (experiment, workload), found in searches.items():
        place = f"{experiment} {styles.workload_name(workload)}"
        trials, studies = (" or ".join(map(str, numbers)) for numbers in (found.trials, found.studies))
        size = f"{trials} trials of each optimizer in {studies} {'study' if studies == '1' else 'studies'}"
        is_one = sum(name == experiment for name, _ in searches) == 1
        places.setdefault(size, []).append(experiment if is_one else place)
        if found.failed:
            failed.append(f"{', '.join(styles.style_of(label).name for label in found.failed)} in {place}")
    notes = ["; ".join(f"{size}: {', '.join(names)}" for size, names in places.items())]
    if failed:
        notes.append(f"without success in some study: {'; '.join(failed)}")
    if hidden := [f"{experiment} {styles.workload_name(workload)}" for experiment, workload in sorted(several)]:
        notes.append(f"Not shown, since they were tuned at several sizes: {', '.join(hidden)}")
    return notes
