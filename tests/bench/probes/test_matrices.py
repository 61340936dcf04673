"""Probes of trained models' matrices, against dense matrices, known eigenvalues and the factors of a training."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from baselines import build
from mkor_core.maths.inverses import WindowedInverse
from tests.support.small_models import autoencoder, images, tokens
from workflow.bench.probes import factors, rank1_error, spectra
from workflow.bench.probes._models import ProbeModel, optimizers
from workflow.bench.probes.factors import VECTORS, Row, direction_change
from workflow.bench.probes.rank1_error import Moment, errors, leading

STEPS = (0, 5, 25)
EVERY_MODEL = pytest.mark.parametrize("model", [images(), tokens(), autoencoder()], ids=lambda model: model.name)


def window(columns: int, dimension: int) -> WindowedInverse:
    """Return ``2.5 I - U diag(s) U^T`` of random columns, the last of which is not in use."""
    generator = torch.Generator().manual_seed(columns)
    rows = torch.randn(columns, dimension, generator=generator, dtype=torch.float64) / dimension
    weights = torch.rand(columns, generator=generator, dtype=torch.float64)
    weights[-1] = 0
    scale = torch.tensor(2.5, dtype=torch.float64)
    return WindowedInverse(rows, weights, scale, torch.zeros_like(scale))


@pytest.mark.parametrize(("columns", "dimension"), [(2, 7), (4, 9), (9, 4)])
def test_the_spectrum_is_that_of_the_dense_matrix(columns: int, dimension: int):
    """Truth: the eigenvalues of J itself, and those of c I - J."""
    inverse = window(columns, dimension)
    values = torch.linalg.eigvalsh(inverse.to_matrix())
    taken = torch.linalg.eigvalsh(inverse.scale * torch.eye(dimension, dtype=torch.float64) - inverse.to_matrix())
    expected = (2.5, values[0], values.median(), values[-1], taken.sum() / (2.5 * dimension), taken[-1] / taken.sum())
    assert factors.spectrum(inverse) == pytest.approx(tuple(map(float, expected)), rel=1e-12)


def test_one_column_is_the_whole_difference_from_the_identity():
    assert factors.spectrum(window(2, 5)).leading == pytest.approx(1)
    untouched = window(2, 5)._replace(weights=torch.zeros(2, dtype=torch.float64))
    assert factors.spectrum(untouched).removed == 0
    assert math.isnan(factors.spectrum(untouched).leading)


@pytest.mark.parametrize("angle", [1.2, 1e-3, 1e-9, 0.0])
def test_changes_far_below_rounding_are_resolved(angle: float):
    """Truth: 1 - cos(angle) = 2 sin(angle / 2)^2, which is 5e-19 at 1e-9."""
    change = direction_change(
        3 * torch.tensor([[math.cos(angle), math.sin(angle)]]).double(), torch.eye(2)[:1].double()
    )
    assert change == pytest.approx(2 * math.sin(angle / 2) ** 2, rel=1e-6, abs=0)


def test_no_gradient_has_no_direction():
    assert math.isnan(direction_change(torch.zeros(2, 2), torch.zeros(2, 2)))


def trained(model: ProbeModel) -> dict[tuple[int, str, str], tuple[Tensor, float]]:
    """Return the training's own J and the cosine of its side, by step, layer and side; both in float32."""
    torch.manual_seed(0)
    network = model.data.model(0)
    (mkor,) = optimizers(model, model.lr, ["mkor"])
    optimizer, preconditioner = build(mkor.method, network, mkor.hyperparameters, exclude=model.data.exclude)
    assert preconditioner is not None
    found = {}
    for step, batch in enumerate(islice(model.data.batches(0), max(STEPS) + 1)):
        optimizer.zero_grad()
        model.data.loss(network, batch).backward()
        preconditioner.compare_next_step()
        optimizer.step()
        if step in STEPS:
            states = preconditioner.state_dict()["layers"]
            for layer, comparison in preconditioner.comparisons().items():
                for side, cosine in comparison.by_side.items():
                    inverse = states[layer][side] * states[layer][f"{side}_scale"]
                    found[step, layer, side] = inverse.clone(), cosine
    return found


