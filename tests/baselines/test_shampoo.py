"""Distributed Shampoo, KL-Shampoo and Sketchy. Truth: dense roots and sums, fixed points, the bounds of a sketch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import build
from baselines.parts.matrices import eigenbasis
from baselines.shampoo.distributed_shampoo import inverse_root_of
from baselines.shampoo.kl_shampoo import KLShampoo, inverse_root
from baselines.shampoo.sketchy import divided, sketched
from tests.support.matrices import change, power, random, updates


def shampooed(grads: list[Tensor], **chosen: Any) -> list[Tensor]:
    """Return V of every step of a matrix."""
    return updates("distributed_shampoo", grads, weight_decay=0.0, **chosen)


@pytest.mark.parametrize("nesterov", [False, True])
def test_before_the_first_roots_it_is_nadamw_but_for_the_first_correction(nesterov):
    """Which is ``1 - beta1^(t+1)``; without Nesterov's momentum it is AdamW."""
    grads, beta1 = [random(4, 3, seed=t) for t in range(5)], 0.8
    ours = shampooed(grads, beta1=beta1, nesterov=nesterov, first_inverse_update=6)
    name = "nadamw" if nesterov else "adamw"
    theirs = updates(name, grads, beta1=beta1, beta2=0.98, weight_decay=0.0)
    ratio = lambda t: (1 - beta1**t) / (1 - beta1 ** (t + 1)) if nesterov else 1  # noqa: E731
    assert_close(ours, [ratio(t) * v for t, v in enumerate(theirs, 1)])


@pytest.mark.parametrize(("block_size", "root"), [(1024, 4), (3, 4), (1024, 2)])
def test_an_update_is_the_mean_between_dense_roots_at_adams_length(block_size, root):
    beta1, beta2, eps = 0.7, 0.9, 1e-3
    grads = [random(6, 5, seed=t) for t in range(3)]
    chosen: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "eps": eps, "nesterov": False}
    ours = shampooed(
        grads,
        **chosen,
        inverse_root={4: "fourth", 2: "square"}[root],
        first_inverse_update=3,
        inverse_update_period=2,
        block_size=block_size,
    )
    mean, adam = torch.zeros(6, 5).double(), shampooed(grads, **chosen)[2]
    for grad in grads:
        mean = beta1 * mean + (1 - beta1) * grad
    for rows in torch.arange(6).split(block_size):
        for columns in torch.arange(5).split(block_size):
            here = rows[:, None], columns
            left, right = torch.zeros(len(rows), len(rows)).double(), torch.zeros(len(columns), len(columns)).double()
            for grad in grads:
                left = beta2 * left + (1 - beta2) * grad[here] @ grad[here].T
                right = beta2 * right + (1 - beta2) * grad[here].T @ grad[here]
            roots = [
                power(factor / (1 - beta2**3) + eps * torch.eye(len(factor)).double(), -1 / root)
                for factor in (left, right)
            ]
            value = roots[0] @ mean[here] @ roots[1]
            assert_close(ours[2][here], value * adam[here].norm() / value.norm())


def test_roots_are_computed_at_the_first_due_step_and_every_period():
    """First in step 3, then in every 4th. Without means, V is D between the roots."""
    grads = [t * random(3, 3) for t in range(1, 9)]
    chosen: dict[str, Any] = {"beta1": 0.0, "beta2": 0.9, "grafts_adam": False, "nesterov": False}
    found = shampooed(grads, **chosen, first_inverse_update=3, inverse_update_period=4)
    by_roots = [update / t for t, update in enumerate(found, 1)]
    changes = [t for t in range(4, 9) if not torch.allclose(by_roots[t - 1], by_roots[t - 2])]
    assert changes == [4, 8]


def test_without_means_graft_and_damping_it_is_the_polar_factor():
    grad = random(4, 4)
    chosen: dict[str, Any] = {"beta1": 0.0, "beta2": 0.0, "eps": 1e-14, "grafts_adam": False, "first_inverse_update": 1}
    (update,) = shampooed([grad], **chosen)
    u, _, vt = torch.linalg.svd(grad)
    assert_close(update, u @ vt, rtol=1e-6, atol=1e-6)


def test_eigenvalues_that_rounding_made_negative_are_lifted():
    factor = torch.diag(torch.tensor([-1e-3, 0.5], dtype=torch.float64))
    expected = torch.diag(torch.tensor([1e-2, 0.501 + 1e-2], dtype=torch.float64) ** -0.5)
    assert_close(inverse_root_of(factor, 2, 1e-2), expected)


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
    """The first step, which moves nothing, does not count, as in the released code."""
    _, optimizer = made()
    state = at(torch.eye(M).double(), torch.eye(N).double())
    optimizer.direction(random(M, N), state, GROUP, 10)
    assert_close(state["left_vectors"], torch.eye(M).double())
    optimizer.direction(random(M, N, seed=1), state, GROUP, 11)
    assert_close(state["left_vectors"], torch.linalg.qr(state["left"]).Q)


def test_the_bases_start_from_the_leading_direction():
    """In the other order, a power iteration and its QR would turn the least directions into the leading ones."""
    layer, optimizer = made()
    change(optimizer, layer.weight, random(M, N))
    state = optimizer.state[layer.weight]["tensors"]
    for side in ("left", "right"):
        along = (state[f"{side}_vectors"].T @ state[side] @ state[f"{side}_vectors"]).diagonal()
        assert_close(along, along.sort(descending=True).values)


