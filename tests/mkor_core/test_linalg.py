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

EPS, ZETA = 2.0, 0.8


def test_rescale_keeps_the_direction_and_takes_the_gradients_norm():
    update = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    grad = torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    for factor in (1, 0.01):
        assert_close(linalg.rescale(factor * update, grad), update * 2 / 5)


def test_inner_products_are_those_of_the_last_dimension():
    a, b = torch.arange(24.0).view(2, 3, 4), torch.ones(2, 3, 4)
    assert_close(linalg.inner(a, b), a.sum(2))
    assert_close(linalg.inner(a[0, 0], b[0, 0]), a[0, 0].sum())


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


@pytest.mark.parametrize("quadratic", [0.0, -0.5])
@pytest.mark.parametrize(
    "weight",
    [linalg.published_weight, linalg.sherman_morrison_weight, linalg.addition_weight],
    ids=["published", "sherman_morrison", "addition"],
)
def test_an_update_along_which_a_factor_is_not_positive_is_left_out(weight, quadratic):
    assert weight(torch.tensor(quadratic), 0.9) == 0


def test_an_overflow_of_the_published_rule_is_not_silent():
    assert linalg.published_weight(torch.tensor(torch.inf), 0.9).isnan()


@pytest.mark.parametrize(
    ("diagonal", "acts"),
    [((1.0, 2.0), False), ((1.0, 2.1), True), ((1.0, 0.0), True), ((1.0, -0.1), True), ((1.0, 0.1), False)],
)
def test_the_stabilizer_acts_above_the_threshold_and_on_entries_that_are_not_positive(diagonal, acts):
    weight = linalg.stabilizer_weight(torch.tensor(diagonal, dtype=torch.float64), EPS, ZETA)
    assert_close(weight, torch.tensor(ZETA if acts else 1.0, dtype=torch.float64))


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


class Products(TorchDispatchMode):
    """Products in the order in which they are computed, and the inner sizes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mv", "bmm", "addr_", "addcmul_", "addmm_", "baddbmm_"):
            self.names.append(name)
        if name == "addmm_":
            self.sizes.append(args[1].shape[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("device", "names"), [("cpu", ["mv"] * 3 + ["addr_"] * 3), ("meta", ["bmm", "addcmul_"])], ids=["cpu", "meta"]
)
def test_a_cpu_multiplies_the_layers_of_a_stack_one_by_one_and_other_devices_together(device, names):
    generator = torch.Generator().manual_seed(0)
    matrix, vector = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4, 4), (3, 4)))
    matrix, vector = matrix.to(device), vector.to(device)
    outer = matrix.clone()
    with Products() as products:
        product = linalg.matvec(matrix, vector)
        linalg.add_outer_(outer, vector, -1)
    assert products.names == names
    if device == "cpu":
        assert_close(product, torch.einsum("lij,lj->li", matrix, vector))
        assert_close(outer, matrix - torch.einsum("li,lj->lij", vector, vector))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("inner_size", [1, 2])
@pytest.mark.parametrize("leading", [(), (3,)])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_product_is_added_to_a_scaled_matrix_in_place(rows, leading, inner_size, scale):
    generator = torch.Generator().manual_seed(0)
    shapes = ((*leading, rows, 5), (*leading, rows, inner_size), (*leading, inner_size, 5))
    matrix, left, right = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    truth = scale * matrix - 3 * left @ right
    linalg.add_product_(matrix, left, right, scale, -3.0)
    assert_close(matrix, truth)


@pytest.mark.parametrize(("inner_size", "padded"), [(1, 1), (2, 16), (15, 16), (16, 16), (17, 17)])
def test_a_large_product_of_a_small_inner_size_is_padded_on_a_cpu(inner_size, padded, monkeypatch):
    monkeypatch.setattr(linalg, "LARGE", 20)
    generator = torch.Generator().manual_seed(0)
    for matrix_columns, expected in ((5, padded), (4, inner_size)):
        shapes = ((4, matrix_columns), (4, inner_size), (inner_size, matrix_columns))
        matrix, columns, rows = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        truth = 0.5 * matrix - 3 * columns @ rows
        with Products() as products:
            linalg.add_product_(matrix, columns, rows, 0.5, -3.0)
        assert_close(matrix, truth)
        assert products.sizes == [expected]


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
