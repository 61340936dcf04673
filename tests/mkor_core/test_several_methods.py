"""Several methods by layers' names, hyperparameters that change, and what else a user of torch.optim expects."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Adam, Optimizer
from torch.testing import assert_close

from baselines import KAISA, Eva
from mkor_core import MKOR, MKORH, ExpertLinear, Method, Preconditioner

Methods = Method | dict[str, Method]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = {"body": nn.Linear(5, 6), "act": nn.Tanh(), "head": nn.Linear(6, 3)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model.double()


def batch(step: int) -> Tensor:
    return torch.randn(16, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def train(model: nn.Module, optimizer: Optimizer, steps: range, batches: Any = batch) -> list[Tensor]:
    for step in steps:
        optimizer.zero_grad()
        model(batches(step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **options)


SEVERAL: dict[str, Method] = {"head": MKOR(window=4, inverse_update_period=2), "": KAISA(factor_update_period=1)}


def test_each_layer_gets_the_method_of_the_first_pattern_that_fits_its_name():
    """Truth: two preconditioners, each of which leaves the other's layer out."""
    together, apart = network(), network()
    optimizer = sgd(together)
    preconditioner = Preconditioner(together, SEVERAL).attach(optimizer)
    assert set(preconditioner.state_dict()["layers"]["head"]) > {"left_weights"}
    assert "left_values" in preconditioner.state_dict()["layers"]["body"]
    other = sgd(apart)
    first = Preconditioner(apart, SEVERAL["head"], exclude="body", lr=0.05)
    second = Preconditioner(apart, SEVERAL[""], exclude="head", lr=0.05)

    expected = []
    for step in range(7):
        other.zero_grad()
        apart(batch(step)).square().mean().backward()
        first.step()
        second.step()
        other.step()
        expected = [parameter.detach().clone() for parameter in apart.parameters()]
    assert_close(train(together, optimizer, range(7)), expected, rtol=0, atol=0)


def experts() -> nn.Module:
    torch.manual_seed(0)
    return ExpertLinear(3, 5, 4).double()


def of_experts(step: int) -> Tensor:
    return torch.stack([batch(100 * step + expert) for expert in range(3)])


