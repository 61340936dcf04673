"""Products of factors with D, and low-rank directions. Truth: dense, by the Kronecker product, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from mkor_core.maths import inverses, linalg, products
from mkor_core.maths.inverses import Inverse, Rule, WindowedInverse, eigenpairs
from mkor_core.maths.products import Gradient, precondition_
from tests.support import reference
from tests.support.operators import Operators

CPU = torch.device("cpu")


def factor(
    dimension: int, window: int | None, seed: int, leading: tuple[int, ...] = (), rule: str = "sherman_morrison"
) -> Inverse:
    """A factor after more updates than a window has columns."""
    inverse = inverses.identity(leading, dimension, window, torch.float64, CPU)
    generator = torch.Generator().manual_seed(seed)
    accept = torch.ones(leading, dtype=torch.bool)
    for number in range(9):
        if isinstance(inverse, WindowedInverse) and inverse.is_full(number):
            inverse.truncate_(eigenpairs(inverse.gram(), inverse.rows.device), accept)
        vector = torch.randn(*leading, dimension, generator=generator, dtype=torch.float64)
        inverse.update_(Rule(rule, 0.9, 2.1, 0.8), vector, number, accept)
    return inverse


def joined(grad: Gradient) -> Tensor:
    return grad.weight if grad.bias is None else torch.cat([grad.weight, grad.bias[..., None]], -1)


def gradient(leading: tuple[int, ...], m: int, n: int, *, has_bias: bool, seed: int = 7) -> Gradient:
    matrix = torch.randn(*leading, m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Gradient(matrix[..., :-1].clone(), matrix[..., -1].clone()) if has_bias else Gradient(matrix, None)


@settings(max_examples=60)
@given(
    m=st.integers(1, 9),
    n=st.integers(2, 9),
    window=st.sampled_from([None, 2, 5, 16]),
    rule=st.sampled_from(["sherman_morrison", "released", "published"]),
    has_bias=st.booleans(),
    both=st.booleans(),
    rescale=st.booleans(),
)
def test_the_update_is_the_kronecker_product(m, n, window, rule, has_bias, both, rescale):
    left = factor(m, window, 1, rule=rule) if both else None
    right, grad = factor(n, window, 2, rule=rule), gradient((), m, n, has_bias=has_bias)
    matrix = joined(grad).clone()
    dense = torch.eye(m, dtype=torch.float64) if left is None else left.to_matrix()
    truth = reference.kron_precondition(dense, matrix, right.to_matrix())
    if rescale:
        truth = truth * matrix.norm() / truth.norm()
    precondition_(left, grad, right, rescale=rescale)
    assert_close(joined(grad), truth, rtol=1e-8, atol=1e-8 * float(truth.abs().max()))


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("window", [None, 4])
def test_a_stack_is_preconditioned_as_its_layers_are(window, has_bias, rescale):
    """The stack's path is that of a GPU, on which no value is read."""
    left, right = factor(4, window, 1, (3,)), factor(6, window, 2, (3,))
    grad = gradient((3,), 4, 6, has_bias=has_bias)
    grad.weight[1] = 0
    if grad.bias is not None:
        grad.bias[1] = 0
    expected = []
    for index in range(3):
        layer = Gradient(grad.weight[index].clone(), None if grad.bias is None else grad.bias[index].clone())
        ours = [type(inverse)(*(tensor[index] for tensor in inverse)) for inverse in (left, right)]
        precondition_(ours[0], layer, ours[1], rescale=rescale)
        expected.append(joined(layer))
    precondition_(left, grad, right, rescale=rescale)
    assert_close(joined(grad), torch.stack(expected), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("leading", [(), (2,)])
@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("bad", ["factor", "gradient", "overflow"])
def test_the_gradient_stays_where_the_update_is_not_finite(window, rescale, leading, bad):
    left, right = factor(4, window, 1, leading), factor(6, window, 2, leading)
    grad = gradient(leading, 4, 6, has_bias=True)
    if bad == "factor":
        right[0].fill_(torch.inf)
    elif bad == "overflow":  # of the square norm, in float64
        grad.weight.fill_(1e200)
    else:
        grad.weight.fill_(torch.nan)
    before = joined(grad).clone()
    precondition_(left, grad, right, rescale=rescale)
    assert_close(joined(grad), before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [1e-3, 1e4])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("leading", [(), (1,)])
def test_a_norm_that_cancels_in_its_gram_matrices_is_taken_from_the_update(leading, has_bias, scale, size):
    """D lies in the direction that J_R has almost removed: |V| is a ten-thousandth of c |D|."""
    right = inverses.identity(leading, 5, 4, torch.float32, CPU)
    assert isinstance(right, WindowedInverse)
    direction = torch.nn.functional.normalize(torch.arange(1.0, 6), dim=0)
    other = torch.nn.functional.normalize(torch.tensor([2.0, -1.0, 0.0, 0.0, 0.0]), dim=0)
    right.rows[..., 0, :], right.weights[..., 0] = direction, (1 - 1e-4) * scale
    right.scale.fill_(scale)
    matrix = size * torch.outer(torch.tensor([1.0, 0.3, -0.7]), direction + 1e-4 * other).expand(*leading, 3, 5)
    grad = Gradient(matrix[..., :-1].clone(), matrix[..., -1].clone()) if has_bias else Gradient(matrix.clone(), None)
    precondition_(None, grad, right, rescale=True)
    exact = matrix.double() @ right.to_matrix().double()
    truth = exact * matrix.double().norm() / exact.norm()
    assert_close(joined(grad).double(), truth, rtol=0, atol=0.02 * float(truth.abs().max()))
    assert_close(joined(grad).norm(), matrix.norm(), rtol=1e-5, atol=0)


def test_a_rank_one_matrix_is_taken_from_a_scaled_gradient():
    scale, column, row = torch.tensor([0.5, 2.0]), torch.ones(2, 3), torch.arange(1.0, 9).view(2, 4)
    stack = gradient((2,), 3, 4, has_bias=True)
    stack = stack.to(torch.float32)
    truth = scale[:, None, None] * joined(stack) - column[:, :, None] * row[:, None, :]
    alone = [Gradient(stack.weight[i].clone(), joined(stack)[i, :, -1].clone()) for i in range(2)]
    stack.combine_rank_one_(scale, column, row)
    for index, one in enumerate(alone):
        one.combine_rank_one_(scale[index], column[index], row[index])
    assert_close(joined(stack), truth)
    assert_close(torch.stack([joined(one) for one in alone]), truth)


def test_only_the_scalars_of_one_layer_on_a_cpu_are_read():
    """In a stack they would be read one by one, and on other devices the host would wait."""
    tensors = [torch.ones(2, 3), torch.ones(1, 2, 3), torch.ones(2, 3, device="meta")]
    assert [products._on_host(Gradient(tensor, None)) for tensor in tensors] == [True, False, False]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), window=st.sampled_from([None, 4]))
