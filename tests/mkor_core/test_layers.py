"""Kinds of layers and of memory. Truth: the same function computed by layers that are known, trained alike."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import pytest
import torch

from mkor_core import torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)

# isort: split
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from baselines import KAISA, Eva, HyLo
from baselines.natural.foof import FOOF
from mkor_core import MKOR, ExpertLinear, Method, Preconditioner
from mkor_core.capture import discovery
from mkor_core.capture.discovery import find_layers, select_layers, unsupported_reason
from mkor_core.engines import engine

METHODS: list[Method] = [
    MKOR(inverse_update_period=2),
    MKOR(inverse_update_period=1, window=3),
    MKOR(inverse_update_period=1, update_rule="released", factor_decay=0.8),
    MKOR(inverse_update_period=2, gradient_norm=3.0),
    MKOR(inverse_update_period=1, rank=2),
    KAISA(factor_update_period=1, inverse_update_period=2, damping=0.1, compute_method="inverse"),
    Eva(),
    HyLo(update_period=2),
    FOOF(factor_update_period=1, inverse_update_period=2, damping=0.1),
]
EXPERTS = 3


def short(method: Method) -> str:
    given = [field.name for field in fields(method) if getattr(method, field.name) != field.default]
    return " ".join([type(method).__name__, *given])


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3


class Linears(nn.Module):
    """What an `ExpertLinear` computes, by a Linear for each expert."""

    def __init__(self, experts: ExpertLinear) -> None:
        super().__init__()
        bias = experts.bias
        self.layers = nn.ModuleList(
            linear_of(weight, None if bias is None else bias[index]) for index, weight in enumerate(experts.weight)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack([layer(rows) for layer, rows in zip(self.layers, inputs, strict=True)])


class Squeezed(nn.Module):
    """A Conv2d in the place of a convolution with one axis more or less; where: the axis of size 1."""

    def __init__(self, inner: nn.Conv2d, *, adds: int | None = None, drops: int | None = None) -> None:
        super().__init__()
        self.inner, self.adds, self.drops = inner, adds, drops

    def forward(self, images: Tensor) -> Tensor:
        if self.adds is not None:
            return self.inner(images.unsqueeze(self.adds)).squeeze(self.adds)
        return self.inner(images.squeeze(self.drops)).unsqueeze(self.drops)


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a Linear with copies of a weight and a bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    layer.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def trained_alike(one: nn.Module, other: nn.Module) -> nn.Module:
    """Give a layer the parameters of another, reshaped, and freeze those that are frozen there."""
    for own, given in zip(one.parameters(), other.parameters(), strict=True):
        own.data.copy_(given.data.view(own.shape))
    return one


def transposed(layer: Conv1D) -> nn.Linear:
    return linear_of(layer.weight.mT, layer.bias)


def strided(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer whose weight does not lie in memory in the order of its entries."""
    twin = copy.deepcopy(layer)
    weight = layer.weight.detach()
    if weight.dim() > 2:
        twin.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        return twin
    twin.weight = nn.Parameter(weight.mT.contiguous().mT)
    assert not twin.weight.is_contiguous()
    return twin


def conv1d(layer: nn.Conv1d) -> nn.Module:
    twin = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        (1, *layer.kernel_size),
        (1, *layer.stride),
        (0, *layer.padding),
        (1, *layer.dilation),
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode,
        dtype=torch.float64,
    )
    return Squeezed(trained_alike(twin, layer), adds=2)


def conv3d(layer: nn.Conv3d) -> nn.Module:
    """For a kernel that has one row only, as the images have."""
    options: list[Any] = [(of[0], of[2]) for of in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)]
    twin = nn.Conv2d(layer.in_channels, layer.out_channels, *options, bias=layer.bias is not None, dtype=torch.float64)
    return Squeezed(trained_alike(twin, layer), drops=3)


class Pair(NamedTuple):
    """Three layers: with a bias, with one that is frozen, and without one, if the kind may lack it; and their twins."""

    make: Callable[[], list[nn.Module]]
    twin: Callable[[Any], nn.Module]
    inputs: tuple[int, ...]


