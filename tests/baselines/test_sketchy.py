"""Sketchy. Truth: dense sums of D D^T, whose roots are Shampoo's, and the bounds that a sketch keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from baselines.shampoo.sketchy import divided, sketched
from tests.support.matrices import power, random, updates


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
    graft = grads[-1] / (square / (1 - decay**3)).sqrt()
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
    assert_close(update, grad.sign())
