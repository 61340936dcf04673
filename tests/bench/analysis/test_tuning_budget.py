"""The best of n trials: truth by all subsets, or by hand."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import median_low
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.analysis.tuning_budget import median_best, search

VALUES = st.lists(st.floats(0, 10) | st.just(math.inf), min_size=1, max_size=8)


@given(VALUES)
def test_the_median_best_is_that_of_all_subsets(values: list[float]):
    truth = [median_low([min(subset) for subset in combinations(values, drawn)]) for drawn in range(1, len(values) + 1)]
    assert median_best(values) == truth


@given(VALUES)
def test_more_trials_are_never_worse_and_all_of_them_find_the_best(values: list[float]):
    medians = median_best(values)
    assert medians == sorted(medians, reverse=True)
    assert medians[-1] == min(values)


def trials(scores: dict[tuple[str, int], list[float | None]], *, steps: bool = False, rising: bool = False) -> Any:
    """Return a table of trials; a trial without a score diverged, and with steps each score is ten times as many."""
    rows = []
    for (label, study), values in scores.items():
        finished = [value for value in values if value is not None]
        best = (max if rising else min)(finished, default=None)
        for value in values:
            row = {"optimizer": label, "study": study, "split": "validation", "metric": "loss", "score": value}
            reached = 10 * value if steps and value is not None and value < 5 else None
            rows.append(row | {"steps_to_target": reached, "chosen": value is not None and value == best})
    return pd.DataFrame(rows).astype({"score": float, "steps_to_target": float})


def test_studies_are_averaged_and_span_a_range():
    """Truth by hand: medians of the best of 1, 2 and 3 of (1, 3, 4) are 3, 1, 1, and of (2, 5, 5) 5, 2, 2."""
    found = search(trials({("sgd", 0): [3, 1, 4], ("sgd", 1): [5, 2, 5]}))
    assert (found.by_steps, found.trials, found.studies, found.failed) == (False, (3,), (2,), ())
    budget = found.budgets["sgd"]
    assert (budget.first, budget.mean, budget.lowest, budget.highest) == (1, [4, 1.5, 1.5], [3, 1, 1], [5, 2, 2])


def test_trials_that_fail_are_the_worst_and_leave_the_beginning_out():
    """Truth by hand: of (2, -, -, -) half of the pairs contain the 2; the second study needs one trial."""
    none = [None] * 3
    found = search(trials({("sgd", 0): [2, *none], ("sgd", 1): [1, 1, 1, 1], ("mkor", 0): [None, *none]}))
    budget = found.budgets["sgd"]
    assert (budget.first, budget.mean) == (2, [1.5, 1.5, 1.5])
    assert found.failed == ("mkor",)
    assert found.studies == (1, 2)


def test_steps_to_the_target_count_where_trials_have_them():
    found = search(trials({("sgd", 0): [3, 6, 4]}, steps=True))
    assert found.by_steps
    assert found.budgets["sgd"].mean == [40, 30, 30]


@pytest.mark.parametrize("rising", [False, True])
def test_the_best_is_the_highest_where_the_highest_was_chosen(rising: bool):
    found = search(trials({("sgd", 0): [1, 2, 3], ("mkor", 0): [5, 5, 5]}, rising=rising))
    assert found.budgets["sgd"].mean == ([2, 3, 3] if rising else [2, 1, 1])
    assert found.budgets["mkor"].mean == [5, 5, 5]
