"""The engine of a `StackedMethod`: layers of one shape share their state tensors, and are updated together.

A *stack* holds the layers of one shape, dtype and device. Its state tensors have a leading dimension ``[L]``. On a GPU
the gradients of a stack are gathered, preconditioned by a few kernels and scattered. On a CPU, where a kernel costs
nothing to start and a copy does, each layer is preconditioned in its own ``.grad``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mkor_core.capture import Captured, Sums
from mkor_core.diagnostics import NOISE, NOT_FINITE, Diagnostics
from mkor_core.kl_clip import clip_factor, split_rates
from mkor_core.layer import Layer, wide_dtype
from mkor_core.method import LayerShape, LayerState, LearningRate, Prepared, StackedMethod
from mkor_core.products import Gradient
from mkor_core.states import fitted, local_name, unknown_layer
from mkor_core.transfers import Deferred


class Kind(NamedTuple):
    """What the layers of a stack have in common."""

    shape: LayerShape
    has_bias: bool
    dtype: torch.dtype
    """That of the weights."""
    device: torch.device

    @classmethod
    def of(cls, layer: Layer) -> Kind:
        """Return a layer's kind."""
        weight = layer.module.weight
        return cls(LayerShape(layer.d_out, layer.d_in), layer.has_bias, weight.dtype, weight.device)


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


