"""Layers that come into a model, or leave it, after its Preconditioner was made. Truth: which layers have hooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from mkor_core import MKOR, Preconditioner
from mkor_core.capture.discovery import Exclude

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


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def adapt(model: nn.Sequential) -> None:
    for index in (0, 2, 4):
        layer = model[index]
        assert isinstance(layer, nn.Linear)
        model[index] = Adapted(layer)


def replace_by_another_kind(model: nn.Sequential) -> None:
    model[2] = nn.Bilinear(4, 4, 4)
    model[2].forward = lambda rows: nn.Bilinear.forward(model[2], rows, rows)


def train(model: nn.Module, preconditioner: Preconditioner, steps: int = 1) -> list[str]:
    """Return the warnings of some steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            model.zero_grad()
            model(torch.ones(5, 3)).square().mean().backward()
            preconditioner.step()
    return [str(warning.message) for warning in caught]


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
    preconditioner = Preconditioner(model := network(), MKOR(inverse_update_period=2))
    if trained_before:
        assert train(model, preconditioner, steps=4) == []
    change(model)
    found = train(model, preconditioner, steps=4)
    assert len(found) == bool(parts)
    assert all(part in found[0] for part in parts)
    assert all(message.count("layers '") == len(parts) for message in found)


def test_each_later_change_is_named():
    preconditioner = Preconditioner(model := network(), MKOR(inverse_update_period=1))
    for name in ("5", "6"):
        model.append(nn.Linear(2, 2))
        (message,) = train(model, preconditioner, steps=3)
        assert f"layers '{name}' {CAME}" in message


def patterns() -> Iterator[str]:
    yield "^5$"


@pytest.mark.parametrize("exclude", [("^5",), patterns], ids=["tuple", "iterator"])
def test_a_later_layer_that_is_excluded_is_not_named(exclude: Exclude | Callable[[], Exclude]):
    model = network().append(nn.Linear(2, 2))
    preconditioner = Preconditioner(model, MKOR(), exclude=exclude() if callable(exclude) else exclude)
    model[5] = nn.Linear(2, 2)
    assert train(model, preconditioner) == []


def test_a_model_in_a_wrapper_has_names_without_its_prefix():
    preconditioner = Preconditioner(nn.DataParallel(model := network()), MKOR())
    model.append(nn.Linear(2, 2))
    (message,) = train(model, preconditioner)
    assert message.startswith(f"MKOR: layers '5' {CAME}")
