"""Attachments without effect, and layers that come or go after it. Truth: the message, and what is left as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, Optimizer

from baselines import KAISA, HyLo
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.capture.discovery import Exclude


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


CAME = "came into the model after the Preconditioner was made"
LEFT = "left the model, or another module has their place"


class Adapted(nn.Module):
    """LoRA as libraries inject it: the frozen layer within, and two trained ones beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 1, bias=False)
        self.up = nn.Linear(1, base.out_features, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.base(rows) + self.up(self.down(rows))


def adapt(model: nn.Sequential) -> None:
    for index in (0, 2, 4):
        layer = model[index]
        assert isinstance(layer, nn.Linear)
        model[index] = Adapted(layer)


def replace_by_another_kind(model: nn.Sequential) -> None:
    model[2] = nn.Bilinear(4, 4, 4)
    model[2].forward = lambda rows: nn.Bilinear.forward(model[2], rows, rows)


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def stepped(model: nn.Module, preconditioner: Preconditioner, steps: int = 1) -> list[str]:
    """Return the warnings of some steps."""

    def steps_of_it() -> None:
        for _ in range(steps):
            model.zero_grad()
            model(torch.ones(5, 3)).square().mean().backward()
            preconditioner.step()

    return messages(steps_of_it)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (adapt, [f"layers '0.down', '0.up', '2.down' and 3 others {CAME}"]),
        (lambda model: setattr(model, "2", nn.Linear(4, 4)), [f"layers '2' {CAME}", f"layers '2' {LEFT}"]),
        (replace_by_another_kind, [f"layers '2' {LEFT}"]),
        (lambda model: model.append(nn.Linear(2, 2)), [f"layers '5' {CAME}"]),
        (lambda model: model.append(nn.Linear(2, 2).requires_grad_(False)), []),
        (lambda model: model.append(nn.Tanh()), []),
        (lambda model: parametrizations.weight_norm(model[2]), []),
    ],
)
@pytest.mark.parametrize("trained_before", [False, True])
def test_a_layer_that_comes_or_goes_later_is_named_once(
    change: Callable[[nn.Sequential], object], parts: list[str], trained_before: bool
):
    preconditioner = Preconditioner(model := perceptron(), MKOR(inverse_update_period=2))
    if trained_before:
        assert stepped(model, preconditioner, steps=4) == []
    change(model)
    found = stepped(model, preconditioner, steps=4)
    assert len(found) == bool(parts)
    assert all(part in found[0] for part in parts)
    assert all(message.count("layers '") == len(parts) for message in found)


def test_each_later_change_is_named():
    preconditioner = Preconditioner(model := perceptron(), MKOR(inverse_update_period=1))
    for name in ("5", "6"):
        model.append(nn.Linear(2, 2))
        (message,) = stepped(model, preconditioner, steps=3)
        assert f"layers '{name}' {CAME}" in message


def patterns() -> Iterator[str]:
    yield "^5$"


@pytest.mark.parametrize("exclude", [("^5",), patterns], ids=["tuple", "iterator"])
def test_a_later_layer_that_is_excluded_is_not_named(exclude: Exclude | Callable[[], Exclude]):
    model = perceptron().append(nn.Linear(2, 2))
    preconditioner = Preconditioner(model, MKOR(), exclude=exclude() if callable(exclude) else exclude)
    model[5] = nn.Linear(2, 2)
    assert stepped(model, preconditioner) == []


def test_a_model_in_a_wrapper_has_names_without_its_prefix():
    preconditioner = Preconditioner(nn.DataParallel(model := perceptron()), MKOR())
    model.append(nn.Linear(2, 2))
    (message,) = stepped(model, preconditioner)
    assert message.startswith(f"MKOR: layers '5' {CAME}")
