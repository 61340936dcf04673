"""The rank-1 probe against dense eigenvalues and Frobenius norms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.small_models import autoencoder, images, tokens
from workflow.bench.probes import rank1_error
from workflow.bench.probes.rank1_error import Moment, errors, leading


def dense_error(rows: torch.Tensor, approximation: torch.Tensor) -> float:
    moment = rows.T @ rows / len(rows)
    return (torch.linalg.matrix_norm(moment - approximation) / torch.linalg.matrix_norm(moment)).item()


@given(n=st.integers(1, 12), d=st.integers(1, 9), seed=st.integers(0, 1000), shift=st.floats(0, 3))
def test_errors_are_the_dense_ones(n, d, seed, shift):
    """Truth: eigh of the moment, and the norm of the dense difference; n below, at and above d."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=generator, dtype=torch.float64) + shift
    values, vectors = torch.linalg.eigh(rows.T @ rows / n)
    by_name = errors(rows)
    best = dense_error(rows, values[-1] * torch.outer(vectors[:, -1], vectors[:, -1]))
    # A nearly double leading eigenvalue settles late; what is left then is far below what a plot shows.
    assert by_name["best"][0] == pytest.approx(best, abs=2e-3)
    assert by_name["best"][0] >= best - 1e-7
    mean = rows.mean(0)
    assert by_name["mean"][0] == pytest.approx(dense_error(rows, torch.outer(mean, mean)), abs=1e-7)
    assert by_name["best"][0] <= by_name["scaled_mean"][0] + 2e-3
    assert by_name["scaled_mean"][0] <= by_name["mean"][0] + 1e-7


def test_power_iteration_finds_the_leading_eigenpair():
    rows = torch.randn(40, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, 0] *= 3
    values, vectors = torch.linalg.eigh(rows.T @ rows / 40)
    pair = leading(Moment(rows), torch.ones(12, dtype=torch.float64))
    assert pair.value == pytest.approx(values[-1].item(), rel=1e-7)
    assert (pair.vector @ vectors[:, -1]).abs().item() == pytest.approx(1.0, abs=1e-6)
    assert 1 < pair.iterations < rank1_error.ITERATIONS


def test_equal_rows_have_no_error_and_zero_rows_have_no_number():
    row = torch.arange(1.0, 6.0, dtype=torch.float64)
    assert all(error == pytest.approx(0.0, abs=1e-7) for error, _ in errors(row.expand(7, 5)).values())
    assert all(math.isnan(error) for error, _ in errors(torch.zeros(7, 5, dtype=torch.float64)).values())


def test_errors_above_1_are_not_cut_off():
    """Truth: by hand, rows with two opposite directions and a small mean, far from their leading eigenvector.

    Rows (1, e) and (-1, e): M = diag(1, e^2), mean (0, e): the error of the mean is 1 / sqrt(1 + e^4).
    """
    rows = torch.tensor([[1.0, 0.5], [-1.0, 0.5]], dtype=torch.float64)
    assert errors(rows)["mean"][0] == pytest.approx(1 / math.sqrt(1 + 0.5**4))
    assert errors(rows)["best"][0] == pytest.approx(0.25 / math.sqrt(1 + 0.5**4))


@pytest.mark.parametrize("model", [images(), tokens(), autoencoder()], ids=lambda model: model.name)
def test_every_layer_and_side_is_measured_over_training(model):
    rows = list(rank1_error.follow(model, 0, (0, 3), "cpu", "here"))
    assert {row.step for row in rows} == {0, 3}
    assert {row.side for row in rows} == {"activation", "gradient"}
    assert {row.approximation for row in rows} == {"best", "mean", "scaled_mean"}
    layers = {row.layer for row in rows}
    assert len(rows) == 2 * 2 * 3 * len(layers)
    assert len({row.loss for row in rows}) == 2
    for row in rows:
        assert math.isnan(row.error) or row.error >= 0


def test_a_convolution_has_a_row_a_location():
    rows = list(rank1_error.follow(images(batch_size=8), 0, (0,), "cpu", "here"))
    first = next(row for row in rows if row.layer == "0" and row.side == "activation")
    assert (first.kind, first.rows, first.dimension) == ("Conv2d", 8 * 4 * 4, 3 * 9 + 1)


def test_the_same_seed_gives_the_same_numbers():
    first, again = (list(rank1_error.follow(autoencoder(), 0, (0, 2), "cpu", "here")) for _ in range(2))
    assert first == again
