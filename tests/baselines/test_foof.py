"""Truth: ``torch.kron`` and dense solves with moments of explicit rows, and KAISA with C = I."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA
from baselines.natural.foof import FOOF
from mkor_core import Preconditioner
from mkor_core.capture.statistics import Captured, LayerShape
from tests.support import reference
from tests.support.matrices import random, spd

DAMPING, DECAY = 0.3, 0.8
CPU = torch.device("cpu")


def backward(model: nn.Sequential, step: int) -> tuple[Tensor, Tensor]:
    """Return D and X of the only layer, from explicit rows, which are divided by the number of locations."""
    inputs = random(5, 2, 4, 3, seed=step) + 0.4
    if isinstance(model[0], nn.Linear):
        return reference.backward(model[0], inputs.flatten(2))[:2]
    grad, x, _ = reference.backward(model[0], inputs)
    return grad, x * len(inputs) / len(x)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_the_update_solves_the_damped_system_of_the_inputs_alone(kind, bias, rescale):
    """The mean, from 0 and corrected, takes every second batch; it is inverted at every fourth step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 4, bias) if kind == "linear" else nn.Conv2d(2, 4, 2, bias=bias)).double()
    method = FOOF(damping=DAMPING, factor_decay=DECAY, factor_update_period=2, inverse_update_period=4, rescale=rescale)
    preconditioner = Preconditioner(model, method)
    total = 0.0
    for step in range(9):
        grad, x = backward(model, step)
        if step % 2 == 0:
            total = DECAY * total + (1 - DECAY) * x.T @ x / len(x)
        if step % 4 == 0:
            moment = total / (1 - DECAY ** (step // 2 + 1))
        truth = reference.kfac_solve(torch.eye(4).double(), grad, moment, DAMPING)
        truth = truth * grad.norm() / truth.norm() if rescale else truth
        preconditioner.step()
        assert_close(reference.joined(model[0]), truth, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("compute_method", ["eigen", "inverse"])
def test_it_is_kaisa_with_identity_for_the_gradients_moment(compute_method):
    """Truth: KAISA without memory, given C = I; with inverses it divides by (1 + damping) as well."""
    foof = FOOF(damping=DAMPING, factor_decay=0.0)
    kaisa = KAISA(damping=DAMPING, factor_decay=0.0, kl_clip=None, compute_method=compute_method)
    states = [method.initial_state(LayerShape(3, 5), torch.float64, CPU) for method in (foof, kaisa)]
    for step in range(3):
        number = torch.tensor(2.0, dtype=torch.float64)
        captured = Captured(number * spd(5, seed=step), number * torch.eye(3).double(), number)
        for method, state in zip((foof, kaisa), states, strict=True):
            method.accumulate(state, captured, step)
            method.refresh(state, step)
        grad = random(3, 5, seed=step)
        one, other = (method.precondition(state, grad) for method, state in zip((foof, kaisa), states, strict=True))
        assert_close(one, other * (1 if compute_method == "eigen" else 1 + DAMPING), rtol=1e-12, atol=1e-14)


def test_a_layer_keeps_its_gradient_until_its_first_moment_is_inverted():
    method, grad = FOOF(), random(3, 5)
    state = method.initial_state(LayerShape(3, 5), torch.float64, CPU)
    assert torch.equal(method.precondition(state, grad), grad)
    assert method.refreshed == ("right_inverse",)
    assert method.refresh_cost(LayerShape(3, 5)) == 125
