"""Truth: dense matrices of the kept rows' gradients, and the unpivoted QR of HyLo's KID."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import HyLo
from baselines.natural.hylo import interpolated_middle, kernel, sample_without_replacement
from mkor_core import Preconditioner
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.method import LayerState
from tests.support import reference

DAMPING = 1e-3
SHAPE = LayerShape(3, 5)


def rows(number: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda width: torch.randn(number, width, generator=generator, dtype=torch.float64)  # noqa: E731
    return draw(SHAPE.d_in), draw(SHAPE.d_out)


def accumulated(x: Tensor, g: Tensor, **options: Any) -> tuple[HyLo, LayerState]:
    method = HyLo(**options)
    state = method.initial_state(SHAPE, torch.float64, torch.device("cpu"))
    method.accumulate(state, Captured(x, g, torch.tensor(float(len(x)))), 0)
    return method, state


def gradients(x: Tensor, g: Tensor) -> Tensor:
    """Return U, whose columns are the rows' gradients."""
    return torch.stack([torch.outer(row_g, row_x).flatten() for row_x, row_g in zip(x, g, strict=True)], 1)


def middle_by_qr(matrix: Tensor, rank: int, damping: float) -> Tensor:
    """Return M = S^-1 with S = P (E + damping I)^-1 P^T, P = [I, R11^-1 R12], E = [0, Q2 R22] and K = Q R."""
    number = len(matrix)
    q, r = torch.linalg.qr(matrix)
    p = torch.cat([torch.eye(rank).double(), torch.linalg.solve(r[:rank, :rank], r[:rank, rank:])], 1)
    e = torch.cat([torch.zeros(number, rank).double(), q[:, rank:] @ r[rank:, rank:]], 1)
    return (p @ (e + damping * torch.eye(number).double()).inverse() @ p.T).inverse()


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("variant", ["KIS", "KID"])
def test_with_all_rows_the_update_solves_the_damped_system_of_their_gradients(kind, variant):
    """V = (U U^T / n + damping I)^-1 D; the original adds 1e-10 to the damping of the kernel alone."""
    torch.manual_seed(0)
    if kind == "linear":
        model, inputs = nn.Sequential(nn.Linear(4, 3)).double(), torch.randn(6, 4, dtype=torch.float64)
    else:
        model, inputs = nn.Sequential(nn.Conv2d(1, 3, 2, bias=False)).double(), torch.randn(6, 1, 3, 4).double()
    preconditioner = Preconditioner(model, HyLo(variant=variant, sample_fraction=1.0, damping=DAMPING))
    grad, x, g = reference.backward(model[0], inputs)
    x, g = (part.unflatten(0, (len(inputs), -1)).mean(1) for part in (x, g))
    u = gradients(x, g * len(x))
    small = u.T @ u / len(x) + (DAMPING + 1e-10) * torch.eye(len(x)).double()
    truth = (grad.flatten() - u @ torch.linalg.solve(small, u.T @ grad.flatten()) / len(x)) / DAMPING
    preconditioner.step()
    assert_close(reference.joined(model[0]), truth.view_as(grad), rtol=1e-8, atol=1e-10)


