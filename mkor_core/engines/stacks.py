"""The layers' states on one rank, in stacks: layers of one shape share their tensors, with a leading dimension ``[L]``.

Only an `InPlaceMethod` sees stacks of several layers. For any other method each layer is a stack of its own, without a
leading dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mkor_core.capture.blocks import Block
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.capture.statistics import LayerShape
from mkor_core.devices import Deferred
from mkor_core.method import HostAssisted, InPlaceMethod, LayerState, Method


class StackKind(NamedTuple):
    """What the layers of a stack have in common."""

    shape: LayerShape
    has_bias: bool
    dtype: torch.dtype
    """That of the weights."""
    device: torch.device
    block: Block | None
    """The part of D that this rank holds; None: all of it."""
    name: str | None
    """That of a layer that is a stack of its own, without a leading dimension."""


@dataclass
class Stack:
    """Layers of one kind, and their state."""

    kind: StackKind
    layers: list[Layer]
    state: LayerState
    host: dict[str, Tensor | Deferred] = field(default_factory=dict)
    """What the next step that accumulates wants on the host."""
    is_assisted: bool = False
    """Whether the method has the host decompose tensors of this state (`HostAssisted`)."""
    requested: int | None = None
    """The step after which `host` was requested; None before the first."""

    def state_of(self, index: int) -> LayerState:
        """Return one layer's state, as views; that of a layer alone itself."""
        if self.kind.name is not None:
            return self.state  # itself, for HyLo replaces tensors by others of another size
        # Views: what a method writes into the stack is seen here, and what is loaded into a view lies in the stack.
        views: LayerState = {}
        for key, tensor in self.state.items():
            views[key] = tensor[index]
        return views

    def state_for(self, layers: Sequence[Layer]) -> LayerState:
        """Return the state of some of the layers, in the stack's order; copied unless they are all."""
        if len(layers) == len(self.layers):
            return self.state
        # In a step in which some layers have no gradient, the others are gathered into a smaller stack.
        chosen = {layer.name for layer in layers}
        indices = [index for index, layer in enumerate(self.layers) if layer.name in chosen]
        return {key: torch.stack([tensor[index] for index in indices]) for key, tensor in self.state.items()}