def test_the_update_is_a_descent_direction(seed, window):
    """Lemma 3.3: <D, J_L D J_R> > 0 for positive definite factors."""
    grad = gradient((), 4, 6, has_bias=False, seed=seed % 1000)
    before = grad.weight.clone()
    precondition_(factor(4, window, seed), grad, factor(6, window, seed + 1), rescale=False)
    assert (before * grad.weight).sum() > 0


@pytest.mark.parametrize(("inner_size", "padded"), [(1, 1), (2, 16), (15, 16), (16, 16), (17, 17)])
def test_a_large_product_of_a_small_inner_size_is_padded_on_a_cpu(inner_size, padded, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 20)
    generator = torch.Generator().manual_seed(0)
    for matrix_columns, expected in ((5, padded), (4, inner_size)):
        shapes = ((4, matrix_columns), (4, inner_size), (inner_size, matrix_columns))
        matrix, columns, rows = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        truth = 0.5 * matrix - 3 * columns @ rows
        with Operators() as operators:
            products.add_product_(matrix, columns, rows, 0.5, -3.0)
        assert_close(matrix, truth)
        assert [product.args[1].shape[1] for product in operators.named("addmm_")] == [expected]


@pytest.mark.parametrize("value", [1.0, 0.01, 0.0, torch.nan, torch.inf])
def test_rescale_takes_the_gradients_norm_and_gives_the_gradient_back_where_the_update_is_unusable(value):
    update = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    grad = torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    assert_close(linalg.rescale(value * update, grad), update * 2 / 5 if 0 < value < torch.inf else grad)


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


def test_leading_directions_need_no_square_matrix_of_the_dimension():
    generator = torch.Generator().manual_seed(0)
    sketch, test = (torch.randn(40, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    with Operators() as operators:
        linalg.leading_directions(sketch, test, 3)
    tensors = [leaf for operator in operators.seen for leaf in tree_leaves(operator.result) if isinstance(leaf, Tensor)]
    assert max(tensor.numel() for tensor in tensors) == 40 * 5
