"""NadamW and schedule-free AdamW. Truth: their equations, written out; AdamW without momentum."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import build
from tests.support.matrices import random


def gradients(number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(number)]


def trained(name: str, **chosen: float) -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False).double()
    optimizer, _ = build(name, layer, {"lr": 0.1, "weight_decay": 0.2, **chosen})
    for grad in gradients(4):
        layer.weight.grad = grad.clone()
        optimizer.step()
    return layer.weight.detach()


def test_its_steps_are_those_of_the_equations():
    torch.manual_seed(0)
    weight = nn.Linear(4, 3, bias=False).double().weight.detach()
    lr, beta1, beta2, eps, decay = 0.1, 0.8, 0.95, 1e-3, 0.2
    m = v = torch.zeros_like(weight)
    for t, grad in enumerate(gradients(4), 1):
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        u = beta1 * m + (1 - beta1) * grad
        weight = weight * (1 - lr * decay)
        weight = weight - lr * (u / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
    assert_close(trained("nadamw", beta1=beta1, beta2=beta2, eps=eps), weight)


def test_without_momentum_it_is_adamw():
    assert_close(trained("nadamw", beta1=0.0), trained("adamw", beta1=0.0))
    assert not torch.allclose(trained("nadamw"), trained("adamw"))


def made(dtype: torch.dtype = torch.float64, **chosen: Any) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3)).to(dtype)
    return model, build("schedule_free_adamw", model, {"lr": 0.1, **chosen})[0]


def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        (model(random(5, 4, seed=step).to(model[0].weight.dtype)) - 1).square().mean().backward()
        optimizer.step()


def evaluated(model: nn.Sequential) -> Tensor:
    """Return the outputs in evaluation mode for units of the input: the weights that are used there."""
    model.eval()
    with torch.no_grad():
        output = model(torch.eye(4, dtype=model[0].weight.dtype)) - model[0].bias
    model.train()
    return output.T


@pytest.mark.parametrize("power", [0.0, 0.75])
def test_its_steps_are_those_of_the_three_sequences(power):
    model, optimizer = made(beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.05, power=power)
    weight = model[0].weight
    x = y = z = weight.detach().clone()
    v, total, largest = torch.zeros_like(x), 0.0, 0.0
    for t, lr in enumerate((0.0, 0.05, 0.1, 0.1), 1):  # a warm-up from 0
        optimizer.param_groups[0]["lr"] = lr
        grad = random(3, 4, seed=t)
        weight.grad = grad.clone()
        optimizer.step()
        v = 0.9 * v + 0.1 * grad**2
        g = grad / ((v / (1 - 0.9**t)).sqrt() + 1e-3) + 0.05 * y
        z = z - lr * g
        largest = max(largest, lr)
        total += t**power * largest**2
        c = t**power * largest**2 / total if total else 0.0
        x = (1 - c) * x + c * z
        y = 0.2 * z + 0.8 * x
        assert_close(weight.detach(), y)
    assert_close(evaluated(model), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_evaluation_uses_the_average_and_leaves_the_training_alone(dtype):
    results = []
    for evaluates in (True, False):
        model, optimizer = made(dtype)
        for step in range(4):
            train(model, optimizer, range(step, step + 1))
            if evaluates:
                y = model[0].weight.detach().clone()
                assert not torch.equal(evaluated(model), y)
                model(random(1, 4).to(dtype))
                assert_close(model[0].weight.detach(), y, rtol=0, atol=0)
                evaluated(model)
        model(random(1, 4).to(dtype))
        results.append([parameter.detach() for parameter in model.parameters()])
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_a_checkpoint_of_an_evaluated_model_goes_on_as_if_it_had_not_been():
    whole, optimizer = made()
    train(whole, optimizer, range(6))
    halted, before = made()
    train(halted, before, range(3))
    average = evaluated(halted)
    file = io.BytesIO()
    torch.save([halted.state_dict(), before.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    assert_close(weights["0.weight"], average)
    resumed, after = made()
    resumed.load_state_dict(weights)
    after.load_state_dict(state)
    train(resumed, after, range(3, 6))
    assert_close([*resumed.parameters()], [*whole.parameters()], rtol=0, atol=0)


def test_an_evaluation_between_gradient_and_step_changes_nothing():
    models = []
    for evaluates in (True, False):
        model, optimizer = made()
        train(model, optimizer, range(3))
        model(random(5, 4)).square().mean().backward()
        if evaluates:
            evaluated(model)
        optimizer.step()
        models.append([parameter.detach() for parameter in model.parameters()])
    assert_close(models[0], models[1], rtol=0, atol=0)


def test_copies_and_passes_with_gradients_keep_their_weights():
    model, optimizer = made()
    train(model, optimizer, range(3))
    y = model[0].weight.detach().clone()
    evaluated(copy.deepcopy(model))
    model.eval()
    model(random(1, 4))  # fine-tuning in evaluation mode
    assert_close(model[0].weight.detach(), y, rtol=0, atol=0)
