"""RS-KFAC and B-KFAC. Truth: dense moments and inverses, which a full rank equals; the sum before Brand's crop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines.kfac._low_rank import Pairs, brand, leading, randomized_eigh, randomized_svd
from baselines.kfac.b_kfac import BKFAC
from baselines.kfac.rs_kfac import RSKFAC
from baselines.parts.matrices import shortened
from mkor_core import Method, Preconditioner
from mkor_core.method import plain_hyperparameters
from tests.support.matrices import random
from tests.support.reference import backward, joined


def matrix_of(pairs: Pairs) -> Tensor:
    return (pairs.basis * pairs.values) @ pairs.basis.T


def step(layer: Any, inputs: Tensor, method: Method, steps: int = 1) -> tuple[Tensor, Tensor, Preconditioner, Tensor]:
    """Return D, V and the preconditioner after some steps on the same batch, and the gradient rows of the output."""
    preconditioner = Preconditioner(layer, method)
    for _ in range(steps):
        grad, _, g = backward(layer, inputs)
        preconditioner.step()
    return grad, joined(layer), preconditioner, g


def linear(d_in: int = 4, d_out: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(d_in, d_out).double()


def with_ones(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_ones(len(rows), 1)], 1)


@pytest.mark.parametrize("decompose", [randomized_svd, randomized_eigh])
def test_a_sketch_finds_a_matrix_of_low_rank(decompose):
    rows = random(5, 40)
    found = decompose(rows.T @ rows, 5, 2, 0)
    assert_close(matrix_of(found), rows.T @ rows)
    assert_close(found.basis.T @ found.basis, torch.eye(5).double())


@pytest.mark.parametrize("decompose", [randomized_svd, randomized_eigh])
def test_a_sketch_finds_the_leading_eigenpairs(decompose):
    """Those of a spectrum that falls by a factor of two."""
    basis = torch.linalg.qr(random(40, 40)).Q
    values = 2.0 ** -torch.arange(40, dtype=torch.float64)
    found = decompose((basis * values) @ basis.T, 6, 3, 0)
    assert_close(found.values, values[:6], rtol=1e-6, atol=0)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    decompose(basis, 3, 1, 0)
    assert_close(torch.rand(2), expected, rtol=0, atol=0)  # the global generator


@pytest.mark.parametrize("columns", [2, 5, 9])
def test_brands_update_is_exact_before_the_crop_and_the_best_after_it(columns):
    """9 columns are more than the matrix has left, which takes the dense form."""
    old = leading(random(10, 3) @ random(3, 10, seed=1), 3)
    y = random(10, columns, seed=2)
    truth = 0.7 * matrix_of(old) + 0.3 * y @ y.T
    whole = brand(old, y, 0.7, 10)
    assert_close(matrix_of(whole), truth)
    assert_close(matrix_of(brand(old, y, 0.7, 3)), matrix_of(leading(truth, 3)))


def test_the_inverse_along_all_directions_is_the_dense_one():
    rows, right = random(9, 6), random(6, 4)
    moment, damping = rows.T @ rows, torch.tensor(0.3).double()
    truth = torch.linalg.solve(moment + 0.3 * torch.eye(6).double(), right)
    assert_close(leading(moment, 6).solve(right, damping, damping), truth)
    kept = leading(moment, 2)
    truth = torch.linalg.solve(matrix_of(kept) + 0.3 * torch.eye(6).double(), right)
    assert_close(kept.solve(right, damping, damping), truth)


@pytest.mark.parametrize("sketch", ["rsvd", "sre"])
def test_an_update_of_full_rank_is_kfacs(sketch):
    """Damped by a share of the largest eigenvalue of each factor, with ``C = N G^T G``."""
    layer, inputs = linear(), random(7, 4)
    method = RSKFAC(sketch=sketch, factor_decay=0.8, update_clip=None)
    grad, update, _, g = step(layer, inputs, method)
    x = with_ones(inputs)
    a = 0.8 * torch.eye(5).double() + 0.2 * x.T @ x / 7
    c = 0.8 * torch.eye(3).double() + 0.2 * 7 * g.T @ g
    damped = [m + 0.1 * torch.linalg.eigvalsh(m)[-1] * torch.eye(len(m)).double() for m in (c, a)]
    assert_close(update, torch.linalg.solve(damped[0], grad) @ torch.linalg.inv(damped[1]))


def test_the_thesis_code_starts_from_0_and_damps_more():
    layer, inputs = linear(), random(7, 4)
    method = RSKFAC(factor_decay=0.8, factor_update_period=1, inverse_update_period=1, update_clip=None)
    method = RSKFAC(**{**plain_hyperparameters(method), "thesis_code": True, "rank": 2})
    grad, update, _, g = step(layer, inputs, method, steps=2)
    x, truth = with_ones(inputs), grad
    for moment, side in ((7 * g.T @ g, 0), (x.T @ x / 7, 1)):
        factor = (1 - 0.8**2) * moment
        kept = leading(factor, 2)
        values = torch.full((len(factor),), float(kept.values[-1]), dtype=torch.float64)
        values[:2] = kept.values
        vectors = torch.linalg.eigh(factor).eigenvectors.flip(1)
        inverse = vectors @ torch.diag(1 / (values + 0.1 * kept.values[0] + 0.8**2)) @ vectors.T
        truth = truth @ inverse if side else inverse @ truth
    assert_close(update, truth)


METHODS = (RSKFAC(factor_decay=0.0), BKFAC(factor_decay=0.0, rank=50))


@pytest.mark.parametrize("method", METHODS, ids=["rs", "b"])
def test_a_convolutions_moments_are_those_of_its_locations(method):
    """``A = X^T X / (B L^2)`` and ``C = B L G^T G``, B examples with L locations."""
    torch.manual_seed(0)
    layer, images = nn.Conv2d(2, 3, 2).double(), random(5, 2, 4, 4)
    _, _, preconditioner, g = step(layer, images, method)
    x = with_ones(nn.functional.unfold(images, 2).transpose(1, 2).flatten(0, 1))
    state = preconditioner.state_dict()["layers"][""]
    for side, truth in (("right", x.T @ x / 5 / 9**2), ("left", 45 * g.T @ g)):
        assert_close(matrix_of(Pairs(state[f"{side}_vectors"], state[f"{side}_values"])), truth)


def test_b_kfac_with_all_pairs_is_kfac_from_0():
    """Over several updates; it keeps no matrix as large as a factor."""
    layer, inputs = linear(40, 30), random(6, 40)
    method = BKFAC(factor_decay=0.6, factor_update_period=1, rank=20, update_clip=None)
    grad, update, preconditioner, _ = step(layer, inputs, method, steps=1)
    output = layer(inputs)
    g = 2 * output.detach() / output.numel()
    x = with_ones(inputs)
    a, c = 0.4 * x.T @ x / 6, 0.4 * 6 * g.T @ g
    damped = [m + 0.1 * torch.linalg.eigvalsh(m)[-1] * torch.eye(len(m)).double() for m in (c, a)]
    assert_close(update, torch.linalg.solve(damped[0], grad) @ torch.linalg.inv(damped[1]))
    shapes = {tuple(tensor.shape) for tensor in preconditioner.state_dict()["layers"][""].values()}
    assert shapes == {(), (20,), (41, 20), (30, 20)}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_the_thesis_code_of_b_kfac_weighs_the_bias_by_the_rows(kind, has_bias):
    """By 7 rows; by 45 rows and 9 locations of 5 images. A layer without a bias is as it is."""
    state = []
    for thesis in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(4, 3, bias=has_bias) if kind == "linear" else nn.Conv2d(2, 3, 2, bias=has_bias)
        inputs = random(7, 4) if kind == "linear" else random(5, 2, 4, 4)
        _, _, preconditioner, _ = step(layer.double(), inputs, BKFAC(factor_decay=0.0, thesis_code=thesis))
        saved = preconditioner.state_dict()["layers"][""]
        state.append(matrix_of(Pairs(saved["right_vectors"], saved["right_values"])))
    share = (7 if kind == "linear" else 45 * 9) if has_bias else 1
    assert_close(state[1][-1, -1], share * state[0][-1, -1])
    assert_close(state[1][:-1, :-1], state[0][:-1, :-1])


def test_rows_beyond_the_limit_are_drawn_without_bias():
    """Equal rows, of which any choice has the same moments."""
    inputs = random(1, 4).expand(8, 4)
    few, all_rows = (step(linear(), inputs, BKFAC(max_rows=rows, factor_decay=0.0))[1] for rows in (3, 8))
    assert_close(few, all_rows)


def test_an_overwritten_sketch_is_that_of_the_dense_factor():
    layer, inputs = linear(12, 3), random(4, 12)
    chosen: dict[str, Any] = {"rank": 3, "factor_update_period": 1, "factor_decay": 0.5}
    _, _, plain, _ = step(layer, inputs, BKFAC(**chosen), steps=1)
    _, _, corrected, _ = step(layer, inputs, BKFAC(**chosen, overwrite_period=1), steps=1)
    saved, dense = (one.state_dict()["layers"][""] for one in (plain, corrected))
    assert "right" not in saved
    found = Pairs(dense["right_vectors"], dense["right_values"])
    assert_close(matrix_of(found), matrix_of(leading(dense["right"], 3)), rtol=1e-5, atol=1e-8)


def test_updates_are_clipped_to_a_root_mean_square():
    assert_close(shortened(torch.full((2, 2), 3.0), 0.5), torch.full((2, 2), 0.5))
    assert_close(shortened(torch.full((2, 2), 0.3), 0.5), torch.full((2, 2), 0.3))
    assert_close(shortened(torch.zeros(2, 2), 0.5), torch.zeros(2, 2))
    assert_close(shortened(torch.full((2, 2), 3.0), None), torch.full((2, 2), 3.0))
