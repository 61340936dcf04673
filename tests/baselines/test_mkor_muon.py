"""MKOR-Muon. Truth: dense inverses; Muon and MKOR, which it equals in limits; what the polar factor undoes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import build
from baselines.muon.mkor_muon import MKORMuon
from mkor_core import MKOR, Method, Preconditioner
from tests.support.matrices import random
from tests.support.reference import backward, joined


def gradients(method: Method, batches: list[Tensor], *, has_bias: bool = True) -> list[tuple[Tensor, Tensor]]:
    """Return D and V of a layer ``[2, d]`` in every step."""
    torch.manual_seed(0)
    layer = nn.Linear(batches[0].shape[1], 2, bias=has_bias).double()
    preconditioner = Preconditioner(layer, method)
    found = []
    for x in batches:
        backward(layer, x)
        grad = joined(layer)
        preconditioner.step()
        found.append((grad, joined(layer)))
    return found


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("bias", ["apart", "joint"])
def test_an_update_is_the_gradient_over_the_dense_mean_moment(has_bias, bias):
    """Truth: ``K <- gamma K + (1 - gamma) a a^T`` from K = I, without the stabilizer, inverted."""
    batches = [random(6, 4, seed=seed) + 1 for seed in range(4)]
    method = MKORMuon(factor_decay=0.8, inverse_update_period=1, stabilizer_threshold=math.inf, bias=bias)
    grad, update = gradients(method, batches, has_bias=has_bias)[-1]
    is_joint = has_bias and bias == "joint"
    n = 5 if is_joint else 4
    moment = torch.eye(n).double()
    for x in batches:
        mean = torch.cat([x, torch.ones(6, 1).double()], 1).mean(0)[:n]
        moment = 0.8 * moment + 0.2 * torch.outer(mean, mean)
    truth = grad[:, :n] @ torch.linalg.inv(moment)
    assert_close(update[:, :n], truth * grad[:, :n].norm() / truth.norm())
    assert_close(update[:, n:], grad[:, n:], rtol=0, atol=0)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("bias", ["apart", "joint"])
def test_what_a_method_says_of_its_update_is_what_a_step_applies(bias, window, has_bias):
    """Stacks of two layers, whose last input is 1 in a batch by chance. It has one side, so that V is one-sided."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(4, 2, bias=has_bias) for _ in range(2)).double()
    method = MKORMuon(inverse_update_period=1, bias=bias, window=window)
    preconditioner = Preconditioner(model, method)
    for step in range(4):
        model.zero_grad()
        for layer in model:
            x = random(6, 4, seed=step) + 1
            x[:, -1] = 1 if step == 2 else x[:, -1]
            (layer(x) - 1).square().mean().backward()
        before = [joined(layer) for layer in model]
        preconditioner.step()
        states = preconditioner.state_dict()["layers"].values()
        for grad, layer, state in zip(before, model, states, strict=True):
            assert_close(method.precondition(state, grad), joined(layer))
            assert_close(method.one_sided(state, grad)["right"], joined(layer))


@pytest.mark.parametrize("bias", ["apart", "joint"])
def test_a_window_of_all_updates_is_the_dense_factor(bias):
    batches = [random(6, 4, seed=seed) + 1 for seed in range(4)]
    dense, windowed = (
        gradients(MKORMuon(inverse_update_period=1, window=window, bias=bias), batches)[-1][1] for window in (None, 8)
    )
    assert_close(windowed, dense)


def test_with_a_joint_bias_it_is_mkor_without_its_left_factor():
    batches = [random(6, 4, seed=seed) + 1 for seed in range(4)]
    ours = gradients(MKORMuon(inverse_update_period=1, bias="joint"), batches)
    assert_close(ours, gradients(MKOR(inverse_update_period=1, sides="input"), batches), rtol=0, atol=0)


def trained(name: str, inputs: Tensor, **chosen: Any) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).double()
    optimizer, _ = build(name, model, {"lr": 0.01, "polar": "exact", "row_decay": None, **chosen})
    for _ in range(3):
        optimizer.zero_grad()
        (model(inputs) - random(*inputs.shape[:1], 4, seed=9)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_without_a_mean_input_it_is_muon():
    half = random(6, 4)
    inputs = torch.cat([half, -half])
    ours = trained("mkor_muon", inputs, base="normuon", inverse_update_period=1)
    assert_close(ours, trained("normuon", inputs))
    moved = trained("mkor_muon", inputs + 2, base="normuon", inverse_update_period=1)
    assert not torch.allclose(moved[0], trained("normuon", inputs + 2)[0], rtol=1e-3)
