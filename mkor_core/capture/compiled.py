"""What goes into compiled graphs and comes out of them: numbers that vary, and sums.

A compiled backward pass calls no hook of an output, but it returns gradients. So the sums of a layer's rows leave it as
gradients of leaves of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mkor_core.capture.layer import wide_dtype
from mkor_core.capture.reductions import Parts

Reduce = Callable[..., Parts]
"""Returns the sums, given the gradient of the output and what the forward pass has kept."""


class Ghosts:
    """A layer's leaves, one for each of its sums. Autograd decides whether a backward pass adds to them.

    Args:
        shapes: the shapes of the sums, by name.
        weight: the layer's weight, whose device and precision they have.
        take: called with the name of a sum and its value whenever a backward pass has brought one.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], weight: Tensor, take: Callable[[str, Tensor], None]):
        self._leaves = {name: _leaf(shape, weight) for name, shape in shapes.items()}

        def move(name: str, leaf: Tensor) -> None:
            # Emptied here, or autograd would add the next pass's sums to these.
            value, leaf.grad = leaf.grad, None
            if value is not None:  # autograd runs the hook of a sum that `reduce` leaves out, too
                take(name, value)

        for name, leaf in self._leaves.items():
            leaf.register_post_accumulate_grad_hook(lambda leaf, name=name: move(name, leaf))

    def fit(self, weight: Tensor) -> bool:
        """Return whether a weight still has the device and precision of the leaves."""
        dtype = wide_dtype(weight.dtype)
        return all(leaf.device == weight.device and leaf.dtype == dtype for leaf in self._leaves.values())

    def attach(self, output: Tensor, reduce: Reduce, kept: tuple[Tensor | None, ...]) -> Tensor:
        """Return the output, through which the backward pass brings ``reduce(gradient, *kept)`` to the leaves."""
        # The model may have moved since the leaves were made.
        leaves = [leaf.to(output.device) for leaf in self._leaves.values()]
        # The leaves are arguments of their own: autograd does not see tensors inside a tuple.
        attached: Tensor = _Attach.apply(  # type: ignore[no-untyped-call]
            output, reduce, tuple(self._leaves), len(kept), *kept, *leaves
        )
        return attached


class GraphNumbers:
    """Numbers that graphs read from tensors ``[1]``: for each of Python's, a graph of its own would be compiled."""

    def __init__(self) -> None:
        self.index: int | None = None
        """The same number as `micro_batch`."""
        self.micro_batch: Tensor | None = None
        """The index of a step's next micro-batch."""
        self.loss_scale: Tensor | None = None

    def set_micro_batch(self, index: int, like: Tensor) -> None:
        """Set the index, on the device of ``like``."""
        if index != self.index:
            self.index = index
            # A new tensor: a graph that awaits its backward pass may hold the old one.
            self.micro_batch = torch.full((1,), index, device=like.device)

    def set_loss_scale(self, scale: Tensor | float | None, like: Tensor) -> None:
        """Set the loss scale. A tensor is kept itself: a GradScaler changes its scale in place."""
        if scale is not None and not isinstance(scale, Tensor):
            scale = torch.full((), scale, dtype=torch.float32, device=like.device)
        # A view, which shares the memory that the scaler writes its next scale to.
        self.loss_scale = None if scale is None else scale.view(1)


def _leaf(shape: tuple[int, ...], weight: Tensor) -> Tensor:
    # One number in memory, whatever the shape.
    zero = torch.zeros((), dtype=wide_dtype(weight.dtype), device=weight.device)
    return zero.expand(shape).requires_grad_()


class _Attach(torch.autograd.Function):
    """The identity of its first argument, with gradients for the leaves in its last."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, reduce: Reduce, names: tuple[str, ...], kept: int, *tensors: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(*tensors[:kept])
        ctx.reduce, ctx.names, ctx.kept = reduce, names, kept
        # Not the output itself: torch refuses to change a returned argument in place, as a following ReLU may.
        return output.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        parts = ctx.reduce(grad, *ctx.saved_tensors)
        # One value for each argument of forward: output, reduce, names, kept, then the tensors. The gradient of the
        # output itself passes through unchanged.
        return grad, None, None, None, *[None] * ctx.kept, *(parts.get(name) for name in ctx.names)
