"""Layers whose gradients and states have the same shapes, and their gradients gathered for a `StackedMethod`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mkor_core.capture.blocks import Block
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.maths.products import Gradient
from mkor_core.method import LayerShape, LayerState
from mkor_core.transfers import Deferred

GradientParts = Mapping[str, Sequence[Tensor]]
"""By layer, the gradient of the weight and, if D has a column for it, of the bias: what `Layer.gradient_parts` returns,
or whole gradients in their place. Updates are written into these tensors."""


class Kind(NamedTuple):
    """What the layers of a stack have in common."""

    shape: LayerShape
    has_bias: bool
    dtype: torch.dtype
    """That of the weights."""
    device: torch.device
    block: Block | None
    """The part of D that this rank holds; None: all of it."""

    @classmethod
    def of(cls, layer: Layer) -> Kind:
        """Return a layer's kind."""
        weight = layer.parameters[0]
        return cls(LayerShape(layer.d_out, layer.d_in), layer.has_bias, weight.dtype, weight.device, layer.block)


@dataclass
class Stack:
    """Layers of one kind, and their state."""

    kind: Kind
    layers: list[Layer]
    state: LayerState
    host: dict[str, Tensor | Deferred] = field(default_factory=dict)
    """What the next refresh wants on the host."""
    refreshed: int | None = None
    """The step of the last refresh, after which `host` was requested; None before the first."""

    def state_of(self, index: int) -> LayerState:
        """Return one layer's state, as views."""
        return {key: tensor[index] for key, tensor in self.state.items()}

    def state_for(self, layers: Sequence[Layer]) -> LayerState:
        """Return the state of some of the layers, in the stack's order; copied unless they are all."""
        if len(layers) == len(self.layers):
            return self.state
        chosen = {layer.name for layer in layers}
        indices = [index for index, layer in enumerate(self.layers) if layer.name in chosen]
        return {key: torch.stack([tensor[index] for index in indices]) for key, tensor in self.state.items()}


class Unit(NamedTuple):
    """Gradients that are preconditioned together: those of a stack, or that of one layer."""

    layers: Sequence[Layer]
    state: LayerState
    grad: Gradient
    parts: Sequence[Sequence[Tensor]]
    """The tensors of `GradientParts` from which ``grad`` was gathered."""
    block: Block | None
    """The part of D that ``grad`` is; None: all of it."""

    def write_back(self) -> None:
        """Copy ``grad`` into the parts that do not share its memory."""
        if self.grad.weight.dim() == 2:
            ((*parts,),) = self.parts
            for part, new in zip(parts, self.grad.parts(), strict=True):
                if part.data_ptr() != new.data_ptr():
                    part.copy_(new.view(part.shape))
            return
        pairs = [
            (part, new.view(part.shape))
            for index, new_tensors in enumerate(self.grad.parts())
            for part, new in zip([parts[index] for parts in self.parts], new_tensors, strict=True)
        ]
        torch._foreach_copy_([part for part, _ in pairs], [new for _, new in pairs])


def units(stack: Stack, layers: Sequence[Layer], gradients: GradientParts, block: Block | None) -> Iterable[Unit]:
    """Yield the gradients of some of a stack's layers: one layer at a time on a CPU, together elsewhere.

    block: the part of D that ``gradients`` are; None: all of it.
    """
    dtype = wide_dtype(stack.kind.dtype)
    if goes_alone(stack.kind.device):
        indices = {layer.name: index for index, layer in enumerate(stack.layers)}
        for layer in layers:
            weight, *bias = gradients[layer.name]
            grad = Gradient(weight.flatten(1).contiguous().to(dtype), bias[0].to(dtype) if bias else None)
            yield Unit([layer], stack.state_of(indices[layer.name]), grad, [gradients[layer.name]], block)
        return
    parts = [gradients[layer.name] for layer in layers]
    weights = [weight for weight, *_ in parts]
    rows, *rest = weights[0].shape
    weight = weights[0].new_empty((len(layers), rows, torch.Size(rest).numel()), dtype=dtype)
    torch._foreach_copy_([part.view(one.shape) for part, one in zip(weight, weights, strict=True)], weights)
    biases = torch.stack([one[1] for one in parts]).to(dtype) if stack.kind.has_bias else None
    yield Unit(layers, stack.state_for(layers), Gradient(weight, biases), parts, block)


def goes_alone(device: torch.device) -> bool:
    """Return whether each layer is preconditioned in its own gradient."""
    return device.type == "cpu"