class StackedEngine:
    """The states of a model's layers under a stacked method, and what a step does with them.

    Args:
        layers: the layers by name.
        method: the method.
        diagnostics: gets the reports.
        phases: returns the context manager of a phase of the work.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        method: StackedMethod,
        diagnostics: Diagnostics,
        phases: Callable[[str], AbstractContextManager[object]],
    ) -> None:
        self._layers = layers
        self._method = method
        self._diagnostics = diagnostics
        self._phases = phases
        self._stacks: dict[Kind, Stack] = {}
        self._kinds: dict[str, Kind] = {}
        """The kinds of the layers that have a state, when they were stacked."""

    def update(
        self,
        layers: Sequence[Layer],
        statistics: Mapping[str, Sums],
        step: int,
        will_step: Tensor | None,
        scale: Tensor | None,
    ) -> bool:
        """Fold a step's statistics into the states and refresh them; return whether there were any.

        Args:
            layers: those that are trained.
            statistics: the statistics of this step, summed over ranks, by layer.
            step: the step (from 0).
            will_step: whether the optimizer takes this step, as a boolean device scalar; None for yes.
            scale: the loss scale by which the gradients are multiplied; None for 1.
        """
        if not statistics:
            return False
        with self._phases("factor"):
            updated = [
                stack for stack in self._ensure(layers) if any(layer.name in statistics for layer in stack.layers)
            ]
            wrong = [~self._update_stack(stack, statistics, step, will_step, scale) for stack in updated]
            if will_step is not None:
                wrong = [flags & will_step for flags in wrong]
            names = [layer.name for stack in updated for layer in stack.layers]
            self._diagnostics.settle()
            self._diagnostics.note(NOT_FINITE, names, wrong)
            noise = [flags for stack in updated if (flags := self._method.noise(stack.state)) is not None]
            self._diagnostics.note(NOISE, names, noise)
        return True

    def precondition(self, layers: Sequence[Layer], rates: Sequence[LearningRate], scale: Tensor | None) -> None:
        """Replace the gradients of layers by their updates.

        Args:
            layers: those that have a gradient.
            rates: their learning rates.
            scale: the loss scale by which the gradients are multiplied; None for 1. Updates are multiplied by it too.
        """
        with self._phases("precondition"):
            present = {layer.name for layer in layers}
            stacks = [
                (stack, chosen)
                for stack in self._ensure(layers)
                if (chosen := [layer for layer in stack.layers if layer.name in present])
            ]
            clip = self._method.clip
            if clip is None:
                # One stack's gradients live at a time. V is linear in D, so that the loss scale does not matter.
                for stack, chosen in stacks:
                    for unit in _units(stack, chosen):
                        self._method.apply(unit.state, unit.grad)
                        _write_back(unit)
            else:
                by_name = {layer.name: rate for layer, rate in zip(layers, rates, strict=True)}
                self._precondition_clipped([unit for pair in stacks for unit in _units(*pair)], clip, by_name, scale)

    def bytes_by_tensor(self, layers: Sequence[Layer]) -> dict[str, int]:
        """Return the bytes of layers' states by tensor name (``left``, ``right``, ...)."""
        sizes: dict[str, int] = {}
        for stack in self._ensure(layers):
            number = len({layer.name for layer in stack.layers} & {layer.name for layer in layers})
            for key, tensor in stack.state.items():
                size = tensor.numel() // len(stack.layers) * tensor.element_size()
                sizes[key] = sizes.get(key, 0) + number * size
        return sizes

    def non_finite(self) -> list[str]:
        """Return the layers whose state holds a NaN or an infinity; waits for the device."""
        wrong: list[str] = []
        for stack in self._stacks.values():
            flags = [tensor.isfinite().reshape(len(stack.layers), -1).all(1) for tensor in stack.state.values()]
            finite = torch.stack(flags)
            wrong += [layer.name for layer, fine in zip(stack.layers, finite.all(0).tolist(), strict=True) if not fine]
        return [name for name in self._layers if name in wrong]

    def consolidate(self, rank: int | None) -> None:
        """Do nothing: every rank holds all states."""

    def forget_consolidated(self) -> None:
        """Do nothing, as `consolidate`."""

    def saved(self) -> dict[str, LayerState]:
        """Return the states by layer, as views."""
        states = {
            layer.name: stack.state_of(index)
            for stack in self._stacks.values()
            for index, layer in enumerate(stack.layers)
        }
        return {name: states[name] for name in self._layers if name in states}

    def load(self, saved: Mapping[str, LayerState]) -> None:
        """Replace the states with copies of saved ones.

        Raises:
            ValueError: a layer that the model lacks, or a tensor that is missing, unknown or of another shape.
        """
        states: dict[str, LayerState] = {}
        for saved_name, state in saved.items():
            name = local_name(self._layers, saved_name)
            if name not in self._layers:
                raise ValueError(unknown_layer(name))
            states[name] = fitted(name, self._initial(Kind.of(self._layers[name]), ()), state)
        self._stack(states)

    def clear(self) -> None:
        """Forget all states."""
        self._stacks, self._kinds = {}, {}

    def _update_stack(
        self,
        stack: Stack,
        statistics: Mapping[str, Sums],
        step: int,
        will_step: Tensor | None,
        scale: Tensor | None,
    ) -> Tensor:
        """Update one stack; return which of its layers have finite statistics, all those without any among them."""
        method, state = self._method, stack.state
        captured = _joined(stack, statistics, scale)
        finite = (captured.x.flatten(1).sum(1) + captured.g.flatten(1).sum(1)).isfinite()
        # A layer that no rank used has the number 0.
        accept = finite & (captured.number > 0)
        if will_step is not None:
            accept = accept & will_step
        norms = _gradient_norms(stack, scale) if method.needs_gradient_norms else None
        if method.decomposes:
            for index, layer in enumerate(stack.layers):
                one = Captured(captured.x[index], captured.g[index], captured.number[index])
                try:
                    method.accumulate(stack.state_of(index), one, step, accept[index])
                except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                    accept[index] = False
                    self._diagnostics.report_failure(layer.name)
        else:
            method.accumulate(state, captured, step, accept, norms)
        if method.refreshes(step):
            # A step that comes again, because the optimizer skipped it, cannot use what was requested after it.
            is_later = stack.refreshed is not None and stack.refreshed < step
            host = {key: _on_host(value) for key, value in stack.host.items()} if is_later else None
            method.refresh(state, step, accept, will_step, host)
            stack.host = {key: _requested(tensor) for key, tensor in method.host_inputs(state, step).items()}
            stack.refreshed = step
        return finite

    def _precondition_clipped(
        self, units: Sequence[Unit], clip: float, rates: Mapping[str, LearningRate], scale: Tensor | None
    ) -> None:
        prepared = [self._method.prepare(unit.state, unit.grad) for unit in units]
        nu = clip_factor([_term(unit, one, rates, scale) for unit, one in zip(units, prepared, strict=True)], clip)
        for unit, one in zip(units, prepared, strict=True):
            self._method.apply(unit.state, unit.grad, one, nu.to(unit.grad.weight.device))
            _write_back(unit)

    def _ensure(self, layers: Iterable[Layer]) -> list[Stack]:
        """Return all stacks, the layers' among them; stack anew if a layer is new, or its weight has moved."""
        kinds = {layer.name: Kind.of(layer) for layer in layers}
        if any(self._kinds.get(name) != kind for name, kind in kinds.items()):
            states = self.saved()
            for name, kind in kinds.items():
                initial = self._initial(kind, ())
                states[name] = fitted(name, initial, states[name]) if name in states else initial
            self._stack(states)
        return list(self._stacks.values())

    def _stack(self, states: Mapping[str, LayerState]) -> None:
        """Stack the states of layers by their kinds, in the model's order."""
        groups: dict[Kind, list[Layer]] = {}
        for name, layer in self._layers.items():
            if name in states:
                groups.setdefault(Kind.of(layer), []).append(layer)
        self._stacks = {}
        for kind, layers in groups.items():
            state = self._initial(kind, (len(layers),))
            for index, layer in enumerate(layers):
                for key, tensor in states[layer.name].items():
                    state[key][index].copy_(tensor)
            self._stacks[kind] = Stack(kind, layers, state)
        self._kinds = {layer.name: kind for kind, layers in groups.items() for layer in layers}

    def _initial(self, kind: Kind, leading: tuple[int, ...]) -> LayerState:
        return self._method.initial_state(kind.shape, wide_dtype(kind.dtype), kind.device, leading)


