"""Truth: the dense minimizer of the regularized model over all past points, KFAC, and the released product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, build
from baselines.natural._wake import WakeRegularized, common_basis
from mkor_core.capture.statistics import Captured, LayerShape, Rows
from mkor_core.method import LayerState
from tests.support import reference
from tests.support.matrices import random, spd

SHAPE = LayerShape(2, 3)
RATES = (0.1, 0.3, 0.05, 0.2)


def rule(rate: list[float], **changes: Any) -> tuple[WakeRegularized, LayerState]:
    """Return a rule without clips whose learning rate is the last of a list, and its state."""
    plain = {"subproblem": "SO", "damping": 1e-20, "factor_decay": 0.8, "kl_clip": None, "rms_clip": None}
    periods = {"factor_update_period": 1, "inverse_update_period": 1}
    method = WakeRegularized(lr=lambda: rate[-1], **{**plain, **periods, **changes})
    return method, method.initial_state(SHAPE, torch.float64, torch.device("cpu"))


def updated(method: WakeRegularized, state: LayerState, c: Tensor, a: Tensor, grad: Tensor) -> Tensor:
    """Return the update of a step whose moments are C and A, of scaled rows; there are 4."""
    method.accumulate(state, Captured(4 * a, c / 4, torch.tensor(4.0)), 0)
    method.refresh(state, 0)
    return method.precondition(state, grad)


@pytest.mark.parametrize("subproblem", ["SO", "Q"])
def test_steps_minimize_the_model_with_the_wake(subproblem):
    """A is the same in each step, so that the product of the averages is the average of the products.

    Minimized: ``g s + s B s / 2 + (1 / 2 lr) sum_i w_i |theta_k + s - theta_i|^2_{F_i}``.
    """
    rate: list[float] = []
    method, state = rule(rate, subproblem=subproblem)
    rho, a = method.factor_decay, spd(3, 9)
    theta, thetas, fishers = torch.zeros(6).double(), [], []
    for step, lr in enumerate(RATES):
        rate.append(lr)
        grad, c = random(*SHAPE, seed=step), spd(2, step)
        thetas.append(theta)
        fishers.append(torch.kron(c, a))
        weights = [rho ** (step - i) * (1 if i == 0 else 1 - rho) for i in range(step + 1)]
        metric = sum(w * f for w, f in zip(weights, fishers, strict=True)) / lr
        pull = sum(w * f @ (theta - old) for w, f, old in zip(weights, fishers, thetas, strict=True)) / lr
        curvature = metric + (fishers[-1] if subproblem == "Q" else 0)
        truth = torch.linalg.solve(curvature, -grad.flatten() - pull)
        moved = -lr * updated(method, state, c, a, grad).flatten()
        assert_close(moved, truth, rtol=1e-8, atol=1e-9)
        theta = theta + moved


def test_without_memory_it_is_kfac_without_memory():
    method, state = rule([0.1], factor_decay=0.0, damping=0.03)
    kfac = KAISA(factor_decay=0.0, damping=0.03)
    other = kfac.initial_state(SHAPE, torch.float64, torch.device("cpu"))
    for step in range(3):
        c, a, grad = spd(2, step), spd(3, step + 5), random(*SHAPE, seed=step)
        kfac.accumulate(other, Captured(a, c, torch.tensor(1.0)), 0)
        kfac.refresh(other, 0)
        assert_close(updated(method, state, c, a, grad), kfac.precondition(other, grad), rtol=1e-12, atol=1e-12)


def test_a_constant_gradient_is_cut_to_what_the_wake_forgets():
    method, state = rule([0.1])
    c, a, grad = spd(2, 0), spd(3, 1), random(*SHAPE)
    first = updated(method, state, c, a, grad)
    assert_close(first, torch.linalg.solve(c, grad) @ a.inverse())
    assert_close(updated(method, state, c, a, grad), 0.2 * first)


def test_the_released_product_is_not_the_sum():
    """Truth: both dense, at the second step, with the memory that the first one left."""
    values = {}
    for subproblem in ("Q", "Q_released"):
        method, state = rule([0.7], subproblem=subproblem)
        updated(method, state, spd(2, 0), spd(3, 1), random(*SHAPE))
        grad, c, a = random(*SHAPE, seed=3), spd(2, 2), spd(3, 3)
        target = grad + 0.8 * state["memory"]
        mean_c, mean_a = 0.8 * spd(2, 0) + 0.2 * c, 0.8 * spd(3, 1) + 0.2 * a
        matrix = torch.kron(mean_c, mean_a) + 0.7 * torch.kron(c, a)
        if subproblem == "Q_released":
            matrix = torch.kron(mean_c + 0.7 * c, mean_a + 0.7 * a)
        values[subproblem] = updated(method, state, c, a, grad)
        assert_close(values[subproblem].flatten(), torch.linalg.solve(matrix, target.flatten()), rtol=1e-8, atol=1e-9)
    assert (values["Q"] - values["Q_released"]).norm() > 0.1 * values["Q"].norm()


def test_a_common_basis_makes_both_matrices_diagonal():
    metric, matrix = spd(5, 0), random(5, 2) @ random(5, 2).T
    matrix = matrix @ matrix.T
    values, basis = common_basis(metric, matrix)
    assert_close(basis.T @ metric @ basis, torch.eye(5).double())
    assert_close(basis.T @ matrix @ basis, torch.diag(values))
    assert common_basis(-metric, matrix)[0].isnan().all()


def test_eigenvalues_of_rounding_count_as_zero():
    method, state = rule([0.1], damping=0.5)
    c = torch.diag(torch.tensor([1e-7, 4.0], dtype=torch.float64))
    value = updated(method, state, c, torch.eye(3).double(), torch.ones(2, 3).double())
    assert_close(value[:, 0], torch.tensor([1 / 0.5, 1 / 4.5], dtype=torch.float64), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("subproblem", "bounded"), [("SO", False), ("Q", True)])
def test_the_root_mean_square_of_q_is_bounded(subproblem, bounded):
    method, state = rule([0.1], subproblem=subproblem, rms_clip=0.01)
    size = updated(method, state, spd(2, 0), spd(3, 1), random(*SHAPE)).square().mean().sqrt()
    assert bool(size <= 0.01 + 1e-12) == bounded


def test_a_step_that_is_not_finite_leaves_the_state_alone():
    method, state = rule([0.1])
    updated(method, state, spd(2, 0), spd(3, 1), random(*SHAPE))
    before = {name: tensor.clone() for name, tensor in state.items()}
    method.precondition(state, torch.full(SHAPE, torch.nan).double())
    assert_close(state, before)


def test_moments_are_those_of_rows_of_examples_averaged_over_locations():
    method, _ = rule([0.1])
    x, g = random(6, 3), random(6, 2, seed=1)
    statistic = method.statistic
    assert statistic.condense is not None
    found = statistic.condense([Rows(x, g, 2)], 0)
    x, g = (part.view(3, 2, -1).mean(1) for part in (x, g))
    assert_close([*found[:3]], [x.T @ x, g.T @ g, torch.tensor(3.0).double()])
    assert statistic.sum_shapes(SHAPE) == (found.x.shape, found.g.shape)


def test_the_optimizer_takes_the_rule_s_step_at_each_rate():
    """Truth: dense, from the rows of a Linear; a scheduler would change the rate as this does."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    optimizer, _ = build("kld_wrm", layer, {"lr": 0.1, "momentum": 0.0, "kl_clip": None, "damping": 0.5})
    means: list[Tensor] = []
    old, old_lr = torch.zeros(2, 4).double(), 1.0
    for step, lr in enumerate((0.1, 0.4)):
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[-1]["lr"] = lr
        optimizer.zero_grad()
        inputs = random(5, 3, seed=step)
        _, x, g = reference.backward(layer, inputs)
        batch = [5 * g.T @ g, x.T @ x / 5]
        means = [0.99 * m + 0.01 * b for m, b in zip(means, batch, strict=True)] if means else batch
        truth = reference.kfac_solve(means[0], g.T @ x - 0.99 * old_lr / lr * old, means[1], 0.5)
        before = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
        optimizer.step()
        after = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
        assert_close(after, before - lr * truth, rtol=1e-9, atol=1e-12)
        old, old_lr = g.T @ x, lr


@pytest.mark.parametrize("name", ["adafisher", "dp_kfac", "kld_wrm"])
def test_optimizers_with_hooks_refuse_what_they_cannot_know(name):
    """A GradScaler, and the state dict of another optimizer."""
    layer = nn.Linear(3, 2)
    optimizer, _ = build(name, layer, {"lr": 0.1})
    with pytest.raises(ValueError, match=f"This state dict has no entry '{name}': it is another optimizer's"):
        optimizer.load_state_dict(build("sgd", layer, {"lr": 0.1})[0].state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(layer(torch.ones(4, 3)).mean()).backward()
    with pytest.raises(RuntimeError, match=f"{name} does not take a GradScaler"):
        scaler.step(optimizer)
