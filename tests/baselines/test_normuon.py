"""NorMuon. Truth: the polar factor, Muon's own steps, the library's NorMuon."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from baselines import build
from baselines.muon._polar import newton_schulz, polar_factor

# isort: split
from pytorch_optimizer import NorMuon as LibraryNorMuon

from tests.support.matrices import change, random, updates


def test_the_polar_factor_has_singular_values_1_or_0():
    matrix = random(5, 2) @ random(2, 4, seed=1)
    values = torch.linalg.svdvals(polar_factor(matrix, "exact"))
    assert_close(values, torch.tensor([1.0, 1.0, 0.0, 0.0]).double())
    u, _, vt = torch.linalg.svd(random(3, 5), full_matrices=False)
    assert_close(polar_factor(random(3, 5), "exact"), u @ vt)


def test_five_newton_schulz_steps_take_small_singular_values_to_those_of_the_polynomial():
    """The value below 1e-3 are far from 1."""
    start = torch.tensor([1e-2, 3e-3, 1e-3, 3e-4, 1e-4], dtype=torch.float64)
    u, v = torch.linalg.qr(random(6, 6))[0], torch.linalg.qr(random(6, 6, seed=1))[0]
    rest = (1 - start.square().sum()).sqrt()
    matrix = u @ torch.diag(torch.cat([rest[None], start])) @ v.T
    found = (u.T @ newton_schulz(7 * matrix) @ v).diagonal()
    assert_close(found[1:], torch.tensor([0.70, 1.11, 0.47, 0.15, 0.05]).double(), atol=0.01, rtol=0)
    assert_close(newton_schulz(matrix[:4]).T, newton_schulz(matrix[:4].T.contiguous()))


@pytest.mark.parametrize(("shape", "equal"), [((3, 5), True), ((5, 5), True), ((6, 2), False)])
def test_with_the_exact_polar_factor_and_no_tall_matrix_it_is_muon(shape, equal):
    grads = [random(*shape, seed=t) for t in range(4)]
    rows, plain = (updates("normuon", grads, polar="exact", row_decay=decay) for decay in (0.95, None))
    assert all(torch.allclose(one, other) for one, other in zip(rows, plain, strict=True)) == equal


def test_without_row_means_its_steps_are_muons():
    """Truth: baselines/muon/muon.py, which computes in bfloat16."""
    grads = [random(6, 4, seed=t) for t in range(3)]
    truth = updates("muon", grads, weight_decay=0.0, match_adamw_rms=False)
    for one, other in zip(updates("normuon", grads, row_decay=None), truth, strict=True):
        assert (one - other).norm() < 0.05 * other.norm()


@pytest.mark.parametrize(("length", "scale"), [("jordan", "preserve_norm"), ("match_rms", "match_rms")])
def test_its_steps_are_the_librarys(length, scale):
    grads = [random(6, 4, seed=t) for t in range(3)]
    weight = nn.Parameter(torch.zeros(6, 4).double())
    group = {"params": [weight], "use_muon": True}
    library = LibraryNorMuon([group], lr=1.0, weight_decay=0.0, update_scale=scale, use_adjusted_lr=False)
    truth = [change(library, weight, grad) for grad in grads]
    for one, other in zip(updates("normuon", grads, length=length), truth, strict=True):
        assert (one - other).norm() < 0.05 * other.norm()


def test_entries_of_an_update_match_adamws():
    for polar in ("ns5", "exact"):
        (update,) = updates("normuon", [random(6, 4)], length="match_rms", polar=polar)
        assert_close(update.square().mean().sqrt(), torch.tensor(0.2).double())


def test_parameters_outside_the_layers_are_under_adamw():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimizer, _ = build("normuon", model, {"lr": 0.5, "adamw_lr": 0.1})
    rates = {group["lr"]: [parameter.dim() for parameter in group["params"]] for group in optimizer.param_groups}
    assert rates == {0.5: [2], 0.1: [1, 1, 1]}
