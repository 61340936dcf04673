"""Hooks that reduce each layer's rows to the statistic that a method needs.

X ``[n, d_in (+1)]`` are a layer's input rows and G ``[n, d_out]`` its output-gradient rows (see `mkor_core.layer`).
Gradient rows are *raw*: autograd's rows of the global mean loss, so that ``G^T X``, summed over micro-batches and
ranks, is the gradient matrix D.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mkor_core import autograd
from mkor_core.layer import Layer, wide_dtype


@dataclass(frozen=True)
class Statistic:
    """The quantity to which the hooks reduce a layer's rows."""

    kind: Literal["mean", "moment", "rows"]
    """``mean``: the mean rows; ``moment``: the rows' second moments; ``rows``: the rows themselves."""
    clamp: float | None = None
    """Limit on the magnitude of every entry of the rows before their mean; gradient rows are scaled first."""
    examples: int | None = None
    """Take only rows of the first ``examples`` examples of the global batch; None takes all."""

    def clamped(self, limit: float) -> Self:
        """Return the same statistic over rows clamped to ``[-limit, limit]``."""
        return replace(self, clamp=limit)

    def first(self, examples: int) -> Self:
        """Return the same statistic over the first ``examples`` examples of the global batch."""
        return replace(self, examples=examples)


MEAN = Statistic("mean")
MOMENT = Statistic("moment")
ROWS = Statistic("rows")


class Captured(NamedTuple):
    """A layer's statistic of one step.

    Means and moments are kept as sums, so that micro-batches and ranks add up:

    - MEAN: x is the sum of input rows / locations ``[d_in]``, g the sum of raw gradient rows / locations ``[d_out]``,
      number the multiplicity (Linear: rows; Conv2d: examples). So ``x / number`` is the mean input row, ``g`` the mean
      *scaled* gradient row and ``g / number`` the mean raw one.
    - MOMENT: x is ``X^T X / n`` ``[d_in, d_in]`` and g is ``G^T G / n`` ``[d_out, d_out]``, of rows divided by the
      number of locations, summed over micro-batches and ranks; number counts the summands.
    - ROWS: whatever the method's `condense` returned.
    """

    x: Tensor
    g: Tensor
    number: Tensor
    """Scalar."""

    def is_finite(self) -> Tensor:
        """Return whether all entries are finite, as a boolean scalar on the device."""
        return (self.x.sum() + self.g.sum()).isfinite()


class Rows(NamedTuple):
    """The rows of one call of a layer; those of an example's locations are adjacent."""

    x: Tensor
    """Input rows X, ``[n, d_in (+1)]`` with n = examples * locations."""
    g: Tensor
    """Raw gradient rows G, ``[n, d_out]``."""
    locations: int
    """Output locations of one example; 1 for a Linear."""


def average_locations(rows: Tensor, locations: int) -> Tensor:
    """Return the mean of each example's rows: ``[examples * locations, d]`` -> ``[examples, d]``."""
    return rows if locations == 1 else rows.unflatten(0, (-1, locations)).mean(1)


