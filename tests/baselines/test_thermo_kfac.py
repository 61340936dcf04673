"""Truth: dense solves, the law of the Ornstein-Uhlenbeck process in closed form, and its simulation."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from baselines import KAISA
from baselines.kfac._analog import drawn_mean, gaussian, mean_variance, rounded, simulated_mean
from baselines.kfac.thermo_kfac import ThermoKFAC
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.method import LayerState
from tests.support.matrices import random, spd

SHAPE = LayerShape(3, 5)
ONE = torch.tensor(1)


def refreshed(**options: Any) -> tuple[ThermoKFAC, LayerState]:
    method = ThermoKFAC(**options)
    state = method.initial_state(SHAPE, torch.float64, torch.device("cpu"))
    method.accumulate(state, Captured(2 * spd(5, 1), 2 * spd(3), torch.tensor(2.0)), 0)
    method.refresh(state, 0)
    return method, state


def test_without_noise_and_rounding_it_is_kfac_with_inverses():
    method, state = refreshed(bits=None, inverse_temperature=1e36, damping=0.2)
    kfac = KAISA(compute_method="inverse", damping=0.2)
    other = kfac.initial_state(SHAPE, torch.float64, torch.device("cpu"))
    kfac.accumulate(other, Captured(2 * spd(5, 1), 2 * spd(3), torch.tensor(2.0)), 0)
    kfac.refresh(other, 0)
    grad = random(*SHAPE)
    assert_close(method.precondition(state, grad), kfac.precondition(other, grad), rtol=1e-12, atol=1e-12)


def test_the_variance_of_a_mean_is_that_of_the_stationary_process():
    """Truth: the double sum of the autocovariance exp(-lambda |s - t|) / (beta lambda) over a fine grid of times."""
    value, beta, duration, points = 0.7, 50.0, 4.0, 2000
    times = torch.linspace(0, duration, points, dtype=torch.float64)
    covariance = torch.exp(-value * (times[:, None] - times).abs()) / (beta * value)
    weights = torch.full((points,), 1 / (points - 1), dtype=torch.float64)
    weights[[0, -1]] /= 2
    found = mean_variance(torch.tensor([value]).double(), beta, torch.tensor(duration).double())
    assert_close(found[0], weights @ covariance @ weights, rtol=1e-5, atol=0)


def test_drawn_means_have_their_law():
    """The columns are independent: their mean is the solution, their covariance Q diag(variance) Q^T."""
    values, vectors = torch.linalg.eigh(spd(3))
    duration = torch.tensor(5.0).double()
    target = random(3, 1).expand(3, 40000)
    drawn = drawn_mean(values, vectors, target, 4.0, duration, ONE)
    assert_close(drawn.mean(1), torch.linalg.solve(spd(3), target[:, 0]), rtol=0, atol=0.01)
    truth = (vectors * mean_variance(values, 4.0, duration)) @ vectors.T
    assert_close(torch.cov(drawn), truth, rtol=0.05, atol=0.002)


def test_a_simulation_has_the_mean_and_nearly_the_variance_of_the_law():
    """Truth: the law over the same time; a step of 0.1 / lambda_max widens the process a little."""
    values, vectors = torch.linalg.eigh(spd(3))
    steps, target = 400, random(3, 1).expand(3, 2000)
    simulated = simulated_mean((vectors * values) @ vectors.T, values[-1], target, 4.0, steps, ONE)
    assert_close(simulated.mean(1), torch.linalg.solve(spd(3), target[:, 0]), rtol=0, atol=0.02)
    variance = mean_variance(values, 4.0, steps * 0.1 / values[-1])
    assert_close((vectors.T @ simulated).var(1), variance, rtol=0.12, atol=0)


def test_a_simulation_without_noise_is_richardsons_iteration():
    """Truth: x - R^-1 b shrinks by 1 - 0.1 lambda / lambda_max a step; the mean over the last three of six."""
    matrix, target = torch.diag(torch.tensor([1.0, 4.0])).double(), torch.tensor([[3.0], [8.0]]).double()
    found = simulated_mean(matrix, torch.tensor(4.0).double(), target, 1e36, 3, ONE)
    for row, (value, b) in enumerate(((1.0, 3.0), (4.0, 8.0))):
        errors = [(b / 4 - b / value) * (1 - 0.1 * value / 4) ** step for step in (4, 5, 6)]
        assert float(found[row, 0]) == pytest.approx(b / value + sum(errors) / 3, rel=1e-9)


def test_rounding_is_to_the_nearest_level_and_symmetric():
    numbers = torch.tensor([1.0, -0.4, 0.2, 0.0], dtype=torch.float64)
    assert_close(rounded(numbers, 3), torch.tensor([3, -1, 1, 0]).double() / 3)
    assert_close(rounded(-numbers, 3), -rounded(numbers, 3))
    assert rounded(numbers, None) is numbers
    assert_close(rounded(torch.zeros(2), 8), torch.zeros(2))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_rounded_factor_that_is_not_definite_is_raised_until_it_is(bits):
    """A nearly singular factor of width 64: its smallest eigenvalue becomes the damping."""
    direction = random(64, 4)
    factor = direction @ direction.T / 64
    method = ThermoKFAC(damping=1e-3, factor_decay=0.0, bits=bits)
    state = method.initial_state(LayerShape(64, 64), torch.float64, torch.device("cpu"))
    method.accumulate(state, Captured(factor, factor, torch.tensor(1.0)), 0)
    method.refresh(state, 0)
    damped = rounded(factor + 1e-3 * torch.eye(64).double(), bits)
    assert torch.linalg.eigvalsh(damped)[0] < 0
    assert_close(state["left_values"].min(), torch.tensor(1e-3).double())
    assert_close(state["left_shift"], 1e-3 - torch.linalg.eigvalsh(damped)[0])


@pytest.mark.parametrize("steps", [None, 7])
def test_the_state_has_the_simulated_time_of_all_columns(steps):
    method, state = refreshed(trajectory_steps=steps, duration=11.0)
    for _ in range(2):
        method.precondition(state, random(*SHAPE))
    left, right = state["left_values"], state["right_values"]
    once = 5 * 11 / left[0] + 3 * 11 / right[0] if steps is None else 1.4 * (5 / left[-1] + 3 / right[-1])
    assert_close(state["simulated_time"], 2 * once)


def test_each_solve_has_noise_of_its_own_and_a_step_that_is_not_finite_uses_none():
    method, state = refreshed(bits=None, inverse_temperature=1.0)
    grad = random(*SHAPE)
    first, second = method.precondition(state, grad), method.precondition(state, grad)
    assert not torch.allclose(first, second)
    before = dict(state)
    assert not method.precondition(state, torch.full(SHAPE, torch.inf).double()).isfinite().any()
    assert_close(state, before)


def test_a_gradient_of_zero_stays_zero():
    method, state = refreshed()
    assert_close(method.precondition(state, torch.zeros(SHAPE).double()), torch.zeros(SHAPE).double())


def test_noise_is_normal_and_streams_are_apart():
    """Moments of 200,000 numbers, and of their products with those of the next stream."""
    like = torch.empty(200_000, dtype=torch.float64)
    one, other = gaussian(like, ONE), gaussian(like, ONE + 1)
    moments = torch.stack([one.mean(), one.square().mean(), one.pow(3).mean(), one.pow(4).mean(), (one * other).mean()])
    assert_close(moments, torch.tensor([0, 1, 0, 3, 0]).double(), rtol=0, atol=0.06)
    assert torch.equal(gaussian(like, ONE), one)
    assert float((one < 1).double().mean()) == pytest.approx(0.5 + 0.6826895 / 2, abs=0.004)
    assert exp(-9) > float((one.abs() > 4.2).double().mean())
