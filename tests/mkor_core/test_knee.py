"""The history of the training loss and its knee. Truth: means and weighted sums by hand, and hand-made curves."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mkor_core.capture.losses import LossHistory
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


WEIGHT = torch.zeros(1, dtype=torch.float64)


def end_step(history: LossHistory, **losses: list[float]) -> Tensor:
    """Give a step's losses by source, and end it."""
    for source, values in losses.items():
        for value in values:
            history.put(source.replace("output_loss", "output.loss"), value)
    return history.take(WEIGHT)


def test_a_record_is_the_mean_of_its_steps_and_a_step_that_of_its_micro_batches():
    history = LossHistory(nn.Linear(1, 1), micro_batches=2)
    end_step(history, observe=[1.0, 5.0])
    history.record(end_step(history, observe=[4.0, 4.0]))
    for loss in (7.0, 8.0, 10.5):
        mean = end_step(history, observe=[loss, loss])
    history.record(mean)
    assert history.history == [(2, 3.5)]
    assert history.state_dict() == {"history": [(2, 3.5), (3, 8.5)], "sum": 0.0, "steps": 0}


def test_the_first_source_that_gave_a_loss_in_a_step_counts():
    """That of an earlier step does not."""
    history = LossHistory(nn.Linear(1, 1), 1)
    means = []
    for losses in ({"observe": [3.0], "output_loss": [2.0], "closure": [1.0]}, {"observe": [5.0]}, {}):
        mean = end_step(history, **losses)
        history.record(mean)
        means.append(float(mean))
    assert means[:2] == [1.0, 5.0]
    assert torch.tensor(means[2]).isnan()
    # A record without a loss is none.
    assert history.state_dict()["history"] == [(1, 1.0), (1, 5.0)]


def test_steps_that_a_scaler_skipped_leave_no_loss_behind():
    history = LossHistory(nn.Linear(1, 1), micro_batches=2)
    for loss in (9.0, 9.0):  # a step that is not taken
        history.put("observe", loss)
    assert end_step(history, observe=[1.0, 3.0]) == 2.0


def test_only_losses_of_training_are_read_off_the_models_output():
    class Model(nn.Linear):
        def forward(self, inputs: Tensor) -> Any:
            return SimpleNamespace(loss=super().forward(inputs).sum())

    model = Model(1, 1)
    history = LossHistory(model, 1)
    model.eval()(torch.ones(1, 1))
    assert history.take(WEIGHT).isnan()
    loss = model.train()(torch.ones(1, 1)).loss.detach()
    assert history.take(WEIGHT) == float(loss)
    history.remove()
    model(torch.ones(1, 1))
    assert not model._forward_hooks
    history.record(history.take(WEIGHT))
    assert history.state_dict()["history"] == [(1, float(loss))]


@pytest.mark.parametrize(("records", "steps"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_restored_history_knows_whether_it_has_a_loss(records, steps):
    history, restored = LossHistory(nn.Linear(1, 1), 1), LossHistory(nn.Linear(1, 1), 1)
    for _ in range(records):
        history.record(end_step(history, observe=[2.0]))
    for _ in range(steps):
        end_step(history, observe=[3.0])
    restored.load_state_dict(history.state_dict())
    assert restored.has_loss == history.has_loss == bool(records + steps)
    assert restored.state_dict() == history.state_dict()