@pytest.mark.parametrize("seed", [12, 16, 22, 64, 75])
def test_a_singular_factor_with_rows_of_zeros_has_an_eigenbasis(seed):
    """Of a layer of which many units were never active; LAPACK's in float32 is NaN, or fails, for these seeds."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(64, 16, generator=generator) * 1e-4 * torch.rand(64, 1, generator=generator)
    rows[torch.randperm(64, generator=generator)[:39]] = 0
    factor = 0.1 * (rows @ rows.T)
    basis = eigenbasis(factor)
    assert_close(basis.T @ basis, torch.eye(64), atol=1e-5, rtol=0)
    turned = (basis.T @ (factor / factor.max()) @ basis).diagonal()
    assert_close(turned, (torch.linalg.eigvalsh(factor.double()) / factor.max()).flip(0).float(), atol=1e-5, rtol=0)


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
    # The next eigenvalue grows from the bound, not from what it was.
    assert_close(state["left_values"], torch.full((32,), 32.0**-2).double())


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


def sketch_of(grads: list[Tensor], rank: int, decay: float, of_tail: float) -> tuple[Tensor, Tensor, Tensor]:
    d = len(grads[0])
    state = torch.zeros(d, rank).double(), torch.zeros(rank).double(), torch.zeros(()).double()
    for grad in grads:
        state = sketched(*state, grad, decay, of_tail)
    return state


def sum_of(grads: list[Tensor], decay: float) -> Tensor:
    total = torch.zeros(len(grads[0]), len(grads[0])).double()
    for grad in grads:
        total = decay * total + grad @ grad.T
    return total


def test_a_sketch_of_all_directions_is_the_sum():
    grads = [random(4, 3, seed=t) for t in range(5)]
    basis, values, tail = sketch_of(grads, 4, 0.9, 0.9)
    assert_close((basis * values.square()) @ basis.T, sum_of(grads, 0.9))
    assert tail == 0


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_sketch_and_its_tail_bound_the_sum(rank):
    """``sketch <= sum <= sketch + tail I``, for the tail that decays like the sum."""
    grads = [random(6, 3, seed=t) for t in range(8)]
    basis, values, tail = sketch_of(grads, rank, 0.9, 0.9)
    sketch, total = (basis * values.square()) @ basis.T, sum_of(grads, 0.9)
    assert torch.linalg.eigvalsh(total - sketch).amin() > -1e-12
    assert torch.linalg.eigvalsh(sketch + tail * torch.eye(6).double() - total).amin() > -1e-12


def test_the_released_tail_becomes_twice_as_large():
    """At rest, with a dropped value c^2 in every step, it is ``c^2 / (1 - sqrt(decay))`` and not ``/ (1 - decay)``."""
    decay = 0.99
    grads = [10 * random(5, 5, seed=t) for t in range(1500)]
    tails = [float(sketch_of(grads, 2, decay, of_tail)[2]) for of_tail in (decay, decay**0.5)]
    assert tails[1] / tails[0] == pytest.approx(2.0, rel=0.02)


def test_with_all_directions_an_update_is_shampoos_at_rmsprops_length():
    grads, decay = [random(4, 5, seed=t) for t in range(3)], 0.9
    ours = updates("sketchy", grads, factor_decay=decay, eps=1e-9, momentum=0.0, nesterov=False)[-1]
    square = torch.zeros(4, 5).double()
    for grad in grads:
        square = decay * square + (1 - decay) * grad.square()
    graft = grads[-1] / square.sqrt()
    left, right = sum_of(grads, decay), sum_of([grad.T for grad in grads], decay)
    truth = power(left, -0.25) @ grads[-1] @ power(right, -0.25)
    assert_close(ours, truth * graft.norm() / truth.norm(), rtol=1e-6, atol=1e-7)


def test_division_is_that_by_the_dense_root():
    basis = torch.linalg.qr(random(5, 2)).Q
    values, matrix = torch.tensor([3.0, 1.0]).double(), random(5, 4)
    for tail in (0.5, 0.0):
        damping = 1e-3 * (9 + tail)
        identity = torch.eye(5).double() if tail else basis @ basis.T
        factor = (basis * values.square()) @ basis.T + (tail + damping) * identity
        root = power(factor, -0.25) if tail else basis @ torch.diag((values.square() + damping) ** -0.25) @ basis.T
        assert_close(divided(matrix, basis, values, torch.tensor(tail).double(), 1e-3), root @ matrix)


def test_momentum_adds_updates_up():
    grads = [random(4, 5, seed=t) for t in range(3)]
    plain = updates("sketchy", grads, momentum=0.0, nesterov=False)
    velocity = plain[0] * 0.25 + plain[1] * 0.5 + plain[2]
    assert_close(updates("sketchy", grads, momentum=0.5, nesterov=False)[-1], velocity)
    assert_close(updates("sketchy", grads, momentum=0.5)[-1], plain[2] + 0.5 * velocity)


def test_a_matrix_with_a_longer_axis_takes_rmsprops_step():
    grad = random(4, 5)
    (update,) = updates("sketchy", [grad], max_dimension=4, momentum=0.0)
    assert_close(update, grad.sign() / (1 - 0.999) ** 0.5)  # not corrected, as released
