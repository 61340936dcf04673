"""The spectra probe against matrices of known eigenvalues, and KFAC's own factors."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.small_models import autoencoder, images, tokens
from workflow.bench.probes import spectra
from workflow.bench.probes.spectra import spectrum


def test_extreme_eigenvalues_are_found():
    """Truth: a rotated diagonal."""
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    result = spectrum(rotation @ torch.diag(torch.tensor([0.5, 1, 2, 4, 8.0], dtype=torch.float64)) @ rotation.T)
    assert result.smallest == pytest.approx(0.5)
    assert result.largest == pytest.approx(8.0)
    assert result.condition_number == pytest.approx(16.0)
    assert result.resolution == pytest.approx(5 * 2**-23 * 8)


def test_a_singular_factor_is_infinitely_ill_conditioned():
    assert spectrum(torch.diag(torch.tensor([0.0, 1.0]))).condition_number == math.inf
    assert spectrum(torch.diag(torch.tensor([-1e-9, 1.0]))).condition_number == math.inf


@pytest.mark.parametrize("model", [images(), tokens(), autoencoder()], ids=lambda model: model.name)
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