PAIRS: dict[str, Pair] = {
    "transposed": Pair(lambda: [Conv1D(5, 4), Conv1D(4, 5), Conv1D(4, 4)], transposed, (6, 2, 4)),
    "strided": Pair(lambda: [nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 4, bias=False)], strided, (6, 2, 4)),
    "experts": Pair(
        lambda: [ExpertLinear(EXPERTS, 4, 5), ExpertLinear(EXPERTS, 5, 4), ExpertLinear(EXPERTS, 4, 4, bias=False)],
        Linears,
        (EXPERTS, 6, 4),
    ),
    "conv1d": Pair(
        lambda: [
            nn.Conv1d(2, 3, 3, stride=2, padding=1, padding_mode="reflect"),
            nn.Conv1d(3, 2, 2, dilation=2),
            nn.Conv1d(2, 2, 2, bias=False),
        ],
        conv1d,
        (6, 2, 9),
    ),
    "conv3d": Pair(
        lambda: [
            nn.Conv3d(2, 3, (3, 1, 2), stride=(2, 1, 1), padding=(1, 0, 0)),
            nn.Conv3d(3, 2, (2, 1, 1), dilation=(2, 1, 1)),
            nn.Conv3d(2, 2, (1, 1, 2), bias=False),
        ],
        conv3d,
        (6, 2, 6, 1, 4),
    ),
    "channels last": Pair(
        lambda: [nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 2), nn.Conv2d(2, 2, 2, bias=False)],
        strided,
        (6, 2, 5, 4),
    ),
}


def pair(kind: str) -> tuple[nn.Module, nn.Module]:
    """Return a model and its twin."""
    torch.manual_seed(0)
    layers = [layer.double() for layer in PAIRS[kind].make()]
    for parameter in nn.ModuleList(layers).parameters():  # that of a Conv1D starts too small to show an effect
        nn.init.normal_(parameter, std=0.4)
    twins = [PAIRS[kind].twin(layer) for layer in layers]
    for layer in (layers[1], twins[1]):
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(not name.endswith("bias"))
    model, twin = (
        nn.Sequential(first, nn.ReLU(inplace=True), second, nn.Tanh(), third)
        for first, second, third in (layers, twins)
    )
    return model, twin


def train(model: nn.Module, method: Method | None, shape: tuple[int, ...]) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Train in two micro-batches; return what the model then computes, and the layers' states."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    preconditioner = None
    if method is not None:
        preconditioner = Preconditioner(model, method, accumulation_steps=2).attach(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        for part in range(2):
            ((model(drawn(*shape, seed=10 * step + part)) - 0.5).square().mean() / 2).backward()
        optimizer.step()
    states = [] if preconditioner is None else [*preconditioner.state_dict()["layers"].values()]
    return model(drawn(*shape, seed=100)).detach(), states


@pytest.mark.parametrize(
    ("method", "gathered"),
    [*((method, False) for method in METHODS), (METHODS[1], True), (Eva(), True)],
    ids=lambda value: short(value) if isinstance(value, Method) else ["alone", "gathered"][value],
)
@pytest.mark.parametrize("kind", PAIRS)
def test_layers_that_compute_the_same_train_alike(kind, method, gathered, monkeypatch):
    """Also where a stack's gradients are gathered and scattered, as on a GPU."""
    monkeypatch.setattr(engine, "goes_alone", lambda device: not gathered)
    model, twin = pair(kind)
    shape = PAIRS[kind].inputs
    trained, states = train(model, method, shape)
    truth, states_of_twin = train(twin, method, shape)
    assert_close(trained, truth, rtol=1e-9, atol=1e-11)
    assert len(states) == len(select_layers(model, ()).layers)
    if getattr(method, "rank", 1) == 1:  # the second direction of a moment of rank 1 is rounding noise
        assert_close(states, states_of_twin, rtol=1e-9, atol=1e-11)
    plain, _ = train(pair(kind)[0], None, shape)
    assert (trained - plain).abs().max() > 1e-4


@pytest.mark.parametrize("kind", PAIRS)
def test_updates_are_written_into_the_gradients_that_the_optimizer_has(kind):
    model, _ = pair(kind)
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    model(drawn(*PAIRS[kind].inputs)).square().mean().backward()
    before = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    layers = select_layers(model, ()).layers.values()
    squares = sum(layer.gradient().square().sum() for layer in layers)
    assert_close(squares, sum(grad.square().sum() for grad, _ in before.values()))
    preconditioner.step()
    for name, (grad, old) in before.items():
        parameter = model.get_parameter(name)
        assert parameter.grad is grad
        assert grad.shape == parameter.shape
        assert not torch.equal(grad, old)


def tiny_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=11, n_embd=8, n_layer=2, n_head=2, n_positions=6, **none)
    return GPT2LMHeadModel(config).double().train()