def test_interpolation_keeps_the_most_important_rows_and_damps_with_the_residual():
    x, g = rows(8)
    method, state = accumulated(x, g, variant="KID", sample_fraction=0.5, damping=DAMPING)
    scaled = 8 * g
    order = (x.norm(dim=1) * scaled.norm(dim=1)).argsort(descending=True)
    assert_close(state["right"], x[order[:4]])
    assert_close(state["left"], scaled[order[:4]])
    u = gradients(x[order], scaled[order])
    middle = middle_by_qr(u.T @ u, 4, DAMPING + 1e-10)
    u = u[:, :4]
    grad = torch.linspace(-1, 2, 15, dtype=torch.float64)
    truth = (grad - u @ torch.linalg.solve(u.T @ u / 4 + middle, u.T @ grad) / 4) / DAMPING
    assert_close(method.precondition(state, grad.view(3, 5)).flatten(), truth, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_interpolated_middle_is_that_of_the_unpivoted_qr(rank):
    matrix = kernel(*rows(7))
    assert_close(interpolated_middle(matrix, rank, 0.1), middle_by_qr(matrix, rank, 0.1), rtol=1e-9, atol=1e-9)


def test_the_interpolated_middle_of_a_kernel_without_rank_is_finite():
    """Rows of a layer that learns nothing: the kernel is 0, the weights are 0, and M is the damping."""
    middle = interpolated_middle(torch.zeros(5, 5, dtype=torch.float64), 2, 0.1)
    assert_close(middle, 0.1 * torch.eye(2, dtype=torch.float64))


def test_importance_sampling_never_takes_rows_without_a_gradient():
    """A row's importance is |x|^2 |g|^2; two of ten rows have any."""
    x, g = rows(10)
    x[[0, 2, 4, 6]] = 0
    g[[1, 3, 5, 7]] = 0
    _, state = accumulated(x, g, sample_fraction=0.2)
    assert {tuple(row) for row in state["right"].tolist()} == {tuple(row) for row in x[8:].tolist()}


@pytest.mark.parametrize(("variant", "varies"), [("KIS", True), ("KID", False)])
def test_only_sampling_keeps_other_rows_at_each_update(variant, varies):
    x, g = rows(10)
    method, state = accumulated(x, g, variant=variant, sample_fraction=0.5)
    kept = []
    for step in range(10):
        method.accumulate(state, Captured(x, g, torch.tensor(10.0)), step)
        kept.append(tuple(state["right"][:, 0].tolist()))
    assert (len(set(kept)) > 1) == varies


@pytest.mark.parametrize(("fraction", "kept"), [(0.01, 1), (0.1, 1), (0.39, 3), (1.0, 10)])
def test_the_number_of_kept_rows_is_the_share_rounded_down_but_not_0(fraction, kept):
    method, state = accumulated(*rows(10), sample_fraction=fraction)
    assert state["right"].shape == (kept, 5)
    assert state["left"].shape == (kept, 3)
    assert state["kernel_inverse"].shape == (kept, kept)
    assert method.has_statistics(state)


def test_rows_are_drawn_in_proportion_to_their_weights_and_only_once():
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0])
    draws = torch.cat([sample_without_replacement(weights, 1, seed) for seed in range(2000)])
    shares = torch.bincount(draws, minlength=4) / 2000
    assert_close(shares, weights / 8, rtol=0, atol=0.03)
    assert sorted(sample_without_replacement(weights, 4, 0).tolist()) == [0, 1, 2, 3]


def test_a_singular_kernel_leaves_the_rows_that_were_kept():
    """Equal rows so large that the damping is lost."""
    method = HyLo(sample_fraction=1.0)
    state = method.initial_state(LayerShape(3, 2), torch.float64, torch.device("cpu"))
    x, g = torch.randn(4, 2).double(), torch.randn(4, 3).double()
    method.accumulate(state, Captured(x, g, torch.tensor(4.0)), 0)
    before = {name: tensor.clone() for name, tensor in state.items()}
    method.accumulate(state, Captured(torch.full_like(x, 2.0**40), torch.full_like(g, 1.0), torch.tensor(4.0)), 10)
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    method.accumulate(state, Captured(2 * x, g, torch.tensor(4.0)), 20)
    assert not torch.equal(state["right"], before["right"])


def test_rows_are_kept_once_a_period():
    method = HyLo(update_period=3)
    assert [method.accumulates(step) for step in range(5)] == [True, False, False, True, False]
    assert [method.refreshes(step) for step in range(5)] == [True, False, False, True, False]


def test_ranks_gather_rows_and_do_not_add_them():
    """There are no shapes of sums."""
    assert HyLo().statistic.gathers_rows
    assert HyLo().statistic.shapes is None
