"""Truth: ``torch.kron`` and a dense solve, on factors made from explicit rows."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA
from mkor_core import Preconditioner
from mkor_core.capture.statistics import LayerShape
from mkor_core.engines.clipping import Update, kl_clipped
from tests.support import reference

DAMPING, DECAY = 0.03, 0.9
PERIODS = {"factor_update_period": 1, "inverse_update_period": 2}


def one_layer(kind: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    if kind == "linear":
        return nn.Sequential(nn.Linear(4, 3)).double(), torch.randn(8, 4, generator=generator).double()
    model = nn.Sequential(nn.Conv2d(2, 3, 2, stride=2, padding=1, bias=kind == "convolution")).double()
    return model, torch.randn(5, 2, 5, 5, generator=generator).double()


@pytest.mark.parametrize("kind", ["linear", "convolution", "convolution without bias"])
@pytest.mark.parametrize("method", ["eigen", "inverse"])
def test_the_update_solves_the_damped_kronecker_system(kind, method):
    """Three steps with new factors each, decomposed at the first and third; a convolution has a row per location."""
    model, inputs = one_layer(kind)
    preconditioner = Preconditioner(
        model,
        KAISA(damping=DAMPING, factor_decay=DECAY, kl_clip=None, compute_method=method, **PERIODS),
    )
    c = torch.eye(3).double()
    a = torch.eye(model[0].weight[0].numel() + (model[0].bias is not None)).double()
    for step in range(3):
        grad, x, g = reference.backward(model[0], inputs * (1 + step))
        locations = len(x) // len(inputs)
        a = DECAY * a + (1 - DECAY) * (x / locations).T @ (x / locations) / len(x)
        c = DECAY * c + (1 - DECAY) * (g / locations).T @ (g / locations) / len(g)
        if step % 2 == 0:
            used_a, used_c = a, c
        if method == "eigen":
            truth = reference.kfac_solve(used_c, grad, used_a, DAMPING)
        else:
            damp = lambda matrix: (matrix + DAMPING * torch.eye(len(matrix)).double()).inverse()  # noqa: E731
            truth = reference.kron_precondition(damp(used_c), grad, damp(used_a))
        preconditioner.step()
        assert_close(reference.joined(model[0]), truth, rtol=1e-9, atol=1e-12)


def test_the_factors_can_follow_the_decompositions():
    method = KAISA(factor_update_period=None, inverse_update_period=3)
    assert [step for step in range(7) if method.accumulates(step)] == [0, 3, 6]
    assert [step for step in range(7) if method.refreshes(step)] == [0, 3, 6]


@pytest.mark.parametrize("method", ["eigen", "inverse"])
def test_a_refresh_computes_what_ranks_send_from_factors_that_start_at_i(method):
    """The first state is that of a refresh without statistics."""
    kaisa = KAISA(compute_method=method, damping=DAMPING)
    state = kaisa.initial_state(LayerShape(2, 3), torch.float64, torch.device("cpu"))
    refreshed = {name: tensor.clone() for name, tensor in state.items()}
    versions = {name: tensor._version for name, tensor in refreshed.items()}
    kaisa.refresh(refreshed, 0)
    assert {name for name in state if refreshed[name]._version != versions[name]} == set(kaisa.refreshed)
    grad = torch.arange(6, dtype=torch.float64).view(2, 3)
    assert_close(kaisa.precondition(state, grad), kaisa.precondition(refreshed, grad))
    assert not kaisa.has_statistics(state)


def test_a_refresh_costs_the_cubes_of_both_dimensions():
    assert KAISA().refresh_cost(LayerShape(2, 3)) == 2 * 2 * 2 + 3 * 3 * 3


def test_factors_are_decomposed_at_steps_that_do_not_update_them_too():
    """Step 3 decomposes the factors of step 2."""
    model, inputs = one_layer("linear")
    preconditioner = Preconditioner(model, KAISA(kl_clip=None, factor_update_period=2, inverse_update_period=3))
    for step in range(4):
        reference.backward(model[0], inputs * (1 + step))
        preconditioner.step()
    (state,) = preconditioner.state_dict()["layers"].values()
    for side in ("left", "right"):
        assert_close(state[f"{side}_values"], torch.linalg.eigvalsh(state[side]))


def test_a_singular_factor_keeps_the_inverse_that_it_had():
    """The host does not look whether it is singular. Truth: the inverse of the other factor, by torch."""
    method = KAISA(compute_method="inverse", damping=DAMPING)
    state = method.initial_state(LayerShape(3, 4), torch.float64, torch.device("cpu"))
    before = state["left_inverse"].clone()
    state["left"] = -DAMPING * torch.eye(3).double()
    state["right"] = torch.diag(torch.arange(1.0, 5)).double()
    method.refresh(state, 0)
    assert torch.equal(state["left_inverse"], before)
    assert_close(state["right_inverse"], torch.diag(1 / (torch.arange(1.0, 5).double() + DAMPING)))


def test_negative_eigenvalues_are_clamped():
    method = KAISA(damping=0.5)
    state = method.initial_state(LayerShape(2, 2), torch.float64, torch.device("cpu"))
    state["left"] = torch.diag(torch.tensor([-0.4, 1.0], dtype=torch.float64))
    method.refresh(state, 0)
    grad = torch.ones(2, 2, dtype=torch.float64)
    assert_close(method.precondition(state, grad)[0], torch.full((2,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("kl_clip", [1e-4, 1e4])
def test_kl_clip_bounds_the_step_over_all_layers_with_each_ones_rate(kl_clip):
    random = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    updates = [Update(grad=random(2, d), value=random(2, d), lr=lr) for d, lr in ((3, 0.1), (4, 0.5))]
    total = sum(float((u.value * u.grad).sum()) * u.lr**2 for u in updates)
    nu = min(1.0, (kl_clip / abs(total)) ** 0.5)
    for clipped, update in zip(kl_clipped(updates, kl_clip), updates, strict=True):
        assert_close(clipped, nu * update.value)
    assert (nu == 1.0) == (kl_clip == 1e4)


def test_kl_clip_of_nothing_is_one():
    """Also where D is not zero, but orthogonal to V; without any layer there is nothing to clip."""
    value = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    for grad in (torch.zeros_like(value), torch.ones_like(value)):
        (clipped,) = kl_clipped([Update(grad, value, 0.1)], 1e-3)
        assert_close(clipped, value)
    assert kl_clipped([], 1e-3) == []