def _is_dense(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested


class _Pending:
    """One layer's statistic while a step's micro-batches arrive."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.calls: dict[int, int] = {}
        """The layer's calls of which a gradient has arrived, and their indices in `rows`."""
        self.total: Captured | None = None
        self.moments: Captured | None = None
        """The current micro-batch's ``X^T X``, ``G^T G`` and number of rows; a layer may be called several times."""
        self.rows: list[Rows] = []

    def close_micro_batch(self) -> None:
        """Add the micro-batch's moments to the total, normalized by its rows: every micro-batch weighs the same."""
        if self.moments is not None:
            x, g, rows = self.moments
            self.total = _plus(self.total, Captured(x / rows, g / rows, torch.ones_like(rows)))
            self.moments = None


def _plus(total: Captured | None, term: Captured) -> Captured:
    return term if total is None else Captured(*(a + b for a, b in zip(total, term, strict=True)))


class Capture:
    """Forward and gradient hooks on layers, and the statistics of the step that is under way.

    Statistics follow the weights' ``.grad``. All backward passes that add to it count, so that several losses give the
    statistics of their sum. A pass that leaves it alone (`torch.autograd.grad`, `torch.func.grad`) is ignored. If it
    has been cleared since the last pass, what was captured before belongs to a step that never happened (a gradient
    scaler skips steps with infinite gradients), and is dropped.

    A new micro-batch begins with the first gradient that follows both a forward and an earlier backward pass.

    Args:
        layers: the layers to hook, by name.
        statistic: the quantity to which their rows are reduced.
        micro_batches: backward passes per step that share the global batch.
        shares: number of equal parts that the global mean loss is split into over ranks; gradient rows are divided by
            it.
        shard: (this rank, number of ranks); decides which examples of the global batch this rank holds.
        grad_scale: returns the loss scale that gradient rows must be divided by, or None.
        phases: returns the context manager in which the hooks work, such as a clock's, given its name, "capture".
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        statistic: Statistic,
        *,
        micro_batches: int = 1,
        shares: int = 1,
        shard: tuple[int, int] = (0, 1),
        grad_scale: Callable[[], Tensor | float | None] = lambda: None,
        phases: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.enabled = True
        self._statistic = statistic
        self._micro_batches = micro_batches
        self._shares = shares
        self._rank, self._world = shard
        self._grad_scale = grad_scale
        self._phases = phases
        self._call_numbers = itertools.count()
        self._warned: set[str] = set()
        self._passes = autograd.Passes(lambda: {name: p.layer.weight for name, p in self._pending.items()})
        # Before hooks that are there already, which may replace the output.
        self._handles: list[RemovableHandle] = [
            layer.module.register_forward_hook(
                _ForwardHook(partial(self.on_forward, layer)), with_kwargs=True, prepend=True
            )
            for layer in layers.values()
        ]
        self.drop()

    @property
    def reached(self) -> frozenset[str]:
        """The layers that a backward pass of this step has reached, even if none of their rows is taken."""
        return frozenset(self._pending)

    def take(self) -> dict[str, Captured]:
        """Return and forget the sums of every layer that took part in this step, by name; for MEAN and MOMENT."""
        taken: dict[str, Captured] = {}
        for name, pending in self._pending.items():
            pending.close_micro_batch()
            if pending.total is not None:
                taken[name] = pending.total
        self.drop()
        return taken

    def take_rows(self) -> dict[str, list[Rows]]:
        """Return and forget the rows of every layer that took part in this step, by name and call; for ROWS."""
        taken = {name: pending.rows for name, pending in self._pending.items() if pending.rows}
        self.drop()
        return taken

    def drop(self) -> None:
        """Forget this step's statistics."""
        self._pending: dict[str, _Pending] = {}
        self._micro_batch = 0
        # Whether a forward pass ran since the last gradient, and whether any gradient came in this step.
        self._forward_ran = self._backward_ran = False
        self._passes.close()

    def remove(self) -> None:
        """Remove the hooks from the model and forget everything."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.drop()

    def on_forward(self, layer: Layer, inputs: Tensor, output: Tensor) -> None:
        """Reduce a layer's input, and hook its output for the gradient."""
        weight = layer.weight
        if not (self.enabled and layer.module.training and weight is not None and weight.requires_grad):
            return
        # A checkpointed layer runs forward again inside the backward pass, which starts no micro-batch.
        if not autograd.in_backward():
            self._forward_ran = True
            self._passes.close()
        # No gradient will reach this output: evaluation, or the first forward of a reentrant checkpoint. Or there are
        # no rows: a hook of the user's has replaced the output, or the input is sparse or nested.
        if not (_is_dense(inputs) and _is_dense(output) and output.requires_grad):
            return
        # Autocast casts the input for the layer. Autograd keeps the copy, so the original may legally be changed in
        # place before the backward pass.
        dtype = autograd.autocast_dtype(inputs.device) or inputs.dtype
        with self._phases("capture"), autograd.without_autocast(inputs.device):
            inputs = layer.with_batch_dimension(inputs.detach()).to(dtype)
            examples = self._examples_taken(inputs.shape[0])
            inputs = inputs if examples is None else inputs[:examples]
            # Reduce to the sum now, not when the gradient arrives: only d_in numbers then outlive the forward pass,
            # not the whole input.
            reduced = self._input_sum(layer, inputs, output) if self._statistic.kind == "mean" else inputs
        # Hook the output tensor, not the module: a following ReLU(inplace=True) would change what a module hook sees.
        # A Linear's output on [batch, tokens, d] is a view, whose hooks an inplace ReLU drops; those of its base stay.
        shape = output.shape
        base = output._base
        hooked = base if base is not None and base.numel() == output.numel() else output
        call = next(self._call_numbers)

        def on_gradient(grad: Tensor) -> None:
            # Another weight: the call was made with parameters of torch.func.functional_call.
            if layer.weight is weight and autograd.adds_to_grad(weight):
                with torch.no_grad(), self._phases("capture"), autograd.without_autocast(grad.device):
                    self._enter_micro_batch()
                    self._add(layer, call, reduced, examples, grad.reshape(shape))

        hooked.register_hook(on_gradient)

    def _enter_micro_batch(self) -> None:
        # One more pass than expected may belong to the next step: then every .grad has been cleared.
        for name in self._passes.enter(reads=self._micro_batch + 1 >= self._micro_batches):
            del self._pending[name]
            if not self._pending:
                self._micro_batch, self._backward_ran = 0, False
        if self._backward_ran and self._forward_ran:
            self._micro_batch += 1
            for pending in self._pending.values():
                pending.close_micro_batch()
            if self._micro_batch == self._micro_batches and (self._statistic.clamp or self._statistic.examples):
                self._warn(
                    f"A step has more backward passes than accumulation_steps={self._micro_batches}. Each of them "
                    "counts as a batch of its own: pass their number as accumulation_steps if they share one batch."
                )
        self._backward_ran, self._forward_ran = True, False

    def _warn(self, message: str) -> None:
        """Warn, once for each message."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=2)

    def _examples_taken(self, batch: int) -> int | None:
        """Return how many of a micro-batch's examples are among the global batch's first ones; None for all.

        The global batch is ordered by rank, then by micro-batch. With 2 ranks, 2 micro-batches of 4 examples and
        ``statistic.examples = 6``, rank 0 takes 4 and 2 examples, rank 1 none.
        """
        if self._statistic.examples is None:
            return None
        # This runs in the forward pass, before `_enter_micro_batch` has counted the micro-batch that it starts.
        starts_next = self._backward_ran and self._forward_ran
        micro_batch = (self._micro_batch + starts_next) % self._micro_batches
        first = (self._rank * self._micro_batches + micro_batch) * batch
        return min(max(self._statistic.examples - first, 0), batch)

    @torch.no_grad()
    def _input_sum(self, layer: Layer, inputs: Tensor, output: Tensor) -> Tensor:
        """Return the sum of input rows / locations ``[d_in (+1)]``."""
        inputs = inputs.to(wide_dtype(inputs.dtype))
        limit, locations = self._statistic.clamp, layer.locations(output)
        if limit is None:
            return layer.input_sum(inputs) / locations
        return average_locations(layer.input_rows(inputs), locations).clamp(-limit, limit).sum(0)

    def _add(self, layer: Layer, call: int, reduced: Tensor, examples: int | None, grad: Tensor) -> None:
        """Add one call of a layer; reduced: the sum of its input rows for MEAN, its inputs otherwise."""
        pending = self._pending.setdefault(layer.name, _Pending(layer))
        locations = layer.locations(grad)
        grad = layer.with_batch_dimension(grad)
        grad = grad if examples is None else grad[:examples]
        if grad.numel() == 0:  # an empty micro-batch, or none of its examples is taken
            return
        grad = grad.to(wide_dtype(grad.dtype))
        divisor = self._shares if (scale := self._grad_scale()) is None else self._shares * scale
        if not isinstance(divisor, int) or divisor != 1:
            grad = grad / divisor
        # Two backward passes may go through one forward pass: the second brings more gradient for the same input rows.
        came_before = call in pending.calls
        index = pending.calls.setdefault(call, len(pending.rows))
        if came_before and (self._statistic.kind == "moment" or self._statistic.clamp is not None):
            self._warn(
                "Two backward passes went through one forward pass. Their gradient rows count as those of two batches: "
                "add the losses up and call backward() once."
            )
        if self._statistic.kind == "mean":
            sums = self._sums(layer, reduced, grad, locations)
            if came_before and self._statistic.clamp is None:
                sums = Captured(torch.zeros_like(sums.x), sums.g, torch.zeros_like(sums.number))
            pending.total = _plus(pending.total, sums)
            return
        rows = Rows(layer.input_rows(reduced.to(grad.dtype)), layer.gradient_rows(grad), locations)
        if self._statistic.kind == "rows":
            if came_before:
                rows = rows._replace(g=pending.rows.pop(index).g + rows.g)
            pending.rows.insert(index, rows)
            return
        number = torch.full((), rows.x.shape[0], dtype=grad.dtype, device=grad.device)
        x, g = rows.x / locations, rows.g / locations
        pending.moments = _plus(pending.moments, Captured(x.T @ x, g.T @ g, number))

    def _sums(self, layer: Layer, input_sum: Tensor, grad: Tensor, locations: int) -> Captured:
        is_conv = isinstance(layer.module, nn.Conv2d)
        multiplicity = grad.shape[0] if is_conv else grad.shape[:-1].numel()
        limit = self._statistic.clamp
        if limit is None:
            total = grad.sum((0, 2, 3)) / locations if is_conv else grad.sum(tuple(range(grad.dim() - 1)))
        else:
            # The limit is meant for scaled rows (raw rows times the global number of rows). Scale, clamp and scale
            # back, so that micro-batches and ranks still add up.
            number = multiplicity * self._micro_batches * self._world
            scaled = average_locations(layer.gradient_rows(grad), locations) * number
            total = scaled.clamp(-limit, limit).sum(0) / number
        return Captured(input_sum, total, torch.full((), multiplicity, dtype=grad.dtype, device=grad.device))


class _ForwardHook:
    """A layer's forward hook. Deep copies and pickles of the model carry one that captures nothing."""

    def __init__(self, on_forward: Callable[[Tensor, Tensor], None] | None) -> None:
        self._on_forward = on_forward

    # A compiled model runs the hook uncompiled, between two compiled graphs.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if self._on_forward is not None:
            self._on_forward(args[0] if args else kwargs["input"], output)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ForwardHook:
        message = "A copy of a model under a Preconditioner is not preconditioned: make a new Preconditioner for it."
        warnings.warn(message, stacklevel=2)
        return _ForwardHook(None)

    def __reduce__(self) -> tuple[type[_ForwardHook], tuple[None]]:
        return _ForwardHook, (None,)
