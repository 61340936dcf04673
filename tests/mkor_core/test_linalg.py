"""Truth: dense inverses and explicit loops in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mkor_core.maths import linalg


def test_rescale_keeps_the_direction_and_takes_the_gradients_norm():
    update = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    grad = torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    for factor in (1, 0.01):
        assert_close(linalg.rescale(factor * update, grad), update * 2 / 5)


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_rescale_gives_the_gradient_back_where_the_update_is_unusable(bad):
    grad = torch.ones(2, 2, dtype=torch.float64)
    update = torch.full((2, 2), bad, dtype=torch.float64)
    assert_close(linalg.rescale(update, grad), grad, rtol=0, atol=0)


def test_leading_directions_are_exact_for_a_moment_of_low_rank():
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    moment, test = factor @ factor.T, torch.randn(30, 8, generator=generator, dtype=torch.float64)
    directions = linalg.leading_directions(moment @ test, test, 3)
    assert_close(directions @ directions.T, moment, rtol=1e-8, atol=1e-8)


def test_leading_directions_come_close_to_the_best_rank():
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64)).Q
    values = 0.5 ** torch.arange(40, dtype=torch.float64)
    moment, test = basis * values @ basis.T, torch.randn(40, 12, generator=generator, dtype=torch.float64)
    directions = linalg.leading_directions(moment @ test, test, 4)
    best = values[4:].norm()
    assert best <= (moment - directions @ directions.T).norm() <= 1.1 * best


@pytest.mark.parametrize("scale", [1.0, 2.0**-80])
def test_leading_directions_do_not_contain_the_shift_that_computes_them(scale):
    """An eigenvalue of 16 rounding errors of the largest one; with omega = I all products are exact."""
    moment = scale * torch.diag(torch.tensor([1.0, 2.0**-48, 0.0], dtype=torch.float64))
    directions = linalg.leading_directions(moment, torch.eye(3, dtype=torch.float64), 3)
    assert_close(directions.square().sum(0), moment.diagonal(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_leading_directions_of_a_sketch_that_is_not_finite_are_nan(bad):
    generator = torch.Generator().manual_seed(0)
    sketch, test = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    sketch[2, 1] = bad
    assert linalg.leading_directions(sketch, test, 3).isnan().all()


class LargestTensor(TorchDispatchMode):
    """The most elements that any operation has returned in one tensor."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_leading_directions_need_no_square_matrix_of_the_dimension():
    generator = torch.Generator().manual_seed(0)
    sketch, test = (torch.randn(40, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    with LargestTensor() as largest:
        linalg.leading_directions(sketch, test, 3)
    assert largest.elements == 40 * 5
