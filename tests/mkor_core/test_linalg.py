"""Truth: dense inverses and explicit loops in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mkor_core import linalg
from tests.support import reference

RULES = {"published": linalg.published, "sherman_morrison": linalg.sherman_morrison, "released": linalg.released}
EPS, ZETA = 2.0, 0.8


def spd(dimension: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrix = reference.random_spd(dimension, generator)
    return matrix, torch.randn(dimension, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
def test_sherman_morrison_inverts_the_average(decay):
    inverse, v = spd()
    assert_close(linalg.sherman_morrison(inverse, v, decay), reference.averaged_inverse(inverse, v, decay))


@pytest.mark.parametrize("weight", [0.1, 0.5])
def test_a_further_rank_is_added_exactly(weight):
    inverse, v = spd()
    truth = (inverse.inverse() + weight * torch.outer(v, v)).inverse()
    assert_close(linalg.sherman_morrison_add(inverse, v, weight), truth)


@pytest.mark.parametrize("decay", [0.5, 0.95])
def test_released_inverts_the_blended_sum(decay):
    inverse, v = spd()
    assert_close(linalg.released(inverse, v, decay), reference.released_inverse(inverse, v, decay))


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_published_is_the_printed_formula(decay):
    inverse, v = spd()
    assert_close(linalg.published(inverse, v, decay), reference.published_update(inverse, v, decay))


def test_published_is_not_the_inverse_of_the_average():
    """The printed rule stretches the direction v that the average's inverse shrinks."""
    inverse, v = torch.eye(5, dtype=torch.float64), torch.full((5,), 2.0, dtype=torch.float64)
    exact = reference.averaged_inverse(inverse, v, 0.9)
    printed = linalg.published(inverse, v, 0.9)
    assert v @ exact @ v < v @ inverse @ v < v @ printed @ v


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), dimension=st.integers(1, 12), updates=st.integers(1, 30), decay=st.floats(0.6, 0.99))
def test_sherman_morrison_stays_the_inverse_over_any_sequence(seed, dimension, updates, decay):
    generator = torch.Generator().manual_seed(seed)
    inverse = torch.eye(dimension, dtype=torch.float64)
    factor = inverse.clone()
    for _ in range(updates):
        v = torch.randn(dimension, generator=generator, dtype=torch.float64)
        inverse = linalg.sherman_morrison(inverse, v, decay)
        factor = decay * factor + (1 - decay) * torch.outer(v, v)
    rounding = 1e-11 * float(torch.linalg.cond(factor))
    assert_close(inverse @ factor, torch.eye(dimension, dtype=torch.float64), rtol=0, atol=rounding)


@settings(max_examples=40)
@given(
    rule=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_every_rule_keeps_its_factor_symmetric_and_positive_definite(rule, seed, scale, dtype):
    generator = torch.Generator().manual_seed(seed)
    inverse = torch.eye(6, dtype=dtype)
    for _ in range(20):
        v = scale * torch.randn(6, generator=generator, dtype=dtype)
        inverse = RULES[rule](linalg.stabilize(inverse, EPS, ZETA), v, 0.9)
        assert_close(inverse, inverse.T, rtol=0, atol=0)
    # An eigenvalue below the rounding error of the largest one cannot be distinguished from zero.
    values = torch.linalg.eigvalsh(inverse.double())
    assert values.min() > -10 * torch.finfo(dtype).eps * values.max()


@pytest.mark.parametrize(("scale", "fires"), [(0.5, False), (3.0, True)])
def test_stabilize_blends_only_above_the_threshold(scale, fires):
    matrix = scale * torch.eye(4, dtype=torch.float64)
    blended = ZETA * matrix + (1 - ZETA) * torch.eye(4, dtype=torch.float64)
    assert_close(linalg.stabilize(matrix, EPS, ZETA), blended if fires else matrix)


def test_rescale_keeps_the_direction_and_takes_the_gradients_norm():
    update = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    grad = torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    assert_close(linalg.rescale(update, grad), update * 2 / 5)


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
