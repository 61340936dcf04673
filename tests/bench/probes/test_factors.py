"""The factors probe against dense matrices, exact cosines, and the factors of a training."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor

from baselines import build
from mkor_core.maths.inverses import WindowedInverse
from tests.support.small_models import autoencoder, images, tokens
from workflow.bench.probes import factors
from workflow.bench.probes._models import ProbeModel
from workflow.bench.probes._optimizers import optimizers
from workflow.bench.probes.factors import VECTORS, Row, direction_change, spectrum

STEPS = (0, 5, 25)


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
    assert spectrum(inverse) == pytest.approx(tuple(map(float, expected)), rel=1e-12)


def test_one_column_is_the_whole_difference_from_the_identity():
    assert spectrum(window(2, 5)).leading == pytest.approx(1)
    untouched = window(2, 5)._replace(weights=torch.zeros(2, dtype=torch.float64))
    assert spectrum(untouched).removed == 0
    assert math.isnan(spectrum(untouched).leading)


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


@pytest.mark.parametrize("model", [images(), tokens(), autoencoder()], ids=lambda model: model.name)
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
