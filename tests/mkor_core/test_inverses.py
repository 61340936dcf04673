"""Truth: the dense matrix that a factor represents, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mkor_core import inverses
from mkor_core.inverses import DenseInverse, Inverse, WindowedInverse
from tests.support import reference

RULES = ("published", "released", "sherman_morrison")
EPS, ZETA = 2.0, 0.8


def matrix(inverse: Inverse) -> Tensor:
    dimension = len(inverse.diagonal())
    return inverse.matmul(torch.eye(dimension, dtype=torch.float64))


def run(rule: str, window: int | None, updates: int = 60, dimension: int = 12) -> Inverse:
    """Run a recurrence on the same vectors for every window, with a persistent mean so that the stabilizer acts."""
    generator = torch.Generator().manual_seed(0)
    inverse = inverses.identity(dimension, window, torch.float64, torch.device("cpu"))
    for _ in range(updates):
        v = 0.3 * (torch.randn(dimension, generator=generator, dtype=torch.float64) + 0.2)
        inverse = inverse.stabilize(EPS, ZETA).update(rule, v, 0.9)
    return inverse


@pytest.mark.parametrize("rule", RULES)
def test_a_window_as_long_as_the_run_is_the_dense_factor(rule):
    dense, windowed = run(rule, None), run(rule, 60)
    assert_close(matrix(windowed), matrix(dense), rtol=1e-10, atol=1e-10)
    assert_close(windowed.diagonal().amax(), dense.diagonal().amax(), rtol=1e-10, atol=0)
    assert isinstance(windowed, WindowedInverse)
    assert windowed.position == 60


@pytest.mark.parametrize("rule", ["sherman_morrison", "released"])
def test_a_shorter_window_errs_less_the_longer_it_is(rule):
    dense = matrix(run(rule, None))
    errors = [float((matrix(run(rule, window)) - dense).norm() / dense.norm()) for window in (4, 20, 50)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 0


def test_a_further_rank_of_a_window_is_the_dense_one():
    dense, windowed = run("sherman_morrison", None), run("sherman_morrison", 61)
    v = torch.linspace(-1, 1, 12, dtype=torch.float64)
    assert_close(matrix(windowed.add(v, 0.1)), matrix(dense.add(v, 0.1)), rtol=1e-10, atol=1e-10)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), dimension=st.integers(1, 20))
def test_the_largest_entry_lies_on_the_diagonal(seed, dimension):
    """The stabilizer looks at the diagonal only."""
    positive_definite = reference.random_spd(dimension, torch.Generator().manual_seed(seed))
    assert DenseInverse(positive_definite).diagonal().amax() == positive_definite.abs().max()


@pytest.mark.parametrize("window", [None, 7])
def test_products_from_both_sides_are_those_of_the_matrix(window):
    inverse = run("sherman_morrison", window)
    other = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert_close(inverse.matmul(other), matrix(inverse) @ other)
    assert_close(inverse.matmul(other[:, 0]), matrix(inverse) @ other[:, 0])
    assert_close(inverse.rmatmul(other.T), other.T @ matrix(inverse))


@pytest.mark.parametrize("window", [None, 7])
def test_a_factor_read_from_its_state_is_the_same(window):
    inverse = run("released", window)
    restored = inverses.from_state({"other": torch.ones(1), **inverse.state("left")}, "left")
    assert type(restored) is type(inverse)
    assert_close(tuple(restored), tuple(inverse), rtol=0, atol=0)


def test_precondition_is_the_kronecker_product():
    left, right = (reference.random_spd(d, torch.Generator().manual_seed(d)) for d in (3, 5))
    grad = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    update = inverses.precondition(DenseInverse(left), grad, DenseInverse(right))
    assert_close(update, reference.kron_precondition(left, grad, right))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), rule=st.sampled_from(RULES), window=st.sampled_from([None, 5]))
def test_the_update_is_a_descent_direction(seed, rule, window):
    """Lemma 3.3: <D, J_L D J_R> > 0 for positive definite factors."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (inverses.identity(d, window, torch.float64, torch.device("cpu")) for d in (4, 6))
    for _ in range(5):
        left = left.update(rule, torch.randn(4, generator=generator, dtype=torch.float64), 0.9)
        right = right.update(rule, torch.randn(6, generator=generator, dtype=torch.float64), 0.9)
    grad = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    assert (grad * inverses.precondition(left, grad, right)).sum() > 0