def _joined(stack: Stack, statistics: Mapping[str, Sums], scale: Tensor | None) -> Captured:
    """Return a stack's statistics ``[L, ...]``, zeros for the layers without any; scale: that of the gradients."""
    known = [statistics.get(layer.name) for layer in stack.layers]
    sums = [one for one in known if one is not None]
    if len(sums) < len(known):
        x, g, number, locations = sums[0]
        blank = Sums(
            torch.zeros_like(x), None if g is None else torch.zeros_like(g), torch.zeros_like(number), locations
        )
        sums = [blank if one is None else one for one in known]
    x, number = torch.stack([one.x for one in sums]), torch.stack([one.number for one in sums])
    if all(one.g is None for one in sums) and not any(isinstance(one.locations, Tensor) for one in sums):
        g = _biases(stack.layers, x.dtype) if scale is None else _biases(stack.layers, x.dtype) / scale
    else:
        g = torch.stack(
            [one.complete(layer.bias_gradient(scale)).g for one, layer in zip(sums, stack.layers, strict=True)]
        )
    return Captured(x, g, number)


def _biases(layers: Sequence[Layer], dtype: torch.dtype) -> Tensor:
    """Return the gradients of the biases ``[L, d_out]``, zeros for a layer without one."""
    return torch.stack([layer.bias_gradient() for layer in layers]).to(dtype)


def _gradient_norms(stack: Stack, scale: Tensor | None) -> Tensor:
    """Return ``|D|`` of every layer ``[L]``, 0 for one without a gradient; scale: that of the gradients."""
    none = torch.zeros((), dtype=wide_dtype(stack.kind.dtype), device=stack.kind.device)
    norms = [torch.linalg.vector_norm(layer.gradient()) if layer.has_gradient() else none for layer in stack.layers]
    return torch.stack(norms) if scale is None else torch.stack(norms) / scale


def _units(stack: Stack, layers: Sequence[Layer]) -> Iterable[Unit]:
    """Yield the gradients of a stack's layers: one layer at a time on a CPU, together elsewhere."""
    if _goes_alone(stack.kind.device):
        indices = {layer.name: index for index, layer in enumerate(stack.layers)}
        for layer in layers:
            yield Unit([layer], stack.state_of(indices[layer.name]), Gradient(*layer.split_gradient()))
        return
    weights = [_required(layer.module.weight.grad) for layer in layers]
    dtype = wide_dtype(stack.kind.dtype)
    d_out, d_in = stack.kind.shape
    weight = weights[0].new_empty((len(layers), d_out, d_in - stack.kind.has_bias), dtype=dtype)
    torch._foreach_copy_([part.view(grad.shape) for part, grad in zip(weight, weights, strict=True)], weights)
    bias = None
    if stack.kind.has_bias:
        bias = _biases(layers, dtype)
    yield Unit(layers, stack.state_for(layers), Gradient(weight, bias))


def _goes_alone(device: torch.device) -> bool:
    """Return whether each layer is preconditioned in its own gradient."""
    return device.type == "cpu"


def _write_back(unit: Unit) -> None:
    """Write the updates of a unit into the gradients that do not share its memory."""
    weight, bias = unit.grad
    if weight.dim() == 2:
        unit.layers[0].write_split_gradient(weight, bias)
        return
    grads = [_required(layer.module.weight.grad) for layer in unit.layers]
    parts = [part.view(grad.shape) for part, grad in zip(weight, grads, strict=True)]
    if bias is not None:
        for layer, part in zip(unit.layers, bias, strict=True):
            grad = layer.parameters[1].grad
            if grad is not None:
                grads.append(grad)
                parts.append(part)
    torch._foreach_copy_(grads, parts)


def _required(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad


def _term(unit: Unit, prepared: Prepared, rates: Mapping[str, LearningRate], scale: Tensor | None) -> Tensor:
    """Return ``sum(V * D) lr^2`` over a unit's layers, of unscaled gradients, without those that keep D."""
    of_weight, of_bias = prepared.inner
    weight_rates, bias_rates = split_rates([rates[layer.name] for layer in unit.layers], of_weight)
    total = of_weight * weight_rates**2 + of_bias * bias_rates**2
    if scale is not None:
        total = total / scale**2
    return torch.where(prepared.keeps, 0, total).sum()


def _requested(tensor: Tensor) -> Tensor | Deferred:
    return Deferred(tensor) if tensor.is_cuda else tensor


def _on_host(value: Tensor | Deferred) -> Tensor:
    return value.on_host() if isinstance(value, Deferred) else value
