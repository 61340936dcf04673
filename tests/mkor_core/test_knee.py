"""Truth: weighted sums of the improvements, and hand-made curves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from mkor_core.maths.knee import KneePointScheduler, is_knee


def schedule(values: list[float | None], **options: Any) -> tuple[list[float], KneePointScheduler]:
    """Return the rates after each step of a scheduler that starts at 1, and the scheduler."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = KneePointScheduler(optimizer, **options)
    rates = []
    for value in values:
        optimizer.step()
        scheduler.step(value)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates, scheduler


@pytest.mark.parametrize("steps", [(1, 1, 1, 1), (2, 5, 1, 10)])
def test_the_knee_compares_the_recent_improvement_per_step_with_the_mean_one(steps):
    """r is the mean of the improvements per step with weights 0.9^k, k points ago."""
    values = [9.0, 7.0, 4.0, 3.5, 3.0]
    curve = [(100, values[0]), *zip(steps, values[1:], strict=True)]
    rates = [(old - new) / number for (old, new), number in zip(itertools.pairwise(values), steps, strict=True)]
    weights = [0.9**3, 0.9**2, 0.9, 1.0]
    recent = sum(weight * rate for weight, rate in zip(weights, rates, strict=True)) / sum(weights)
    beta = recent / ((values[0] - values[-1]) / sum(steps))
    assert is_knee(curve, beta * (1 + 1e-9))
    assert not is_knee(curve, beta * (1 - 1e-9))
    rising = [(number, -value) for number, value in curve]
    assert is_knee(rising, beta * (1 + 1e-9), rising=True)
    assert not is_knee(rising, beta * (1 - 1e-9), rising=True)


def test_a_knee_needs_three_points_and_an_improvement():
    slowing = [(1, 10.0), (1, 0.0), (1, 0.0)]
    assert is_knee(slowing, 1.0)
    assert not is_knee(slowing[:2], 2.0)
    assert not is_knee([(1, 5.0)] * 9, 1.0)


def test_the_knee_scheduler_lowers_the_rate_once_per_knee():
    rates, scheduler = schedule([5.0, 4.0, 3.0, 2.0, 1.0, *([1.0] * 60)], factor=0.1, beta=0.1, patience=3)
    assert rates[4] == 1.0
    drops = sum(later < earlier for earlier, later in itertools.pairwise(rates))
    assert drops == len({*rates}) - 1 >= 1
    restored = KneePointScheduler(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))
    restored.load_state_dict(scheduler.state_dict())
    assert restored.curve == scheduler.curve


def test_a_new_curve_starts_at_the_value_at_which_the_rate_was_lowered():
    """Each curve is past its knee at its third point, and is judged after four values."""
    values = [10.0, 0.0, 0.0, 0.0, 0.0, -10.0, -10.0, -10.0, -10.0]
    rates, scheduler = schedule(values, factor=0.5, beta=1.0, patience=4)
    assert rates == [1.0] * 4 + [0.5] * 4 + [0.25]
    assert scheduler.curve == [(1, -10.0)]


def test_a_step_without_a_value_leaves_the_rate_as_it_is():
    rates, scheduler = schedule([10.0, 0.0, 0.0, None, None], factor=0.5, beta=1.0, patience=2)
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.5]
    assert scheduler.curve == [(1, 0.0)]


@pytest.mark.parametrize(("name", "value"), [("factor", 1.0), ("beta", -0.1), ("patience", 0)])
def test_a_bad_option_of_the_scheduler_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name}={value} must be "):
        schedule([], **{name: value})


def test_by_default_a_rate_is_halved_where_a_loss_improves_at_a_tenth_of_its_mean_rate():
    """After one improvement and n - 1 none, r = 0.1 * 0.9^(n - 1) / (1 - 0.9^n) and m = 1 / n of it."""
    steps = next(n for n in itertools.count(1) if 0.9 ** (n - 1) / (1 - 0.9**n) < 1 / n)
    rates, scheduler = schedule([10.0] + [0.0] * (steps + 3))
    assert rates == [1.0] * steps + [0.5] * 4
    assert scheduler.patience == 5
