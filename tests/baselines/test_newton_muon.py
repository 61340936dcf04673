"""Newton-Muon. Truth: dense inverses, and the limits in which the moment changes nothing or centers the inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines.muon.newton_muon import NewtonMuon
from mkor_core import Preconditioner
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.ranks.comm import Triangles
from tests.support.matrices import random
from tests.support.reference import backward, joined


def step(x: Tensor, *, has_bias: bool, **chosen: Any) -> tuple[Tensor, Tensor, Preconditioner]:
    """Take a step of a layer ``[2, d]``; return D, V and the preconditioner."""
    torch.manual_seed(0)
    layer = nn.Linear(x.shape[1], 2, bias=has_bias).double()
    preconditioner = Preconditioner(layer, NewtonMuon(**chosen))
    backward(layer, x)
    grad = joined(layer)
    preconditioner.step()
    return grad, joined(layer), preconditioner


def captured(moment: Tensor) -> Captured:
    """Return the statistic of rows with a second moment, and without a bias."""
    return Captured(torch.cat([Triangles().pack(moment), moment.new_ones(1)]), moment.new_zeros(1), torch.tensor(1.0))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("bias", ["apart", "joint"])
@pytest.mark.parametrize("correction", ["none", "debias", "rescale"])
def test_an_update_is_the_gradient_over_the_dense_moment(has_bias, bias, correction):
    rows = random(9, 4) + 1
    grad, update, _ = step(rows, has_bias=has_bias, bias=bias, correction=correction, factor_decay=0.8, damping=0.3)
    x = torch.cat([rows, torch.ones(9, 1).double()], 1) if has_bias and bias == "joint" else rows
    n = x.shape[1]
    moment = 0.8 * 1e-3 * torch.eye(n).double() + 0.2 * x.T @ x / len(x)
    moment = moment / 0.2 if correction == "debias" else moment
    damped = moment + 0.3 * moment.trace() / n * torch.eye(n).double()
    truth = grad[:, :n] @ torch.linalg.inv(damped)
    truth = truth * grad[:, :n].norm() / truth.norm() if correction == "rescale" else truth
    assert_close(update[:, :n], truth)
    assert_close(update[:, n:], grad[:, n:], rtol=0, atol=0)  # a bias that stands apart


def test_a_convolution_has_one_row_for_each_location():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 2).double()
    preconditioner = Preconditioner(layer, NewtonMuon(factor_decay=0.0))
    images = random(5, 2, 4, 4)
    layer(images).square().mean().backward()
    preconditioner.step()
    rows = nn.functional.unfold(images, 2).transpose(1, 2).flatten(0, 1)
    assert_close(preconditioner.state_dict()["layers"][""]["right"][:-1, :-1], rows.T @ rows / len(rows))


def test_a_joint_bias_centers_the_inputs():
    """Truth: the weight's part is ``(D_W - d_b a^T) Cov(x)^-1``, a the mean input."""
    x = random(9, 4) + 2
    grad, update, _ = step(x, has_bias=True, bias="joint", factor_decay=0.0, damping=1e-12)
    mean = x.mean(0)
    covariance = (x - mean).T @ (x - mean) / len(x)
    truth = (grad[:, :4] - torch.outer(grad[:, 4], mean)) @ torch.linalg.inv(covariance)
    assert_close(update[:, :4], truth, rtol=1e-6, atol=1e-8)


def test_a_failed_decomposition_gives_the_identity():
    method = NewtonMuon(bias="joint", factor_decay=0.0)
    state = method.initial_state(LayerShape(2, 3), torch.float64, torch.device("cpu"))
    method.accumulate(state, captured(-torch.eye(3).double()), 0)
    assert_close(state["right_inverse"], torch.eye(3).double(), rtol=0, atol=0)
