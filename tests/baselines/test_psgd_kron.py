"""PSGD-Kron. Truth: the fixed point of its rule, which for a Kronecker covariance is that of KL-Shampoo."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import build
from baselines.shampoo.psgd_kron import PSGDKron, noise, norm_bound, probability, terms, updated
from tests.support.matrices import change, power, random

M, N = 3, 4


def covariances() -> tuple[Tensor, Tensor]:
    (a, b) = random(6, M, seed=1), random(6, N, seed=2)
    return a.T @ a, b.T @ b


def units() -> list[Tensor]:
    """Return matrices of which every second moment is that of normal noise."""
    return [math.sqrt(M * N) * e.view(M, N) for e in torch.eye(M * N, dtype=torch.float64)]


def made(shape: tuple[int, ...], **chosen: Any) -> tuple[nn.Parameter, PSGDKron]:
    holder = nn.Module()
    holder.weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    optimizer, _ = build("psgd_kron", holder, {"lr": 1.0, **chosen})
    assert isinstance(optimizer, PSGDKron)
    return holder.weight, optimizer


def test_its_rule_rests_where_gradients_of_a_kronecker_covariance_become_white():
    """``D = L^(1/2) Z R^(1/2)``: then ``P_L = L^(-1/2)``, ``P_R = R^(-1/2)`` and V = Z, as with KL-Shampoo."""
    left, right = covariances()
    q_left, q_right = (torch.linalg.cholesky(power(c, -0.5)).T for c in (left, right))
    found = [terms(q_left, q_right, power(left, 0.5) @ z @ power(right, 0.5), v) for z in units() for v in units()]
    a, b = (torch.stack(part) for part in zip(*found, strict=True))
    assert_close((a @ a.mT).mean(0), (b @ b.mT).mean(0))
    assert_close((a.mT @ a).mean(0), (b.mT @ b).mean(0))


def test_a_step_of_the_factors_is_that_of_dense_matrices():
    left, right = (torch.linalg.cholesky(c).T for c in covariances())
    mean, v = random(M, N), random(M, N, seed=3)
    a = left @ mean @ right.T
    b = torch.linalg.inv(left).T @ v @ torch.linalg.inv(right)
    found = updated(left, right, mean, v, 0.1)
    for factor, new, one, other in ((left, found[0], a, b), (right, found[1], a.T, b.T)):
        bound = norm_bound(one @ one.T + other @ other.T)
        assert_close(new, factor - 0.1 * torch.triu(one @ one.T - other @ other.T) @ factor / bound)
        assert torch.equal(new, new.triu())


def test_the_bound_is_below_the_spectral_norm_and_near_it():
    for seed in range(20):
        rows = random(5, 7, seed=seed)
        ratio = float(norm_bound(rows @ rows.T) / torch.linalg.matrix_norm(rows @ rows.T, 2))
        assert 0.7 < ratio <= 1 + 1e-12
    assert_close(norm_bound(torch.eye(3).double() * 7), torch.tensor(7.0).double())


def test_updates_become_white():
    """Of random gradients with a Kronecker covariance, from Q = I; the noise of the rule leaves a rest."""
    left, right = covariances()
    roots = power(1e-4 * left, 0.5), power(right, 0.5)
    weight, optimizer = made((M, N), momentum=0.0, update_clip=None)
    moment = torch.zeros(M, M).double()
    for t in range(450):
        update = change(optimizer, weight, roots[0] @ random(M, N, seed=t) @ roots[1])
        if t >= 150:
            moment += update @ update.T / 300 / N
    assert (moment - torch.eye(M)).norm() < 0.5
    gram = roots[0] @ roots[0]
    assert (gram / gram.trace() * M - torch.eye(M)).norm() > 0.8  # those of the gradients are far from white


def test_a_vector_has_a_diagonal_factor():
    """At rest ``q^2 |g| = 1``, so that V is the sign."""
    weight, optimizer = made((4,), momentum=0.0)
    grad = torch.tensor([3.0, -1.0, 0.1, 0.5], dtype=torch.float64)
    total = sum((change(optimizer, weight, grad) for _ in range(400)), torch.zeros(4).double())
    last = change(optimizer, weight, grad)
    assert total.isfinite().all()
    assert optimizer.state[weight]["tensors"]["left"].shape == (4,)
    assert_close(last.sign(), grad.sign())
    assert float(last.abs().amax() / last.abs().amin()) < 4  # of the gradient 30


def test_long_axes_have_diagonal_factors():
    weight, optimizer = made((2, 5), max_dimension=4)
    change(optimizer, weight, random(2, 5))
    assert [optimizer.state[weight]["tensors"][side].shape for side in ("left", "right")] == [(2, 2), (5,)]


@pytest.mark.parametrize("clip", [None, 1.1, 0.2])
def test_updates_are_clipped_to_a_root_mean_square(clip):
    weight, optimizer = made((M, N), update_clip=clip)
    rms = float(change(optimizer, weight, 100 * random(M, N)).square().mean().sqrt())
    assert rms > 1.2 if clip is None else rms == pytest.approx(clip)


def test_it_leaves_the_global_random_numbers_alone_and_draws_the_same_in_every_process():
    changes = []
    for seed in (0, 5):
        torch.manual_seed(seed)
        expected = torch.rand(2)
        torch.manual_seed(seed)
        weight, optimizer = made((M, N))
        changes.append(change(optimizer, weight, random(M, N)))
        assert_close(torch.rand(2), expected, rtol=0, atol=0)
    assert_close(changes[0], changes[1], rtol=0, atol=0)
    assert not torch.equal(noise(random(M, N), 1), noise(random(M, N), 2))


def test_factors_are_updated_ever_less_often():
    assert [probability(t) for t in (1, 500)] == [1.0, 1.0]
    assert probability(1500) == pytest.approx(math.exp(-1))
    assert probability(10**6) == 0.03
