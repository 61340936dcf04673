"""Schedules and targets: pure functions against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from workflow.bench.plan.targets import Reached, Target, monotone
from workflow.bench.training.build import lr_factor

CASES: list[tuple[dict[str, Any], list[float]]] = [
    ({"name": "constant", "warmup": 0.0}, [1, 1, 1, 1]),
    ({"name": "constant", "warmup": 0.5}, [0.5, 1, 1, 1]),
    ({"name": "linear", "warmup": 0.0}, [1, 0.75, 0.5, 0.25]),
    ({"name": "linear", "warmup": 0.5}, [0.5, 1, 1, 0.5]),
    ({"name": "polynomial", "warmup": 0.0, "power": 2.0}, [1, 0.5625, 0.25, 0.0625]),
    ({"name": "step", "warmup": 0.0, "milestones": [1, 3], "factor": 0.5}, [1, 0.5, 0.5, 0.25]),
]


@pytest.mark.parametrize(("schedule", "factors"), CASES)
def test_schedule_by_hand(schedule: dict[str, Any], factors: list[float]):
    assert [lr_factor(schedule, step, 4) for step in range(4)] == factors


@given(
    schedule=st.sampled_from([case[0] for case in CASES]),
    warmup=st.floats(0, 0.99),
    steps=st.integers(1, 200),
    share=st.floats(0, 1),
)
def test_factors_are_positive_and_at_most_one(schedule: dict[str, Any], warmup: float, steps: int, share: float):
    step = min(int(share * steps), steps - 1)
    assert 0 < lr_factor({**schedule, "warmup": warmup}, step, steps) <= 1
    # torch's LambdaLR asks once more, after the last step.
    assert 0 <= lr_factor({**schedule, "warmup": warmup}, steps, steps) <= 1


def evaluation(step: int, value: float, split: str = "validation", metric: str = "loss") -> dict[str, Any]:
    return {"step": step, "split": split, "metric": metric, "value": value, "train_seconds": step / 10}


def test_the_first_evaluation_that_reaches_the_target_counts():
    target = Target("validation", "loss", "below", 0.5)
    rows = [
        evaluation(0, 0.1, "train"),
        evaluation(0, 0.9),
        evaluation(10, 0.5),
        evaluation(20, 0.7),
        evaluation(30, 0.1),
    ]
    assert target.first_reached(rows) == Reached(10, 1.0)
    rising = Target("validation", "accuracy", "above", 0.5)
    accuracies = [evaluation(step, step / 40, metric="accuracy") for step in (0, 10, 20, 30)]
    assert rising.first_reached(accuracies) == Reached(20, 2.0)


def crossing(target: Target, values: Sequence[float], every: int = 10) -> float | None:
    rows = [evaluation(every * index, value, target.split, target.metric) for index, value in enumerate(values)]
    found = target.crossing(rows)
    assert found is None or found.train_seconds == pytest.approx(found.step / 10)
    return None if found is None else found.step


ACCURACY = Target("validation", "accuracy", "above", 0.65)


def test_a_crossing_lies_between_two_evaluations():
    """Truth: the straight line from 0.9 at step 10 to 0.4 at step 20 is at 0.5 after eight tenths of the way."""
    assert crossing(Target("validation", "loss", "below", 0.5), [2.0, 0.9, 0.4, 0.3]) == pytest.approx(18.0)
    assert crossing(ACCURACY, [0.1, 0.6, 0.7]) == pytest.approx(15.0)
    assert crossing(ACCURACY, [0.7, 0.8]) == 0.0  # met before the first step


def test_a_noisy_first_hit_is_no_crossing():
    """Accuracies of bert_imdb: SGD hits 0.65 once, at step 60, and ends at 0.602; MKOR stays above it."""
    sgd = [0.504, 0.561, 0.500, 0.574, 0.500, 0.500, 0.664, 0.637, 0.645, 0.643, 0.602]
    mkor = [0.500, 0.623, 0.596, 0.500, 0.645, 0.686, 0.660, 0.684, 0.674, 0.670, 0.682]
    assert crossing(ACCURACY, sgd) is None
    assert 40 < (crossing(ACCURACY, mkor) or 0) < 50


def test_evaluations_after_a_breakdown_cross_nothing():
    assert crossing(ACCURACY, [0.1, 0.6, math.nan, 0.9]) is None
    assert crossing(ACCURACY, [0.1, 0.6, 0.7, math.nan]) == pytest.approx(15.0)
    assert crossing(ACCURACY, []) is None


@given(st.lists(st.floats(-1e3, 1e3), max_size=30), st.booleans())
def test_the_monotone_curve_is_that_of_isotonic_regression(values, rising):
    """Truth: SciPy's."""
    truth = isotonic_regression(values, increasing=rising).x if values else []
    assert monotone(values, rising=rising) == pytest.approx(list(truth), abs=1e-9)


def test_a_target_never_reached_is_censored():
    target = Target("validation", "loss", "below", 0.5)
    assert target.first_reached([]) is None
    assert target.first_reached([evaluation(0, 0.6), evaluation(10, math.nan), evaluation(20, 0.4, "train")]) is None


def test_a_target_is_written_as_it_was_given_and_accepts_rows_of_a_csv_as_text():
    given = {"split": "validation", "metric": "accuracy", "above": 0.9}
    target = Target.parse(given)
    assert target is not None
    assert target.as_dict() == given
    rows = [{key: str(value) for key, value in evaluation(10, 0.95, metric="accuracy").items()}]
    assert target.first_reached(rows) == Reached(10, 1.0)
