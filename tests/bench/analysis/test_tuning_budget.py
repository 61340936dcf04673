"""The best of n trials: truth by all subsets, or by hand."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from statistics import fmean
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.analysis.tuning_budget import expected_best, search

VALUES = st.lists(st.floats(0, 10) | st.just(math.inf), min_size=1, max_size=8)


@given(VALUES)
def test_the_expected_best_is_that_of_all_subsets_with_a_success(values: list[float]):
    for drawn, expected in enumerate(expected_best(values), start=1):
        bests = [min(subset) for subset in combinations(values, drawn)]
        successes = [best for best in bests if math.isfinite(best)]
        enough = successes and 2 * len(successes) >= len(bests)
        assert expected == pytest.approx(fmean(successes) if enough else math.inf)


@given(VALUES)
def test_more_trials_are_never_worse_and_all_of_them_find_the_best(values: list[float]):
    means = expected_best(values)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(means))
    assert means[-1] == min(values)


def trials(scores: dict[tuple[str, int], list[float | None]], *, steps: bool = False, rising: bool = False) -> Any:
    """Return a table of trials; a trial without a score diverged, and with steps each score is ten times as many."""
    rows: list[dict[str, Any]] = []
    for (label, study), values in scores.items():
        finished = [value for value in values if value is not None]
        best = (max if rising else min)(finished, default=None)
        for value in values:
            row = {"optimizer": label, "study": study, "split": "validation", "metric": "loss", "score": value}
            reached = 10 * value if steps and value is not None and value < 5 else None
            row |= {"run": f"{label}-{study}-{len(rows)}", "steps_to_target": reached}
            rows.append(row | {"chosen": value is not None and value == best})
    return pd.DataFrame(rows).astype({"score": float, "steps_to_target": float})


def test_studies_are_averaged_and_span_a_range():
    """Truth by hand: means of the best of 1, 2 and 3 of (1, 3, 5) are 3, 5/3, 1, and of (2, 5, 5) 4, 3, 2."""
    found = search(trials({("sgd", 0): [3, 1, 5], ("sgd", 1): [5, 2, 5]}))
    assert (found.by_steps, found.trials, found.studies, found.failed) == (False, (3,), (2,), ())
    budget = found.budgets["sgd"]
    assert budget.first == 1
    assert budget.mean == pytest.approx([3.5, 7 / 3, 1.5])
    assert (budget.lowest, budget.highest) == (pytest.approx([3, 5 / 3, 1]), pytest.approx([4, 3, 2]))


def test_trials_that_fail_leave_the_beginning_out():
    """Truth by hand: of (2, -, -, -) half of the pairs contain the 2; the second study needs one trial."""
    none = [None] * 3
    found = search(trials({("sgd", 0): [2, *none], ("sgd", 1): [1, 1, 1, 1], ("mkor", 0): [None, *none]}))
    budget = found.budgets["sgd"]
    assert (budget.first, budget.mean) == (2, [1.5, 1.5, 1.5])
    assert found.failed == ("mkor",)
    assert found.studies == (1, 2)


def test_steps_to_the_target_count_where_trials_have_them():
    found = search(trials({("sgd", 0): [3, 6, 4]}, steps=True))  # the 6 does not reach the target
    assert found.by_steps
    assert found.budgets["sgd"].mean == [35, 100 / 3, 30]


@pytest.mark.parametrize("rising", [False, True])
def test_the_best_is_the_highest_where_the_highest_was_chosen(rising: bool):
    found = search(trials({("sgd", 0): [1, 2, 3], ("mkor", 0): [5, 5, 5]}, rising=rising))
    assert found.budgets["sgd"].mean == pytest.approx([2, 8 / 3, 3] if rising else [2, 4 / 3, 1])
    assert found.budgets["mkor"].mean == [5, 5, 5]