@pytest.mark.parametrize("form", ["plain", "nested", "flattened"])
@pytest.mark.parametrize(
    ("make", "batches", "method"),
    [
        (network, batch, SEVERAL),
        (network, batch, {"head": MKORH(inverse_update_period=1, warmup_steps=2), "": Eva()}),
        (experts, of_experts, MKOR(inverse_update_period=1)),
    ],
    ids=["mkor", "mkor_h", "experts"],
)
def test_several_states_are_resumed(make: Any, batches: Any, method: Methods, form: str):
    """Of several methods, and of experts, which share one weight, and so one entry of the optimizer's state."""
    options = StateDictOptions(flatten_optimizer_state_dict=form == "flattened")
    weights: dict[str, Any] = {}
    state: dict[str, Any] = {}
    ends: list[list[Tensor]] = []
    for resumes in (False, True):
        model = make()
        optimizer = sgd(model)
        preconditioner = Preconditioner(model, method).attach(optimizer)
        if resumes:
            model.load_state_dict(weights)
            if form == "plain":
                optimizer.load_state_dict(state)
            else:
                set_optimizer_state_dict(model, optimizer, state, options=options)
        for step in range(4 if resumes else 0, 9):
            if step == 4 and not resumes:
                weights = copy.deepcopy(model.state_dict())
                plain = optimizer.state_dict() if form == "plain" else None
                state = copy.deepcopy(plain or get_optimizer_state_dict(model, optimizer, options=options))
            preconditioner.observe(1 / (step + 1))
            train(model, optimizer, range(step, step + 1), batches)
        assert len(preconditioner.state_dict()["layers"]) == len(preconditioner.layers)
        ends.append([*model.parameters()])
    assert_close(ends[0], ends[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("methods", "error", "message"),
    [
        ({}, TypeError, r"method=\{\} is not an instance of Method"),
        ({"head": 3}, TypeError, r"method\['head'\]=3 is not an instance of Method"),
        ({"tail": MKOR()}, ValueError, r"method\['tail'\] has no layer"),
        ({"": MKOR(), "head": Eva()}, ValueError, r"method\['head'\] has no layer"),
    ],
)
def test_methods_without_a_layer_are_refused(methods: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        Preconditioner(network(), methods)


def test_layers_without_a_method_keep_their_gradient_and_are_printed():
    model = network()
    preconditioner = Preconditioner(model, {"head": MKOR()})
    assert preconditioner.layers == ("head",)
    assert "no method is given for it" in repr(preconditioner)


def test_the_state_of_one_method_is_not_that_of_several():
    several = Preconditioner(network(), SEVERAL)
    with pytest.raises(ValueError, match="not one of several methods"):
        several.load_state_dict(Preconditioner(network(), MKOR()).state_dict())
    with pytest.raises(ValueError, match="has no entry"):
        Preconditioner(network(), MKOR()).load_state_dict(several.state_dict())


def test_a_hyperparameter_changes_from_the_next_step_on_and_is_saved():
    """Truth: a run that goes on from there with the new values, and one that is resumed from what was saved."""
    model, other = network(), network()
    optimizer, another = sgd(model), sgd(other)
    preconditioner = Preconditioner(model, KAISA(factor_update_period=1, damping=1e-2)).attach(optimizer)
    train(model, optimizer, range(3))
    preconditioner.set(damping=1e-1, factor_decay=0.5)
    assert preconditioner.method == KAISA(factor_update_period=1, damping=1e-1, factor_decay=0.5)
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())

    resumed = Preconditioner(other, KAISA(factor_update_period=1, damping=1e-2)).attach(another)
    other.load_state_dict(weights)
    another.load_state_dict(state)
    assert resumed.method == preconditioner.method
    expected = train(model, optimizer, range(3, 8))
    assert_close(train(other, another, range(3, 8)), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (KAISA(), {"dampening": 1.0}, "KAISA has no hyperparameter 'dampening'; it has damping"),
        (KAISA(), {"damping": -1.0}, "damping=-1.0 must be greater than 0"),
        (KAISA(), {"compute_method": "inverse"}, "KAISA's compute_method gives its state a meaning"),
        (KAISA(), {"kl_clip": None}, "a clip can change while it trains, but neither come nor go"),
        (MKOR(), {"gradient_norm": 1.0}, "gradient_norm would change what the hooks capture"),
    ],
    ids=str,
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(method: Method, changes: Any, message: str):
    preconditioner = Preconditioner(network(), method)
    with pytest.raises(ValueError, match=message):
        preconditioner.set(**changes)
    assert preconditioner.method == method


def test_what_one_of_several_methods_refuses_no_method_gets():
    preconditioner = Preconditioner(network(), SEVERAL)
    before = [part.method for part in preconditioner._parts]
    with pytest.raises(ValueError, match="gives its state a meaning"):
        preconditioner.set(damping=0.5, window=2)
    assert [part.method for part in preconditioner._parts] == before


@pytest.mark.parametrize("method", [MKOR(inverse_update_period=1), Eva(), KAISA(factor_update_period=1)], ids=type)
def test_a_maximized_loss_is_a_minimized_one_with_the_other_sign(method: Method):
    """V is odd in D, and factors are even in the gradient rows."""
    up, down = network(), network()
    climbing, falling = sgd(up, maximize=True), sgd(down)
    Preconditioner(up, method).attach(climbing)
    Preconditioner(down, method).attach(falling)
    for step in range(4):
        for model, optimizer, sign in ((up, climbing, -1), (down, falling, 1)):
            optimizer.zero_grad()
            (sign * model(batch(step)).square().mean()).backward()
            optimizer.step()
    assert_close([*up.parameters()], [*down.parameters()], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", [MKOR(inverse_update_period=1), Eva(), KAISA(factor_update_period=1)], ids=type)
def test_a_rate_may_be_a_tensor(method: Method):
    trained = []
    for lr in (0.05, torch.tensor(0.05, dtype=torch.float64)):
        model = network()
        optimizer = Adam(model.parameters(), lr=lr, foreach=False)
        Preconditioner(model, method).attach(optimizer)
        trained.append(train(model, optimizer, range(4)))
    assert_close(trained[0], trained[1], rtol=1e-12, atol=0)


def test_mkor_h_without_a_loss_says_so_at_its_first_step():
    model = network()
    optimizer = sgd(model)
    Preconditioner(model, MKORH()).attach(optimizer)
    with pytest.warns(UserWarning, match="MKORH follows the training loss and has received none"):
        train(model, optimizer, range(1))


def test_a_parameter_group_that_came_after_the_last_step_is_in_a_full_state_dict():
    model = network()
    optimizer = torch.optim.SGD(model.get_submodule("body").parameters(), lr=0.05, momentum=0.9)
    Preconditioner(model, MKOR(inverse_update_period=1)).attach(optimizer)
    train(model, optimizer, range(2))
    optimizer.add_param_group({"params": [*model.get_submodule("head").parameters()]})
    state = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    assert "preconditioner_left" in state["state"]["body.weight"]
    assert "head.weight" not in state["state"]


def test_a_layer_that_is_too_wide_for_dense_factors_keeps_windows(monkeypatch: pytest.MonkeyPatch):
    """Truth: the window that is asked for; a layer that is narrower stays dense."""
    monkeypatch.setattr(MKOR, "largest_factor", 6)
    model, other = network(), network()
    optimizer, another = sgd(model), sgd(other)
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1)).attach(optimizer)
    dense, windowed = MKOR(inverse_update_period=1), MKOR(window=16, inverse_update_period=1)
    Preconditioner(other, {"body": dense, "head": windowed}).attach(another)
    assert_close(train(model, optimizer, range(6)), train(other, another, range(6)), rtol=0, atol=0)
    layers = preconditioner.state_dict()["layers"]
    assert ["right_weights" in layers[name] for name in ("body", "head")] == [False, True]
    monkeypatch.setattr(MKOR, "largest_factor", None)
    with pytest.raises(ValueError, match="differ in tensor 'left_dropped'"):
        Preconditioner(network(), MKOR()).load_state_dict(preconditioner.state_dict())