@EVERY_MODEL
def test_the_papers_factors_are_those_of_the_training(model: ProbeModel):
    """Truth: the dense float32 factors of the same training, and the cosines that it finds itself."""
    truth = trained(model)
    rows = {
        (row.step, row.layer, row.side): row
        for row in factors.follow(model, 0, STEPS, "cpu", "here")
        if row.vectors == "mkor"
    }
    assert rows.keys() == truth.keys()
    for key, (inverse, cosine) in truth.items():
        row, values = rows[key], torch.linalg.eigvalsh(inverse.double())
        found = row.smallest, row.median, row.largest
        assert found == pytest.approx((values[0].item(), values.median().item(), values[-1].item()), rel=1e-3)
        assert row.direction_change == pytest.approx(1 - cosine, rel=1e-2, abs=1e-6)
        assert row.dimension == len(inverse)


def test_kinds_of_vectors_differ_in_the_length_of_g_alone():
    rows = list(factors.follow(autoencoder(), 0, (5, 15), "cpu", "here"))
    left: dict[tuple[int, str], dict[str, Row]] = {}
    for row in rows:
        if row.side == "left":
            left.setdefault((row.step, row.layer), {})[row.vectors] = row
        else:
            assert row.vectors == "mkor"
    assert {(row.step, row.layer) for row in rows if row.side == "right"} == left.keys()
    for kinds in left.values():
        assert list(kinds) == list(VECTORS)
        assert kinds["mkor_scaled"].vector_norm == pytest.approx(65536 * kinds["mkor"].vector_norm)
        assert kinds["mkor_normalized"].vector_norm == pytest.approx(3)
        changes = {vectors: row.direction_change for vectors, row in kinds.items()}
        assert changes["mkor"] < 1e-3 * changes["mkor_normalized"] < 1e-2 * changes["mkor_scaled"]


def test_vectors_of_a_scaled_loss_are_unscaled():
    """Truth: float32. A D that kept its scale would make most of g look like rounding noise."""
    plain, scaled = (
        list(factors.follow(replace(images(), precision=precision), 0, (5,), "cpu", "here"))
        for precision in ("float32", "float16")
    )
    assert [row.vector_norm for row in scaled] == pytest.approx([row.vector_norm for row in plain], rel=1e-2)


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


@EVERY_MODEL
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


def test_extreme_eigenvalues_are_found():
    """Truth: a rotated diagonal."""
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    result = spectra.spectrum(
        rotation @ torch.diag(torch.tensor([0.5, 1, 2, 4, 8.0], dtype=torch.float64)) @ rotation.T
    )
    assert result.smallest == pytest.approx(0.5)
    assert result.largest == pytest.approx(8.0)
    assert result.condition_number == pytest.approx(16.0)
    assert result.resolution == pytest.approx(5 * 2**-23 * 8)


def test_a_singular_factor_is_infinitely_ill_conditioned():
    assert spectra.spectrum(torch.diag(torch.tensor([0.0, 1.0]))).condition_number == math.inf
    assert spectra.spectrum(torch.diag(torch.tensor([-1e-9, 1.0]))).condition_number == math.inf


@EVERY_MODEL
def test_no_eigenvalue_lies_below_the_remaining_weight_of_the_identity(model):
    """Truth: 0.95^t I plus a positive semi-definite part has no smaller eigenvalue."""
    rows = list(spectra.follow(model, 0, (0, 4), "cpu", "here"))
    running = [row for row in rows if row.factor == "running"]
    assert {row.step for row in running} == {0, 4}
    for row in running:
        assert row.start_weight == pytest.approx(0.95 ** (row.step + 1))
        assert row.smallest >= row.start_weight - row.resolution
    batch = [row for row in rows if row.factor == "batch"]
    assert len(batch) == len(running)
    assert {row.start_weight for row in batch} == {0.0}


def test_the_first_running_factor_is_the_identity_and_the_batch():
    """Truth: 0.95 I + 0.05 A_batch has 0.95 plus 0.05 times the batch's largest eigenvalue."""
    running, batch = (row for row in spectra.follow(images(), 0, (0,), "cpu", "here") if row.layer == "0")
    assert (running.factor, batch.factor) == ("running", "batch")
    assert running.largest == pytest.approx(0.95 + 0.05 * batch.largest, rel=1e-5)
