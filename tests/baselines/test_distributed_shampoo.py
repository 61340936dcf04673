"""Distributed Shampoo. Truth: dense roots block by block, NadamW before the first roots, the polar factor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from baselines.shampoo.distributed_shampoo import inverse_root_of
from tests.support.matrices import power, random, updates


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