def with_linears(model: nn.Module) -> nn.Module:
    for name, module in [*model.named_modules()]:
        if isinstance(module, Conv1D):
            model.set_submodule(name, transposed(module))
    return model


@pytest.mark.parametrize("method", METHODS[:1] + METHODS[5:], ids=short)
def test_gpt2_trains_as_with_linears(method):
    results = []
    for model in (tiny_gpt2(), with_linears(tiny_gpt2())):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        preconditioner = Preconditioner(model, method).attach(optimizer)
        assert len(preconditioner.layers) == 8
        for step in range(3):
            optimizer.zero_grad()
            tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(step))
            output = model(input_ids=tokens, labels=tokens)
            output.loss.backward()
            optimizer.step()
        results.append(output.logits.detach())
    assert_close(results[0], results[1], rtol=1e-7, atol=1e-9)


def test_experts_have_layers_of_their_own_by_number():
    model = nn.ModuleDict({"up": ExpertLinear(2, 3, 4), "down": ExpertLinear(2, 4, 3, bias=False)})
    preconditioner = Preconditioner(model, MKOR())
    assert preconditioner.layers == ("up.0", "up.1", "down.0", "down.1")
    assert "  up.{0-1}: ExpertLinear 4 x 4 (2 modules)" in repr(preconditioner)
    assert Preconditioner(ExpertLinear(2, 3, 4), MKOR()).layers == ("0", "1")


def test_experts_start_as_linear_layers_do():
    torch.manual_seed(0)
    layer = ExpertLinear(50, 16, 20)
    assert repr(layer) == "ExpertLinear(50, 16, 20, bias=True)"
    for parameter in layer.parameters():
        assert 0.24 < parameter.abs().max() <= 0.25
    assert layer.weight.shape == (50, 20, 16)
    assert layer.bias.shape == (50, 20)
    assert ExpertLinear(2, 3, 4, bias=False).bias is None


def test_optimizers_that_treat_whole_parameters_are_given_no_experts():
    experts = ExpertLinear(2, 3, 3)
    assert [*find_layers(nn.Sequential(experts, nn.Linear(3, 2)), ())] == ["1"]
    with pytest.raises(ValueError, match="only experts, which share one"):
        find_layers(experts, ())


class Renamed(Conv1D):
    """A class of its own with the same forward."""


class Doubled(Conv1D):
    """Computes twice as much."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_only_the_conv1d_of_transformers_with_its_own_forward_is_transposed():
    assert unsupported_reason(Renamed(3, 2)) is None
    assert unsupported_reason(Doubled(3, 2)) == "Doubled computes its output in a forward of its own"
    other = Conv1D(3, 2)
    other.nf = 4
    assert unsupported_reason(other) == "Conv1D computes its output in a forward of its own"
    namesake = type("Conv1D", (nn.Module,), {"forward": Conv1D.forward})()
    namesake.weight = nn.Parameter(torch.ones(2, 3))
    assert unsupported_reason(namesake) == "Conv1D uses its weight [2, 3] itself, without calling a layer"


def test_a_transposed_layer_that_is_called_by_keyword_is_captured():
    layer = Conv1D(3, 4).double()
    preconditioner = Preconditioner(layer, MKOR(inverse_update_period=1))
    layer(x=drawn(5, 4)).sum().backward()
    preconditioner.step()
    assert_close(preconditioner.state_dict()["layers"][""]["right_vectors"][:4, 0], drawn(5, 4).mean(0))


def test_sharded_weights_of_another_form_than_d_are_left_out(monkeypatch):
    """The rows of D are no blocks of such a weight."""
    model = nn.Sequential(Conv1D(3, 4), ExpertLinear(2, 3, 3), nn.Linear(3, 2))
    monkeypatch.setattr(discovery, "is_dtensor", lambda parameter: True)
    left_out = select_layers(model, ()).left_out
    assert left_out == {
        "0": "its weight is sharded, which Conv1D does not support",
        "1": "its weight is sharded, which ExpertLinear does not support",
    }
