"""Modules that look like layers to precondition and are not, with the reasons that ``print`` must give."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

IMAGES = (6, 4, 1, 1)
NO_LAYER = "is no Linear, Conv1d, Conv2d or Conv3d"


class TupleLinear(nn.Linear):
    """Returns more than its output."""

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs), inputs


class DoubledLinear(nn.Linear):
    """Computes ``2 (W x + b)``."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class DoubledConv2d(nn.Conv2d):
    """Computes with twice its weight."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, 2 * weight, bias)


class Shifted(nn.Module):
    """Holds a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.shift


def _overridden() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.forward = MethodType(lambda self, inputs: 3 * nn.functional.linear(inputs, self.weight), layer)  # type: ignore[method-assign]
    return layer


def _quietly(make: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():  # of functions that torch keeps but discourages, and of empty weights
        warnings.simplefilter("ignore")
        return make()


def _parametrized_bias() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "bias", nn.Tanh())
    return layer


class Odd(NamedTuple):
    """How to make a module, the lines of ``print`` on why it is left out, and how to call it with ``[6, 4]``."""

    make: Callable[[], nn.Module]
    reason: str
    call: Callable[[nn.Module, Tensor], Tensor] = lambda module, inputs: module(inputs)


def _as_image(module: nn.Module, inputs: Tensor) -> Tensor:
    result: Tensor = module(inputs.reshape(IMAGES))
    return result


def _complex(module: nn.Module, inputs: Tensor) -> Tensor:
    result: Tensor = module(torch.complex(inputs, inputs)).abs()
    return result


ODD: dict[str, Odd] = {
    "LSTM": Odd(lambda: nn.LSTM(4, 4), f"odd: LSTM {NO_LAYER}", lambda m, x: m(x)[0]),
    "GRUCell": Odd(lambda: nn.GRUCell(4, 4), f"odd: GRUCell {NO_LAYER}"),
    "parameter": Odd(Shifted, f"odd: Shifted {NO_LAYER}"),
    "Bilinear": Odd(lambda: nn.Bilinear(4, 4, 4), f"odd: Bilinear {NO_LAYER}", lambda m, x: m(x, x)),
    "ConvTranspose2d": Odd(lambda: nn.ConvTranspose2d(4, 4, 1), f"odd: ConvTranspose2d {NO_LAYER}", _as_image),
    "groups": Odd(lambda: nn.Conv2d(4, 4, 1, groups=2), "odd: Conv2d with groups=2 > 1", _as_image),
    "weight_norm": Odd(
        lambda: nn.utils.weight_norm(nn.Linear(4, 4)), "odd: its weight is computed from weight_g and weight_v"
    ),
    "parametrized weight_norm": Odd(
        lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "odd: its weight is computed from other parameters"
    ),
    "spectral_norm": Odd(
        lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), "odd: its weight is computed from weight_orig"
    ),
    "parametrized spectral_norm": Odd(
        lambda: parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)),
        "odd: its weight is computed from other parameters",
        _as_image,
    ),
    "prune": Odd(
        lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5), "odd: its weight is computed from weight_orig"
    ),
    "pruned bias": Odd(
        lambda: prune.l1_unstructured(nn.Linear(4, 4), "bias", 0.5), "odd: its bias is computed from bias_orig"
    ),
    "parametrized bias": Odd(_parametrized_bias, "odd: its bias is computed from other parameters"),
    "attention": Odd(
        lambda: nn.MultiheadAttention(4, 2),
        "odd: MultiheadAttention multiplies by its packed weights itself, without calling a layer; an attention with a "
        "Linear for each of q, k and v is preconditioned\n"
        "  odd.out_proj: MultiheadAttention multiplies by its weight itself, without calling it",
        lambda m, x: m(x, x, x)[0],
    ),
    "complex": Odd(
        lambda: nn.Linear(4, 4, dtype=torch.complex128), "odd: its weight is torch.complex128, not real", _complex
    ),
    "complex convolution": Odd(
        lambda: nn.Conv2d(4, 4, 1, dtype=torch.complex128),
        "odd: its weight is torch.complex128, not real",
        lambda m, x: _complex(m, x.reshape(IMAGES)),
    ),
    "tuple": Odd(
        lambda: TupleLinear(4, 4), "odd: TupleLinear computes its output in a forward of its own", lambda m, x: m(x)[0]
    ),
    "2 W x": Odd(lambda: DoubledLinear(4, 4), "odd: DoubledLinear computes its output in a forward of its own"),
    "2 W x of a convolution": Odd(
        lambda: DoubledConv2d(4, 4, 1), "odd: DoubledConv2d computes its output in a forward of its own", _as_image
    ),
    "forward of an instance": Odd(_overridden, "odd: Linear computes its output in a forward of its own"),
    "no outputs": Odd(lambda: nn.Linear(4, 0), "odd: its weight is empty"),
    "no inputs": Odd(lambda: nn.Linear(0, 4), "odd: its weight is empty", lambda m, x: m(x[:, :0])),
    "no channels": Odd(lambda: nn.Conv2d(0, 4, 1), "odd: its weight is empty", lambda m, x: m.bias * x.mean()),
}


class WithOdd(nn.Module):
    """A model of two plain layers and an odd module between them; forward returns a loss."""

    def __init__(self, odd: Odd, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.odd = _quietly(odd.make)
        self._call = odd.call
        for parameter in self.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for module in self.modules():
            module._buffers = {
                key: value.to(dtype) if value is not None and value.is_floating_point() else value
                for key, value in module._buffers.items()
            }

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        if not any(parameter.is_complex() for parameter in self.odd.parameters()):
            return self.head(hidden).square().mean() + self._call(self.odd, hidden).square().sum()
        return self.head(hidden).square().mean() + self._call(self.odd, hidden.double()).square().sum().to(hidden.dtype)
