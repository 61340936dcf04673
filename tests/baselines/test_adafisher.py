"""Truth: factors by hand from explicit rows, momentum SGD where the factors are 0."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import build
from baselines.first_order.adafisher import AdaFisher
from tests.support import reference
from tests.support.matrices import random


def made(model: nn.Module, **options: Any) -> AdaFisher:
    optimizer, _ = build("adafisher", model, {"lr": 0.01, "factor_update_period": 1, **options})
    assert isinstance(optimizer, AdaFisher)
    return optimizer


def scaled(values: Tensor) -> Tensor:
    return (values - values.min()) / (values.max() - values.min() + 1e-6)


def stepped(model: nn.Sequential, optimizer: AdaFisher, inputs: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Take a step; return a layer's input and the gradient of its output."""
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _module, given, output: seen.extend([given[0], output]))
    optimizer.zero_grad()
    output = model(inputs)
    seen[1].retain_grad()
    output.square().mean().backward()
    handle.remove()
    grad = seen[1].grad
    assert grad is not None
    optimizer.step()
    return seen[0].detach(), grad


RELEASED, CONVEX = (0.08, 0.008), (0.8, 0.2)


@pytest.mark.parametrize(("averaging", "weights"), [("released", RELEASED), ("convex", CONVEX)])
@pytest.mark.parametrize("normalize", ["before", "after"])
@pytest.mark.parametrize("kind", ["tokens", "convolution"])
def test_steps_are_those_of_the_factors_by_hand(kind, averaging, weights, normalize):
    """Two refreshes and three steps; rows are tokens or patches, the bias's 1 included."""
    torch.manual_seed(0)
    layer = (nn.Linear(4, 3) if kind == "tokens" else nn.Conv2d(2, 3, 2)).double()
    model = nn.Sequential(layer)
    optimizer = made(model, averaging=averaging, normalize=normalize, damping=0.01, momentum=0.5)
    h, s = torch.ones(5 if kind == "tokens" else 9).double(), torch.ones(3).double()
    mean = torch.zeros(3, len(h)).double()
    for step in range(1, 4):
        inputs = random(2, 3, 4, seed=step) if kind == "tokens" else random(2, 2, 3, 3, seed=step)
        before = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1).detach()
        given, grad = stepped(model, optimizer, inputs, layer)
        x, g = reference.rows_of(layer, given, grad)
        new = [x.square().mean(0), g.square().mean(0)]
        new = [scaled(v) for v in new] if normalize == "before" else new
        h, s = (weights[0] * old + weights[1] * v for old, v in zip((h, s), new, strict=True))
        used = (h, s) if normalize == "before" else (scaled(h), scaled(s))
        mean = 0.5 * mean + 0.5 * g.T @ x
        truth = before - 0.01 * mean / (1 - 0.5**step) / (torch.outer(used[1], used[0]) + 0.01)
        after = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1).detach()
        assert_close(after, truth, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["BatchNorm2d", "LayerNorm"])
