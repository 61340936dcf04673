"""Truth: dense damped systems in float64, HyLo with all rows, KFAC on the same rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import HyLo, method_class
from baselines.kfac.cgfac import CGFAC, block_product, conjugate_gradients, kron_product
from mkor_core import Preconditioner
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.method import LayerState
from tests.support import reference
from tests.support.matrices import random

SHAPE = LayerShape(3, 5)


def accumulated(number: int, **options: Any) -> tuple[CGFAC, LayerState, Tensor, Tensor]:
    """Return a method, its state, and the rows X and G, the latter scaled by their number."""
    x, g = random(number, SHAPE.d_in), random(number, SHAPE.d_out, seed=1)
    method = CGFAC(**options)
    state = method.initial_state(SHAPE, torch.float64, torch.device("cpu"))
    method.accumulate(state, Captured(x, g / number, torch.tensor(float(number))), 0)
    return method, state, x, g


def dense(operator: str, x: Tensor, g: Tensor) -> Tensor:
    """Return M as a matrix on row-stacked V."""
    if operator == "kron":
        return torch.kron(g.T @ g / len(g), x.T @ x / len(x))
    rows = torch.stack([torch.outer(g_i, x_i).flatten() for g_i, x_i in zip(g, x, strict=True)])
    return rows.T @ rows / len(x)


@pytest.mark.parametrize("number", [2, 9])
@pytest.mark.parametrize("operator", ["kron", "block"])
def test_the_update_solves_the_dense_damped_system(operator, number):
    """With fewer rows than outputs and with more."""
    method, state, x, g = accumulated(number, operator=operator, damping=0.3, tolerance=1e-14, iterations=60)
    grad = random(*SHAPE, seed=2)
    truth = torch.linalg.solve(dense(operator, x, g) + 0.3 * torch.eye(15).double(), grad.flatten())
    assert_close(method.precondition(state, grad).flatten(), truth, rtol=1e-12, atol=1e-12)


def test_kron_is_kfac_without_memory():
    method, state, x, g = accumulated(9, damping=0.03, tolerance=1e-15, iterations=200)
    grad = random(*SHAPE, seed=2)
    kfac = method_class("kaisa")(damping=0.03, factor_decay=0.0)
    other = kfac.initial_state(SHAPE, torch.float64, torch.device("cpu"))
    kfac.accumulate(other, Captured(x.T @ x / 9, g.T @ g / 9, torch.tensor(1.0)), 0)
    kfac.refresh(other, 0)
    value = method.precondition(state, grad)
    assert_close(value, kfac.precondition(other, grad), rtol=1e-10, atol=1e-11)
    assert_close(value, reference.kfac_solve(g.T @ g / 9, grad, x.T @ x / 9, 0.03), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_block_is_hylo_with_all_rows(kind):
    """On a model: HyLo's kernel has 1e-10 beside the damping."""
    results = []
    for method in (HyLo(sample_fraction=1.0, damping=0.1), CGFAC(operator="block", damping=0.1, tolerance=1e-14)):
        torch.manual_seed(0)
        layer = nn.Linear(4, 3) if kind == "linear" else nn.Conv2d(1, 3, 2)
        inputs = random(6, 4) if kind == "linear" else random(6, 1, 3, 3)
        model = nn.Sequential(layer).double()
        preconditioner = Preconditioner(model, method)
        model(inputs).square().mean().backward()
        preconditioner.step()
        results.append([parameter.grad for parameter in model.parameters()])
    assert_close(results[1], results[0], rtol=1e-7, atol=1e-9)


@given(seed=st.integers(0, 2**31), iterations=st.integers(1, 6), damping=st.floats(1e-6, 10.0))
def test_any_truncation_is_a_direction_of_descent(seed, iterations, damping):
    x, g, grad = random(4, 5, seed=seed), random(4, 3, seed=seed + 1), random(3, 5, seed=seed + 2)
    for product in (kron_product, block_product):
        found = conjugate_gradients(lambda v, p=product: p(x, g, v), grad, damping, 0.0, iterations)
        assert float((found.value * grad).sum()) > 0


def test_the_block_of_n_rows_is_solved_in_n_plus_1_iterations():
    x, g, grad = random(3, 5), random(3, 4, seed=1), random(4, 5, seed=2)
    found = conjugate_gradients(lambda v: block_product(x, g, v), grad, 0.1, 1e-12, 100)
    assert found.iterations == 4
    assert found.residual < 1e-12


@pytest.mark.parametrize(("tolerance", "iterations"), [(0.0, 3), (0.2, 100)])
def test_the_state_has_the_iterations_and_the_true_residual(tolerance, iterations):
    method, state, x, g = accumulated(9, damping=0.1, tolerance=tolerance, iterations=iterations)
    grad = random(*SHAPE, seed=2)
    value = method.precondition(state, grad)
    residual = grad - (dense("kron", x, g) @ value.flatten()).view(3, 5) - 0.1 * value
    assert_close(state["residual"], residual.norm() / grad.norm())
    if tolerance:
        assert state["residual"] <= tolerance
        shorter = CGFAC(damping=0.1, tolerance=0.0, iterations=int(state["iterations"]) - 1)
        shorter.precondition(state, grad)
        assert state["residual"] > tolerance
    else:
        assert state["iterations"] == iterations


def test_masked_iterations_give_what_stopping_gives(monkeypatch):
    """A device other than a CPU does not stop."""
    x, g, grad = random(9, 5), random(9, 3, seed=1), random(3, 5, seed=2)
    stopped = conjugate_gradients(lambda v: kron_product(x, g, v), grad, 0.1, 0.2, 30)
    calls: list[None] = []

    class Elsewhere(Tensor):
        device = torch.device("meta")

    def product(value: Tensor) -> Tensor:
        calls.append(None)
        return kron_product(x, g, value)

    monkeypatch.setattr(torch, "zeros", lambda *shape, dtype, device: torch.tensor(0, dtype=dtype))
    masked = conjugate_gradients(product, grad.as_subclass(Elsewhere), 0.1, 0.2, 30)
    assert len(calls) == 30 > int(stopped.iterations)
    assert_close([part.as_subclass(Tensor) for part in masked], [*stopped], rtol=0, atol=0)


def test_a_gradient_of_zero_and_one_that_is_not_finite():
    method, state, *_ = accumulated(4)
    assert_close(method.precondition(state, torch.zeros(SHAPE).double()), torch.zeros(SHAPE).double())
    assert (state["iterations"], state["residual"]) == (0, 0)
    method.precondition(state, random(*SHAPE))
    before = dict(state)
    assert method.precondition(state, torch.full(SHAPE, torch.nan).double()).isnan().all()
    assert_close(state, before)
