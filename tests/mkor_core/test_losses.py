"""The history of the training loss. Truth: means of the losses by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mkor_core.capture.losses import LossHistory

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
