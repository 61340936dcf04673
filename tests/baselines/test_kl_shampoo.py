"""KL-Shampoo. Truth: dense factors, their fixed point, and the warm-up that the released start causes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import build
from baselines.shampoo.kl_shampoo import KLShampoo, inverse_root
from tests.support.matrices import change, random

M, N = 3, 5


def made(m: int = M, n: int = N, **chosen: Any) -> tuple[nn.Linear, KLShampoo]:
    layer = nn.Linear(n, m, bias=False).double()
    optimizer, _ = build("kl_shampoo", layer, {"lr": 1.0, "weight_decay": 0.0, **chosen})
    assert isinstance(optimizer, KLShampoo)
    return layer, optimizer


def at(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    """Return a state with these factors and their eigenpairs."""
    state = {"mean": torch.zeros(len(left), len(right), dtype=left.dtype)}
    for side, factor in (("left", left), ("right", right)):
        values, vectors = torch.linalg.eigh(factor)
        state |= {side: factor.clone(), f"{side}_values": values, f"{side}_vectors": vectors}
    return state


def fixed_point(grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the factors at which ``S_L = E[D S_R^-1 D^T] / n`` and ``S_R = E[D^T S_L^-1 D] / m``."""
    left, right = torch.eye(M, dtype=torch.float64), torch.eye(N, dtype=torch.float64)
    for _ in range(400):
        left = sum((d @ torch.linalg.solve(right, d.T) for d in grads), torch.zeros_like(left)) / len(grads) / N
        right = sum((d.T @ torch.linalg.solve(left, d) for d in grads), torch.zeros_like(right)) / len(grads) / M
    return left, right


GROUP = {"betas": (0.0, 0.9), "eps": 0.0, "update_period": 10}


def test_the_first_step_changes_no_weight_and_sets_up_the_factors():
    layer, optimizer = made(beta2=0.9)
    grad = random(M, N)
    assert_close(change(optimizer, layer.weight, grad), torch.zeros(M, N).double(), rtol=0, atol=0)
    state = optimizer.state[layer.weight]["tensors"]
    assert_close(state["left"], 0.1 * grad @ grad.T / N)
    assert_close(state["right"], 0.1 * grad.T @ grad / M)


def test_a_step_is_that_of_dense_factors():
    """Truth: inverses and roots of the old factors, of which the eigenpairs are exact."""
    _, optimizer = made()
    (a, b), grad = (random(4, M, seed=1), random(6, N, seed=2)), random(M, N)
    left, right = a.T @ a, b.T @ b
    state = at(left, right)
    update = optimizer.direction(grad, state, GROUP, 2)
    assert update is not None
    roots = []
    for factor in (left, right):
        values, vectors = torch.linalg.eigh(factor)
        roots.append(vectors @ torch.diag(values**-0.5) @ vectors.T)
    assert_close(update, roots[0] @ grad @ roots[1])
    expected = 0.9 * left + 0.1 * grad @ torch.linalg.inv(right) @ grad.T / N
    assert_close(state["left"], expected)
    assert_close(state["right"], 0.9 * right + 0.1 * grad.T @ torch.linalg.inv(left) @ grad / M)
    # The eigenvalues are the diagonals of the factors in their old bases.
    assert_close(state["left_values"], (state["left_vectors"].T @ expected @ state["left_vectors"]).diagonal())


def test_updates_at_the_fixed_point_are_white():
    """``E[V V^T] = n I`` and ``E[V^T V] = m I``, and the factors stay where they are on average."""
    grads = [random(M, N, seed=seed) @ torch.diag(torch.arange(1.0, N + 1).double()) for seed in range(12)]
    left, right = fixed_point(grads)
    _, optimizer = made()
    states = [at(left, right) for _ in grads]
    updates = [optimizer.direction(d, state, GROUP, 2) for d, state in zip(grads, states, strict=True)]
    v = torch.stack([update for update in updates if update is not None])
    assert_close((v @ v.mT).mean(0), N * torch.eye(M).double())
    assert_close((v.mT @ v).mean(0), M * torch.eye(N).double())
    assert_close(torch.stack([state["left"] for state in states]).mean(0), left)
    values = at(left, right)["right_values"]
    assert_close(torch.stack([state["right_values"] for state in states]).mean(0), values)


def test_the_bases_follow_the_factors_by_a_power_iteration_every_period():
    _, optimizer = made()
    state = at(torch.eye(M).double(), torch.eye(N).double())
    optimizer.direction(random(M, N), state, GROUP, 9)
    assert_close(state["left_vectors"], torch.eye(M).double())
    optimizer.direction(random(M, N, seed=1), state, GROUP, 10)
    assert_close(state["left_vectors"], torch.linalg.qr(state["left"]).Q)


def test_the_released_start_warms_up_for_a_hundred_steps():
    """About ``ln(0.01 / rms^2) / (2 (1 - beta2))`` = 115 of them; a start from the gradient's rms needs none."""
    rms, lengths = 1e-2, {}
    for first in ("released", "rms"):
        layer, optimizer = made(12, 12, beta1=0.0, first_eigenvalues=first)
        lengths[first] = [
            float(change(optimizer, layer.weight, rms * random(12, 12, seed=t)).square().mean().sqrt())
            for t in range(160)
        ]
    assert math.isclose(lengths["released"][1], rms / 0.1, rel_tol=0.3)
    assert max(lengths["released"][1:50]) < 0.4
    assert min(lengths["released"][150:]) > 0.6
    assert min(lengths["rms"][1:]) > 0.6


def test_the_roots_are_clamped_as_released():
    """32 columns with a root mean square of 1e-4: the root of both eigenvalues would be 1e4, and is 32 x 32."""
    assert_close(inverse_root(torch.full((32,), 1e-12)), torch.full((32,), 32.0))
    assert_close(inverse_root(torch.full((4,), 1e-12)), torch.full((4,), 10.0))
    assert_close(inverse_root(torch.tensor([4.0])), torch.tensor([0.5]))
    _, optimizer = made(32, 32)
    state = at(1e-4 * torch.eye(32).double(), 1e-4 * torch.eye(32).double())
    update = optimizer.direction(1e-4 * random(32, 32), state, GROUP, 2)
    assert update is not None
    assert 0.09 < float(update.square().mean().sqrt()) < 0.12


def test_weights_shrink_after_the_step():
    layer, optimizer = made(weight_decay=0.5, lr=0.1)
    twin, plain = made(lr=0.1)
    twin.load_state_dict(layer.state_dict())
    for grad in (random(M, N), random(M, N, seed=1)):
        before = twin.weight.detach().clone()
        layer.weight.data.copy_(before)
        change(optimizer, layer.weight, grad)
        change(plain, twin.weight, grad)
    assert_close(layer.weight.detach(), 0.95 * twin.weight.detach())
