"""What tuning finds with fewer trials than it had."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workflow.bench.results.tables import is_true


def expected_best(values: Sequence[float]) -> list[float]:
    """Return the mean of the least of n values, for n from 1 to their number.

    The n values are drawn from ``values`` at random and without replacement. A trial that failed is an infinity; the
    mean is over the draws that contain a success, and infinite unless half of all draws do.
    """
    ranked, number = sorted(value for value in values if math.isfinite(value)), len(values)
    means = []
    for drawn in range(1, number + 1):
        draws = math.comb(number, drawn)
        with_success = draws - math.comb(number - len(ranked), drawn)
        # A mean over the few lucky draws would make a search look better the more often it fails.
        if not with_success or 2 * with_success < draws:
            means.append(math.inf)
            continue
        # The k-th least value (from 0) is the least of C(number - k - 1, drawn - 1) draws.
        total = math.fsum(value * math.comb(number - k - 1, drawn - 1) for k, value in enumerate(ranked))
        means.append(total / with_success)
    return means


@dataclass(frozen=True)
class Budget:
    """What the studies of one optimizer reach after each number of trials, from `first` on."""

    first: int
    """The least number of trials with which every study reaches a value in at least half of the draws."""
    mean: list[float]
    """The mean over studies of `expected_best`."""
    lowest: list[float]
    """Its least value over studies."""
    highest: list[float]
    runs: frozenset[str]
    """The ids of the trials' runs, by their whole specification: equal ones are the same search of two experiments."""


@dataclass(frozen=True)
class Search:
    """The trials of a workload's optimizers."""

    by_steps: bool
    """Whether the trials were ranked by their steps to the target."""
    metric: str
    """The split and the metric of their scores."""
    trials: tuple[int, ...]
    """The numbers of trials in a study; there is one, unless the table is incomplete."""
    studies: tuple[int, ...]
    """The numbers of studies of an optimizer."""
    is_falling: bool
    """Whether a lower value is better."""
    budgets: Mapping[str, Budget]
    """By label; without those of which some study never succeeded."""
    failed: tuple[str, ...]
    """The labels that are missing from `budgets`."""


def has_several(trials: pd.DataFrame) -> bool:
    """Return whether the trials of one experiment's workload are of several searches, such as at several sizes."""
    # A search chooses one trial of each study.
    chosen = trials[is_true(trials["chosen"])]
    return bool(chosen.duplicated(["optimizer", "study"]).any())


def search(trials: pd.DataFrame) -> Search:
    """Return the search that the trials of one experiment's workload are part of."""
    # A trial that reached the target is ranked by its steps; a workload without a target by its score.
    by_steps = bool(trials["steps_to_target"].notna().any())
    column = "steps_to_target" if by_steps else "score"
    sign = -1.0 if not by_steps and _is_rising(trials) else 1.0
    values = (sign * trials[column].astype(float)).fillna(math.inf)
    budgets: dict[str, Budget] = {}
    failed = []
    for label, rows in trials.assign(value=values).groupby("optimizer", sort=False):
        runs = frozenset(rows["run"].astype(str))
        budget = _budget([expected_best(study["value"].tolist()) for _, study in rows.groupby("study")], sign, runs)
        if budget is None:
            failed.append(str(label))
        else:
            budgets[str(label)] = budget
    sizes = trials.groupby(["optimizer", "study"]).size()
    first = trials.iloc[0]
    return Search(
        by_steps,
        f"{first['split']} {first['metric']}",
        tuple(sorted(set(sizes))),
        tuple(sorted(set(sizes.groupby("optimizer").size()))),
        sign > 0,
        budgets,
        tuple(failed),
    )


def _budget(studies: Sequence[Sequence[float]], sign: float, runs: frozenset[str]) -> Budget | None:
    """Return the budget of an optimizer's studies; None if one of them never succeeds."""
    rows = list(zip(*studies, strict=False))
    # Before this number the mean would be over fewer studies, and so not comparable with what follows.
    first = next((number for number, row in enumerate(rows, start=1) if all(map(math.isfinite, row))), None)
    if first is None:
        return None
    reached = [[sign * value for value in row] for row in rows[first - 1 :]]
    means = [sum(row) / len(row) for row in reached]
    return Budget(first, means, [min(row) for row in reached], [max(row) for row in reached], runs)


def _is_rising(trials: pd.DataFrame) -> bool:
    """Return whether the highest score was chosen wherever scores differ."""
    # The table does not say which way a metric is better: what was chosen does.
    finished = trials.dropna(subset="score")
    groups = [rows for _, rows in finished.groupby(["optimizer", "study"]) if rows["score"].nunique() > 1]
    chosen = [rows.loc[rows["chosen"].astype(bool), "score"] for rows in groups]
    return bool(groups) and all(
        not best.empty and best.iloc[0] == rows["score"].max() for best, rows in zip(chosen, groups, strict=True)
    )
