"""Attachments that would have no effect. Truth: the message, and that the optimizer is left as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from baselines import KAISA, HyLo
from mkor_core import MKOR, Method, Preconditioner


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


class Wrapper:
    """Keeps the true optimizer as accelerate does."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer


def messages(action: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, Wrapper])
@pytest.mark.parametrize("chosen", ["another model", "other modules", "excluded layers"])
def test_an_optimizer_that_steps_no_preconditioned_weight_is_refused(chosen: str, wrap: Callable[[Optimizer], Any]):
    model = network()
    parameters = {"another model": network(), "other modules": model[1], "excluded layers": model[2]}[
        chosen
    ].parameters()
    optimizer = SGD(parameters, lr=0.1)
    preconditioner = Preconditioner(model, MKOR(), exclude=("^2$",))
    with pytest.raises(ValueError, match="This SGD steps no weight of a layer that is preconditioned") as caught:
        preconditioner.attach(wrap(optimizer))
    assert "\n" not in str(caught.value)
    assert not optimizer._optimizer_step_pre_hooks
    assert "__deepcopy__" not in vars(optimizer)
    other = SGD(model.parameters(), lr=0.1)
    preconditioner.attach(wrap(other))  # the refusal has left it free
    assert "preconditioner" in other.state_dict()["param_groups"][0]


def test_an_optimizer_that_steps_one_of_the_weights_is_taken():
    model = network()
    assert messages(lambda: Preconditioner(model, MKOR()).attach(SGD([model[2].weight], lr=0.1))) == []


GROUPS: list[tuple[Method, dict[str, Any], list[str]]] = [
    (MKOR(), {"inverse_update_period": 5}, ["inverse_update_period"]),
    (MKOR(), {"lr": 0.2, "weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "name": "head"}, []),
    (HyLo(), {"variant": "KID", "damping": 0.2}, ["damping", "variant"]),
    (KAISA(), {"kl_clip": None}, ["kl_clip"]),
]


@pytest.mark.parametrize(("method", "options", "named"), GROUPS)
def test_a_hyperparameter_of_the_method_in_a_parameter_group_is_named_once(
    method: Method, options: dict[str, Any], named: list[str]
):
    model = network()
    groups = [{"params": [*layer.parameters()], **options} for layer in model]
    optimizer = Adam(groups, lr=0.1)
    preconditioner = Preconditioner(model, method)
    name = type(method).__name__
    expected = (
        f"Parameter groups have {', '.join(map(repr, named))}, which nothing reads there: hyperparameters of {name} "
        f"are the same for all layers and belong in {name}({', '.join(f'{key}=...' for key in named)})."
    )
    assert messages(lambda: preconditioner.attach(optimizer)) == ([expected] if named else [])


class Damped(SGD):
    """An optimizer that reads an option called as one of a method."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.defaults["damping"] = 0.5
        for group in self.param_groups:
            group["damping"] = 0.5


def test_an_option_that_the_optimizer_reads_itself_is_no_mistake():
    model = network()
    assert messages(lambda: Preconditioner(model, KAISA()).attach(Damped(model.parameters()))) == []


def train(model: nn.Module, optimizer: Optimizer, passes: int, steps: int, *, clears: bool = True) -> None:
    for _ in range(steps):
        if clears:
            optimizer.zero_grad()
        for _ in range(passes):
            model(torch.ones(5, 3)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("method", [MKOR(), MKOR(rank=2), KAISA()], ids=["means", "rows", "moments"])
def test_a_preconditioner_whose_step_is_never_called_warns_once(method: Method, passes: int, clears: bool):
    model = network()
    preconditioner = Preconditioner(model, method, accumulation_steps=100)
    optimizer = SGD(model.parameters(), lr=0.01)
    assert messages(lambda: train(model, optimizer, passes, 10, clears=clears)) == []
    (message,) = messages(lambda: train(model, optimizer, passes, 20, clears=clears))
    assert message.startswith("The weights have changed 10 times, and the Preconditioner's step() was never called")
    assert preconditioner.switch_step is None  # it lives


@pytest.mark.parametrize("attached", [True, False])
def test_one_whose_step_is_called_does_not_warn(attached: bool):
    model = network()
    optimizer = SGD(model.parameters(), lr=0.01)
    preconditioner = Preconditioner(model, MKOR(), accumulation_steps=1)
    if attached:
        preconditioner.attach(optimizer)
    else:
        optimizer.register_step_pre_hook(lambda *_: preconditioner.step())
    assert messages(lambda: train(model, optimizer, 1, 30)) == []


def test_many_passes_of_one_step_are_no_sign_that_it_is_forgotten():
    """Nor are steps that a gradient scaler skips: the weights stay."""
    model = network()
    preconditioner = Preconditioner(model, MKOR(), accumulation_steps=50)
    assert messages(lambda: train(model, SGD(model.parameters(), lr=0.01), 50, 1)) == []
    preconditioner.step()
