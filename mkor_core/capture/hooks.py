"""Forward hooks on layers, and the backward passes whose gradients belong to the step that is under way."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mkor_core.capture import autograd
from mkor_core.capture.blocks import WHOLE, ActivationShard, local, shard_of
from mkor_core.capture.layer import Layer

FORGOTTEN = 10
"""Changes of the weights after which it is certain that nobody calls the step."""
Pending = TypeVar("Pending")
"""What a subclass keeps of one layer while a step's micro-batches arrive."""


def is_dense(value: object) -> bool:
    """Return whether a layer's input or output has rows: a tensor that is neither sparse nor nested."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested


class Hooks(ABC, Generic[Pending]):
    """Forward and gradient hooks on layers; a subclass says what becomes of a call's input and gradient.

    Statistics follow the weights' ``.grad``. All backward passes that add to it count, so that several losses give the
    statistics of their sum. A pass that leaves it alone (`torch.autograd.grad`, `torch.func.grad`) is ignored. If it
    has been cleared since the last pass, what was captured before belongs to a step that never happened (a gradient
    scaler skips steps with infinite gradients), and is dropped.

    A new micro-batch begins with the first gradient that follows both a forward and an earlier backward pass.

    Args:
        layers: the layers to hook, by name.
        micro_batches: backward passes per step that share the global batch.
        divides_batch: whether the statistic depends on how passes divide the batch, so that more of them than
            ``micro_batches`` deserve a warning.
        phases: returns the context manager in which the hooks work, such as a clock's, given its name, "capture".
    """

    traces: ClassVar[bool]
    """Whether `on_forward` can be compiled with the model; otherwise a compiled model breaks its graph there."""

    def __init__(
        self,
        layers: Mapping[str, Layer],
        *,
        micro_batches: int = 1,
        divides_batch: bool = False,
        phases: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.enabled = True
        self._layers = dict(layers)
        self._micro_batches = micro_batches
        self._divides_batch = divides_batch
        self._phases = phases
        self._warned: set[str] = set()
        self._passes = autograd.Passes(self._weights)
        on_forward = self.on_forward if self.traces else torch.compiler.disable(self.on_forward)
        # Before hooks that are there already, which may replace the output.
        self._handles: list[RemovableHandle] = [
            layer.module.register_forward_hook(_ForwardHook(partial(on_forward, layer)), with_kwargs=True, prepend=True)
            for layer in self._layers.values()
        ]
        self.drop()
        self._versions: set[int] | None = set()
        """The versions that the weights have had in backward passes; None once statistics have been taken."""

    @property
    def reached(self) -> frozenset[str]:
        """The layers that a backward pass of this step has reached, even if none of their rows is taken."""
        return frozenset(self._pending)

    def drop(self) -> None:
        """Forget this step's statistics."""
        self._pending: dict[str, Pending] = {}
        # The index of the current micro-batch, -1 before the first; modulo their number, its place in the global batch.
        self._micro_batch = -1
        # How many micro-batches the statistics are of; fewer than these if some were forgotten.
        self._held = 0
        # Whether a forward pass ran since the last gradient.
        self._forward_ran = False
        # The last pass whose first gradient was seen: a pass starts one micro-batch at most.
        self._counted_pass = 0
        self._versions = None
        self._passes.close()

    def remove(self) -> None:
        """Remove the hooks from the model and forget everything."""
        self.enabled = False  # for graphs that were compiled with them
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.drop()

    def on_forward(self, layer: Layer, inputs: Tensor, output: Tensor) -> Tensor | None:
        """Take in a layer's input, and hook its output for the gradient.

        Returns:
            The tensor to use in place of the output; None for the output itself.
        """
        weight = layer.module._parameters.get("weight")  # without computing one that is parametrized
        if not (self.enabled and layer.module.training and weight is not None and weight.requires_grad):
            return None
        if layer.weight is None or autograd.in_transform():
            return None
        # A checkpointed layer runs forward again inside the backward pass, which starts no micro-batch.
        if not autograd.in_backward():
            self._see_forward(layer.name)
        # No gradient will reach this output: evaluation, or the first forward of a reentrant checkpoint. Or there are
        # no rows: a hook of the user's has replaced the output, or the input is sparse or nested.
        if not (is_dense(inputs) and is_dense(output) and output.requires_grad):
            return None
        cast = autograd.autocast_dtype(inputs.device)
        # A plain tensor is no part of one that ranks divide.
        part, shard = (inputs, WHOLE) if type(inputs) is Tensor else (local(inputs), shard_of(inputs))
        locations = layer.locations(output) if layer.is_convolution else 1
        with self._phases("capture"):
            on_gradient = self._take_input(layer, part, locations, cast or inputs.dtype, shard)
        # Hook the output tensor, not the module: a following ReLU(inplace=True) would change what a module hook sees.
        # A Linear's output on [batch, tokens, d] is a view, whose hooks an inplace ReLU drops; those of its base stay.
        shape, base = output.shape, output._base
        hooked = base if base is not None and base.numel() == output.numel() and base.requires_grad else output

        def take_gradient(grad: Tensor) -> None:
            # Another weight: the call was made with parameters of torch.func.functional_call. FSDP changes it, too.
            is_own = layer.block is not None or layer.module._parameters.get("weight") is weight
            if is_own and autograd.adds_to_grad(weight):
                with self._phases("capture"), autograd.without_autocast(grad.device):
                    self._enter_micro_batch()
                    grad = grad.detach()  # with create_graph=True it has a graph of its own
                    grad = grad if grad.shape == shape else grad.reshape(shape)  # that of a base: [batch * tokens, d]
                    rows, shard = (grad, WHOLE) if type(grad) is Tensor else (local(grad), shard_of(grad))
                    has_batch = rows.dim() >= layer.batched_dimensions
                    on_gradient(rows if has_batch else layer.with_batch_dimension(rows), shard)

        hooked.register_hook(take_gradient)
        return None

    @abstractmethod
    def _take_input(
        self, layer: Layer, inputs: Tensor, locations: int, dtype: torch.dtype, shard: ActivationShard
    ) -> Callable[[Tensor, ActivationShard], None]:
        """Take in a call's input; return what takes in each gradient of its output, with a batch dimension.

        Args:
            layer: the layer that is called.
            inputs: its input, as it was passed.
            locations: output locations of an example.
            dtype: the one to which autocast casts the input for the layer.
            shard: the part of the input that this rank has.
        """

    @abstractmethod
    def _close_micro_batch(self, pending: Pending) -> None:
        """Add what a micro-batch has brought to the step's total."""

    def _weights(self) -> dict[str, Tensor | None]:
        """Return the weights of the layers with statistics in this step."""
        weights: dict[str, Tensor | None] = {}
        for name in self._pending:
            weights[name] = self._layers[name].weight
        return weights

    def _enter_micro_batch(self, *, compiled: bool = False) -> None:
        """Tell of a gradient; compiled: of a compiled graph, whose forward pass does not tell and is assumed."""
        if cleared := self._passes.enter():
            self._forget(cleared)
        if self._counted_pass == self._passes.number:
            return
        self._counted_pass = self._passes.number
        self._watch_for_step()
        # A second backward pass through the same forward pass, that of another loss, adds to the same micro-batch.
        if self._micro_batch < 0 or self._forward_ran or compiled:
            self._micro_batch += 1
            self._held += 1
            for pending in self._pending.values():
                self._close_micro_batch(pending)
            if self._held == self._micro_batches + 1 and self._divides_batch:
                self._warn(
                    f"A step has more backward passes than accumulation_steps={self._micro_batches}. Each of them "
                    "counts as a batch of its own: pass their number as accumulation_steps if they share one batch."
                )
        self._forward_ran = False

    def _watch_for_step(self) -> None:
        """Warn, before the first step, of weights that change again and again although nobody takes the statistics."""
        # Passes alone say nothing: a step may have many, and a gradient scaler may skip the first steps.
        if self._versions is None:
            return
        self._versions.add(
            # In-place writes, such as an optimizer's step, raise a tensor's version, and so this sum.
            sum(weight._version for layer in self._layers.values() if (weight := layer.weight) is not None)
        )
        if len(self._versions) > FORGOTTEN:
            self._versions = None
            self._warn(
                f"The weights have changed {FORGOTTEN} times, and the Preconditioner's step() was never called: "
                "attach() it to the optimizer, or call step() between backward() and optimizer.step()."
            )

    def _see_forward(self, name: str) -> None:
        """Tell of a layer's forward pass; forget what was cleared: the micro-batch that begins may be the first."""
        if not self._pending:
            self._micro_batch = -1
        # Once in a forward pass, and again if it was given up and gradients were cleared since.
        elif not self._forward_ran or self._passes.changed(name):
            self._forget(self._passes.cleared())
            if not self._pending:
                self._micro_batch = -1
        self._forward_ran = True
        self._passes.close()

    def _forget_cleared(self) -> None:
        """Forget, in a backward pass, the layers whose ``.grad`` was cleared before it.

        Its forward pass has taken the micro-batch for the one after those that are forgotten, so it keeps that place.
        """
        self._forget(self._passes.enter())

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            del self._pending[name]
        if not self._pending:
            self._held = 0

    def _warn(self, message: str) -> None:
        """Warn, once for each message."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=2)


class _ForwardHook:
    """A layer's forward hook. Deep copies and pickles of the model carry one that captures nothing."""

    def __init__(self, on_forward: Callable[[Tensor, Tensor], Tensor | None] | None) -> None:
        self._on_forward = on_forward

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if self._on_forward is None:
            return None
        return self._on_forward(args[0] if args else next(iter(kwargs.values())), output)  # kwargs: layer(input=x)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ForwardHook:
        message = "A copy of a model under a Preconditioner is not preconditioned: make a new Preconditioner for it."
        warnings.warn(message, stacklevel=2)
        return _ForwardHook(None)

    def __reduce__(self) -> tuple[type[_ForwardHook], tuple[None]]:
        return _ForwardHook, (None,)
