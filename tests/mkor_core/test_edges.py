"""Rare cases, each of which once went wrong. Truth: the ordinary case, or no effect."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, Eva, HyLo, build
from mkor_core import MKOR, MKORH, Preconditioner
from mkor_core.method import Method
from tests.support.misuses import gradients

METHODS: list[Method] = [
    MKOR(inverse_update_period=1),
    MKOR(inverse_update_period=1, rank=2),
    KAISA(factor_update_period=1, inverse_update_period=1, kl_clip=None),
    Eva(kl_clip=None),
    HyLo(update_period=1),
    HyLo(update_period=1, variant="KID"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def inputs(number: int = 6) -> Tensor:
    return torch.randn(number, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_disabled_gradient_scaler_scales_nothing():
    model, plain = network(), network()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for net, scale in ((model, scaler), (plain, 1.0)):
        preconditioner = Preconditioner(net, MKOR(), grad_scale=scale)
        net(inputs()).square().mean().backward()
        preconditioner.step()
    assert_close(gradients(model), gradients(plain), rtol=0, atol=0)


class Wrapped(nn.Module):
    """A model with a child that is called module without being in a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.module = network()

    def forward(self, rows: Tensor) -> Tensor:
        return self.module(rows)


@pytest.mark.parametrize("saved", [network, Wrapped, lambda: nn.DataParallel(network())])
@pytest.mark.parametrize("loaded", [network, Wrapped, lambda: nn.DataParallel(network())])
def test_states_fit_models_with_and_without_a_wrapper(saved, loaded):
    source, target = saved(), loaded()
    one, other = Preconditioner(source, MKOR()), Preconditioner(target, MKOR())
    source(inputs()).square().mean().backward()
    one.step()
    other.load_state_dict(one.state_dict())
    loaded_state, saved_state = (list(p.state_dict()["layers"].values()) for p in (other, one))
    assert_close(loaded_state, saved_state, rtol=0, atol=0)


@pytest.mark.parametrize("pattern", ["^0$", re.compile("^0$")], ids=str)
def test_exclude_matches_the_names_in_layers(pattern):
    assert Preconditioner(nn.DataParallel(network()), MKOR(), exclude=pattern).layers == ("2",)
    assert Preconditioner(nn.DataParallel(nn.Linear(2, 2)), MKOR()).layers == ("",)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_layer_without_examples_changes_nothing(method):
    """An expert that receives no example has zero rows: its gradient and its state stay as they are."""
    model = network()
    expert = nn.Linear(4, 3).double()
    together = nn.ModuleList([model, expert])
    preconditioner = Preconditioner(together, method)
    for _ in range(2):
        together.zero_grad()
        (model(inputs()).square().mean() + expert(inputs()[:0]).sum()).backward()
        preconditioner.step()
    assert_close(gradients(expert), [torch.zeros_like(p) for p in expert.parameters()], rtol=0, atol=0)
    assert preconditioner.non_finite_layers() == []
    assert all(grad.isfinite().all() for grad in gradients(model))


def test_eva_takes_no_statistics_from_examples_beyond_its_first():
    """A layer used only in the second micro-batch, whose examples are all beyond the first sixteen."""
    model = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)]).double()
    preconditioner = Preconditioner(model, Eva(kl_clip=None), accumulation_steps=2)
    model[0](inputs(16)).square().mean().backward()
    model[1](inputs(16)).square().mean().backward()
    before = gradients(model[1])
    preconditioner.step()
    assert_close(gradients(model[1]), before, rtol=0, atol=0)


def test_layers_of_another_optimizer_are_left_alone():
    model = network()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    Preconditioner(model, MKOR(inverse_update_period=1)).attach(optimizer)
    model(inputs()).square().mean().backward()
    before = gradients(model[0])
    optimizer.step()
    assert_close(gradients(model[0]), before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:A copy of a model")
def test_a_model_under_mkor_h_can_be_copied_and_pickled_whole():
    model = network()
    preconditioner = Preconditioner(model, MKORH(inverse_update_period=1))
    model(inputs()).square().mean().backward()
    preconditioner.observe(1.0)
    preconditioner.step()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        twin(inputs()).square().mean().backward()
        assert_close(twin(inputs()), model(inputs()))


def test_kl_clip_weighs_weight_and_bias_by_their_own_rates():
    """Truth: the sum over all entries of V * D * lr^2, by hand."""
    model = nn.Sequential(nn.Linear(4, 3)).double()
    optimizer = torch.optim.SGD([{"params": [model[0].weight]}, {"params": [model[0].bias], "lr": 0.1}], lr=1.0)
    preconditioner = Preconditioner(model, KAISA(damping=1e6, kl_clip=1e-12)).attach(optimizer)
    model(inputs()).square().mean().backward()
    weight, bias = gradients(model)
    preconditioner.step()
    # So much damping leaves the direction alone: V = D / damping.
    total = ((weight / 1e6 * weight).sum() + (bias / 1e6 * bias).sum() * 0.1**2).item()
    nu = (1e-12 / total) ** 0.5
    assert nu < 1
    assert_close(gradients(model), [nu * weight / 1e6, nu * bias / 1e6], rtol=1e-5, atol=0)


def test_an_input_changed_in_place_under_autocast_is_captured_as_it_was():
    """Autograd keeps the cast copy, so the change is legal."""
    results: list[Any] = []
    for change in (False, True):
        model = network().float()
        preconditioner = Preconditioner(model, KAISA(kl_clip=None))
        rows = inputs().float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(rows)
        if change:
            rows.zero_()
        output.float().square().mean().backward()
        preconditioner.step()
        results.append(preconditioner.state_dict()["layers"]["0"]["right"])
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_a_step_without_a_backward_pass_does_not_count():
    optimizer, preconditioner = build("kaisa", network(), {"lr": 0.1})
    optimizer.step()
    assert preconditioner is not None
    assert preconditioner.state_dict()["step"] == 0


def test_what_is_removed_from_a_state_dict_stays_in_the_preconditioner():
    preconditioner = Preconditioner(model := network(), MKOR(inverse_update_period=1))
    model(inputs()).square().mean().backward()
    preconditioner.step()
    preconditioner.state_dict()["layers"]["0"].clear()
    assert preconditioner.state_dict()["layers"]["0"].keys() == preconditioner.state_dict()["layers"]["2"].keys()