class States:
    """The states of layers, as far as this rank holds them: made when they are needed, moved with the weights.

    Args:
        layers: the model's layers by name.
        method: makes the states.
        holds: the layers of which this rank has a state; None: all.
        part: returns the tensors of a layer's state that this rank has; None: all.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        method: Method,
        holds: Container[str] | None = None,
        part: Callable[[str, LayerState], LayerState] | None = None,
    ) -> None:
        self._layers = layers
        self.method = method
        self._holds = layers if holds is None else holds
        self._part = part or (lambda _, state: state)
        # Rows differ in number between layers, and a decomposition of rows may fail in one of them.
        self._stands_alone = not isinstance(method, InPlaceMethod) or method.statistic.kind == "rows"
        self.stacks: list[Stack] = []
        """The stacks, in the order of their first layers."""
        self._places: dict[str, tuple[torch.dtype, torch.device]] = {}
        """Precision and device of the weights of the layers that have a state, when they were stacked."""

    def prepare(self, layers: Sequence[Layer]) -> None:
        """Make the states of layers that have none, and move those whose weights have moved."""
        # Once in a step, for every layer: so only two attributes are compared. `model.to(...)` keeps the parameters
        # themselves, and changes their precision and device.
        places = self._places
        for layer in layers:
            weight = layer.known[0]
            if places.get(layer.name) != (weight.dtype, weight.device) and layer.name in self._holds:
                self._restack(layers)
                return

    def by_layer(self) -> dict[str, LayerState]:
        """Return the states by layer, in the model's order, as views."""
        states: dict[str, LayerState] = {}
        for stack in self.stacks:
            states.update({layer.name: stack.state_of(index) for index, layer in enumerate(stack.layers)})
        return {name: states[name] for name in self._layers if name in states}

    def get(self, name: str) -> LayerState | None:
        """Return a layer's state, as views; None if this rank has none."""
        for stack in self.stacks:
            for index, layer in enumerate(stack.layers):
                if layer.name == name:
                    return stack.state_of(index)
        return None

    def bytes_by_tensor(self, layers: Sequence[Layer]) -> dict[str, int]:
        """Return the bytes of layers' states by tensor name (``left``, ``right``, ...)."""
        sizes: dict[str, int] = {}
        self.prepare(layers)
        for stack in self.stacks:
            number = len({layer.name for layer in stack.layers} & {layer.name for layer in layers})
            for key, tensor in stack.state.items():
                size = tensor.numel() // len(stack.layers) * tensor.element_size()  # of one layer
                sizes[key] = sizes.get(key, 0) + number * size
        return sizes

    def non_finite(self) -> list[str]:
        """Return the layers whose state holds a NaN or an infinity; waits for the device."""
        wrong: list[str] = []
        for stack in self.stacks:
            rows = len(stack.layers)  # a layer alone has no leading dimension, and is one row of all its numbers
            flags = [tensor.isfinite().reshape(rows, -1).all(1) for tensor in stack.state.values() if tensor.numel()]
            finite = torch.stack(flags).all(0).tolist() if flags else [True] * rows
            wrong += [layer.name for layer, fine in zip(stack.layers, finite, strict=True) if not fine]
        return [name for name in self._layers if name in wrong]

    def load(self, saved: Mapping[str, LayerState], needed: Iterable[str] = ()) -> None:
        """Replace the states with copies of saved ones, of which this rank takes its part.

        Args:
            saved: the states by layer.
            needed: layers of whose states this rank must have some.

        Raises:
            ValueError: a layer that the model lacks, a needed one that ``saved`` lacks, or a tensor that is missing,
                unknown or of another shape.
        """
        states: dict[str, LayerState] = {}
        for saved_name, state in saved.items():
            name = local_name(self._layers, saved_name)
            if name not in self._layers:
                raise ValueError(
                    f"The saved state has a layer {name!r} that this Preconditioner does not precondition."
                )
            if name in self._holds:
                initial = self._part(name, self.initial(self._layers[name]))
                states[name] = fitted(name, initial, self._part(name, state))
        # An empty state is that of a run whose method is over; see MKOR-H.
        if saved and (missing := [name for name in needed if name not in states]):
            raise ValueError(
                f"The saved state lacks layer {missing[0]!r}, which this rank owns: call consolidate() before "
                "saving it, or save every rank's with torch.distributed.checkpoint."
            )
        self._stack(states)

    def clear(self) -> None:
        """Forget all states."""
        self.stacks, self._places = [], {}

    def initial(self, layer: Layer, leading: tuple[int, ...] = ()) -> LayerState:
        """Return the state before the first step of a layer, or of a stack of layers like it."""
        weight = layer.parameters[0]
        shape = LayerShape(layer.d_out, layer.d_in)
        return self.method.initial_state(shape, wide_dtype(weight.dtype), weight.device, leading)

    def _restack(self, layers: Iterable[Layer]) -> None:
        """Stack all states anew, with those of some layers as their weights are now."""
        # All stacks are made anew, even if one layer has moved: this happens once or twice in a training.
        states = self.by_layer()
        for layer in layers:
            name = layer.name
            if name in self._holds:
                initial = self._part(name, self.initial(layer))
                states[name] = fitted(name, initial, states[name]) if name in states else initial
        self._stack(states)

    def _stack(self, states: Mapping[str, LayerState]) -> None:
        """Stack the states of layers by their kinds, in the model's order."""
        groups: dict[StackKind, list[Layer]] = {}
        for name, layer in self._layers.items():
            if name in states:
                groups.setdefault(self._kind(layer), []).append(layer)
        self.stacks = []
        for kind, layers in groups.items():
            if kind.name is not None:
                state = states[kind.name]
                self.stacks.append(Stack(kind, layers, state, is_assisted=self._is_assisted(state)))
                continue
            # [L, ...] of every tensor, which the layers' own, views of the stacks before, are copied into
            state = self.initial(layers[0], (len(layers),))
            for index, layer in enumerate(layers):
                for key, tensor in states[layer.name].items():
                    state[key][index].copy_(tensor)
            self.stacks.append(Stack(kind, layers, state, is_assisted=self._is_assisted(state)))
        self._places = {layer.name: (kind.dtype, kind.device) for kind, layers in groups.items() for layer in layers}

    def _is_assisted(self, state: LayerState) -> bool:
        return isinstance(self.method, HostAssisted) and self.method.needs_host(state)

    def _kind(self, layer: Layer) -> StackKind:
        weight = layer.parameters[0]
        shape = LayerShape(layer.d_out, layer.d_in)
        name = layer.name if self._stands_alone else None  # a name makes the kind one of its own
        return StackKind(shape, layer.has_bias, weight.dtype, weight.device, layer.block, name)


def local_name(layers: Container[str], name: str) -> str:
    """Return this model's name of a saved layer; only one of the two models may be in a data-parallel wrapper."""
    candidates = (name, name.removeprefix("module."), f"module.{name}", "" if name == "module" else name)
    return next((candidate for candidate in candidates if candidate in layers), name)


def fitted(name: str, initial: LayerState, saved: LayerState) -> LayerState:
    """Return copies of a layer's saved tensors, in the place of its initial ones where they have their shapes.

    Raises:
        ValueError: a tensor that is missing, unknown, of another shape or of another kind of number.
    """
    tensors = dict(saved)
    # The tensors' names tell hyperparameters apart that the state does not name: windows from matrices, for one.
    if differing := sorted(initial.keys() ^ tensors.keys()):
        raise ValueError(
            f"The saved state of layer {name!r} and this method's differ in tensor {differing[0]!r}: "
            "construct the method with the hyperparameters that it was saved with."
        )
    for key, tensor in tensors.items():
        if not _fits(tensor.shape, initial[key].shape):
            shapes = f"{tuple(tensor.shape)}, not {tuple(initial[key].shape)}"
            raise ValueError(f"Tensor {key!r} of layer {name!r} has shape {shapes}.")
        if tensor.is_complex() or tensor.is_floating_point() != initial[key].is_floating_point():
            dtypes = f"{tensor.dtype}, which is no form of {initial[key].dtype}"
            raise ValueError(f"Tensor {key!r} of layer {name!r} has dtype {dtypes}.")
        if tensor.shape == initial[key].shape:
            # In the memory layout of the first state, which decides how products are rounded.
            tensors[key] = initial[key].copy_(tensor.detach())
        else:
            tensors[key] = tensor.detach().to(initial[key].device, initial[key].dtype, copy=True)
    return tensors


def _fits(shape: torch.Size, initial: torch.Size) -> bool:
    """Return whether a shape suits a state that starts with the shape ``initial``, whose sizes of 0 may grow."""
    return len(shape) == len(initial) and all(b in (0, a) for a, b in zip(shape, initial, strict=True))