def test_norms_have_factors_of_two_columns(kind):
    """h = [sum_c (sum x / loc^2)^2, number of c] / n^2, c of dimension 1; s = (sum g)^2 / n."""
    norm = (nn.BatchNorm2d(3) if kind == "BatchNorm2d" else nn.LayerNorm(5)).double()
    model = nn.Sequential(norm, nn.ReLU(inplace=True), nn.Linear(5, 2).double())
    inputs = random(2, 3, 4, 5) if kind == "BatchNorm2d" else random(2, 4, 5)
    optimizer = made(model, damping=0.01, momentum=0.0)
    before = norm.weight.detach().clone()
    model(inputs).square().mean().backward()
    weight_grad = norm.weight.grad
    assert weight_grad is not None
    bias_grad = norm.bias.grad
    locations = inputs.shape[2:].numel()
    sums = [inputs[:, c].sum() / locations**2 for c in range(inputs.shape[1])]
    h = torch.stack([sum(v**2 for v in sums), torch.tensor(float(len(sums))).double()]) / 4
    s = bias_grad.square() / 2  # the bias's gradient is the sum of the output's
    optimizer.step()
    h, s = (0.08 + 0.008 * scaled(v) for v in (h, s))
    assert_close(norm.weight.detach(), before - 0.01 * weight_grad / (s * h[0] + 0.01), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_factors_of_zero_leave_momentum_sgd(decoupled):
    """Truth: bias-corrected momentum with rate lr / damping; AdaFisherW's decay has the rate lr."""
    layer = nn.Linear(3, 2, bias=False).double()
    optimizer = made(layer, damping=0.1, weight_decay=0.3, decoupled_decay=decoupled, factor_update_period=100)
    for factor in optimizer._factors.averages[""]:
        optimizer._factors.averages[""][factor].zero_()
    optimizer._steps = 1  # no refresh at the first step
    weight, mean = layer.weight.detach().clone(), torch.zeros(2, 3).double()
    for step in (2, 3):
        layer.weight.grad = random(2, 3, seed=step)
        optimizer.step()
        grad = random(2, 3, seed=step)
        mean = 0.9 * mean + 0.1 * (grad if decoupled else grad + 0.3 * weight)
        weight = weight - 0.01 * (mean / (1 - 0.9**step) / 0.1 + (0.3 * weight if decoupled else 0))
        assert_close(layer.weight.detach(), weight)


def test_after_three_released_refreshes_the_fisher_matrix_is_nearly_the_damping():
    """Within 7.6 %, (0.008 / 0.92)^2 / damping; the convex average keeps its information."""
    for averaging, bound in (("released", 1.08), ("convex", 2.0)):
        torch.manual_seed(0)
        layer = nn.Linear(6, 4).double()
        optimizer = made(layer, averaging=averaging, lr=1e-6)
        assert optimizer.fisher_ranges()[""] == pytest.approx(1.0)
        for step in range(4):
            stepped(nn.Sequential(layer), optimizer, random(8, 6, seed=step), layer)
        assert (optimizer.fisher_ranges()[""] < bound) == (averaging == "released")
        s, h = optimizer._factors.used("")
        fisher = torch.outer(s, h) + 1e-3
        assert optimizer.fisher_ranges()[""] == pytest.approx(float(fisher.max() / fisher.min()))


def test_parameters_outside_layers_pass_no_factor_on_to_others():
    """A PReLU in front has F = 1, and the last layer its own factors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.PReLU(), nn.Linear(4, 3)).double()
    alone = nn.Sequential(nn.PReLU(), nn.Linear(4, 3)).double()
    alone.load_state_dict(model.state_dict())
    alone[0].requires_grad_(False)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for one in (model, alone):
        optimizer = made(one, momentum=0.0)
        one(random(5, 4)).square().mean().backward()
        optimizer.step()
    assert_close([*model[1].parameters()], [*alone[1].parameters()], rtol=0, atol=0)
    slope = model[0].weight.grad
    assert slope is not None
    assert_close(model[0].weight.detach(), before[0] - 0.01 * slope)
    assert not torch.equal(model[1].weight, before[1])


def test_a_layer_that_is_not_used_keeps_its_factors():
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]).double()
    optimizer = made(model)
    model[0](random(4, 3)).square().mean().backward()
    optimizer.step()
    ones = [bool((factors["left"] == 1).all()) for factors in optimizer._factors.averages.values()]
    assert ones == [False, True]


def test_factors_are_refreshed_once_a_period_and_keep_their_precision_in_a_checkpoint():
    model = nn.Sequential(nn.Linear(3, 2)).bfloat16()
    optimizer = made(model, factor_update_period=2)
    seen = []
    for step in range(3):
        stepped(model, optimizer, random(4, 3, seed=step).bfloat16(), model[0])
        seen.append(optimizer._factors.averages["0"]["right"].clone())
    assert [torch.equal(a, b) for a, b in pairwise(seen)] == [True, False]
    other = made(nn.Sequential(nn.Linear(3, 2)).bfloat16(), factor_update_period=2)
    other.load_state_dict(optimizer.state_dict())
    assert other._factors.averages["0"]["right"].dtype == torch.float32
    assert_close(other._factors.averages, optimizer._factors.averages, rtol=0, atol=0)
    assert (other._steps, other._hooks.enabled) == (3, False)
