"""Hooks that reduce each layer's rows to the sums that a method needs.

X ``[n, d_in (+1)]`` are a layer's input rows and G ``[n, d_out]`` its output-gradient rows (`mkor_core.capture.layer`).
Gradient rows are *raw*: autograd's rows of the global mean loss, so that ``G^T X``, summed over micro-batches and
ranks, is the gradient matrix D.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from mkor_core.capture import autograd
from mkor_core.capture.blocks import WHOLE, ActivationShard, is_dtensor
from mkor_core.capture.compiled import Ghosts, GraphNumbers
from mkor_core.capture.hooks import Hooks, is_dense
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.capture.reductions import (
    GradScale,
    Parts,
    Scale,
    Taken,
    add_parts,
    divisor,
    first_examples,
    gradient_sum,
    input_vector,
    mean_locations,
    moments,
)
from mkor_core.capture.statistics import Statistic, Sums


@dataclass
class PendingSums:
    """One layer's sums while a step's micro-batches arrive."""

    total: Parts = field(default_factory=dict)
    batch: Parts = field(default_factory=dict)
    """The current micro-batch's ``X^T X``, ``G^T G`` and number of rows; a layer may be called several times."""

    def close_micro_batch(self) -> None:
        """Add the micro-batch's moments to the total, normalized by its rows: every micro-batch weighs the same."""
        if self.batch:
            rows = self.batch["number"]
            means = {side: self.batch[side] / rows for side in "xg" if side in self.batch}
            add_parts(self.total, {**means, "number": torch.ones_like(rows)})
            self.batch = {}


class Vectors:
    """Vectors of one number, cut from buffers of many: one kernel fills them all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.free: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}
        """What is left of the buffers, by number, precision and device."""

    def cut(self, length: int, number: float, like: Tensor) -> Tensor:
        """Return a vector ``[length]`` of ``number``, in `wide_dtype` and on the device of ``like``."""
        dtype = wide_dtype(like.dtype)
        key = (number, dtype, like.device)
        free = self.free.get(key)
        if free is None or len(free) < length:
            free = torch.full((max(self._size, length),), number, dtype=dtype, device=like.device)
        vector, self.free[key] = free[:length], free[length:]  # views, which start no kernel
        return vector


class _LastSum(NamedTuple):
    """The last input of a Linear that was summed. Layers called with the same tensor (q, k and v) share its sum."""

    inputs: weakref.ref[Tensor]
    version: int
    taken: int | None
    vector: Tensor


class _Call(NamedTuple):
    """What is known of a call of a layer before its gradient arrives."""

    layer: Layer
    locations: int
    """Output locations of an example."""
    sums_gradients: bool
    """Whether gradient rows are summed; otherwise no g is needed, or the bias has it."""
    shard: ActivationShard
    """The part of the input that this rank has."""


class Capture(Hooks[PendingSums]):
    """Hooks that reduce layers' rows to means or moments; see `Hooks` for the passes that count.

    Outside of `torch.compile`, the gradient arrives in a hook of the layer's output. A compiled backward pass calls no
    hooks, so it returns the sums as gradients of leaves, which autograd accumulates as it does the parameters'
    (`mkor_core.capture.compiled`). There the work is part of the forward and backward passes, and every backward pass
    starts a micro-batch.

    Args:
        layers: the layers to hook, by name.
        statistic: the quantity to which their rows are reduced: means or moments.
        micro_batches: backward passes per step that share the global batch.
        shares: number of equal parts that the global mean loss is split into over ranks; gradient rows are divided by
            it.
        place: this rank's place among the parts of the global batch; decides which examples it holds.
        sharers: the number of tensor-parallel ranks that share such a part.
        grad_scale: returns the loss scale that gradient rows must be divided by, or None.
        phases: returns the context manager in which the hooks work, such as a clock's, given its name, "capture".
    """

    traces: ClassVar[bool] = True

    def __init__(
        self,
        layers: Mapping[str, Layer],
        statistic: Statistic,
        *,
        micro_batches: int = 1,
        shares: int = 1,
        place: int = 0,
        sharers: int = 1,
        grad_scale: GradScale = lambda: None,
        phases: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._statistic = statistic
        self._shares = shares
        self._place = place
        self._sharers = sharers
        self._grad_scale = grad_scale
        self._last_sum: _LastSum | None = None
        self._vectors = Vectors(sum(layer.d_w + 1 for layer in layers.values()))
        self._ghosts: dict[str, Ghosts] = {}
        self._graph_numbers = GraphNumbers()
        self._weight_handles: dict[str, RemovableHandle] = {}
        self._places: dict[str, tuple[torch.dtype, torch.device]] = {}
        """Precision and device of the layers' weights when their leaves for graphs were made."""
        divides_batch = statistic.clamp is not None or statistic.examples is not None
        self._takes_rows = statistic.kind == "mean" and statistic.clamp is None and sharers == 1
        """Whether rows enter a mean as they are."""
        super().__init__(layers, micro_batches=micro_batches, divides_batch=divides_batch, phases=phases)
        self._make_ghosts()

    def take(self) -> dict[str, Sums]:
        """Return and forget the sums of every layer that took part in this step, by name."""
        taken: dict[str, Sums] = {}
        for name, pending in self._pending.items():
            if pending.batch:
                pending.close_micro_batch()
            if pending.total:
                taken[name] = self._sums(self._layers[name], pending.total)
        self.drop()
        self._make_ghosts()  # before the next forward pass: the model may have moved
        return taken

    @override
    def drop(self) -> None:
        super().drop()
        self._vectors.free = {}
        if self._graph_numbers.index != 0:
            self._graph_numbers.set_micro_batch(0, self._any_weight())
        if self._statistic.clamp is not None:  # graphs cannot call it
            self._graph_numbers.set_loss_scale(self._grad_scale(), self._any_weight())
        for handle in self._weight_handles.values():
            handle.remove()
        self._weight_handles = {}

    @override
    def on_forward(self, layer: Layer, inputs: Tensor, output: Tensor) -> Tensor | None:
        return (self._trace if torch.compiler.is_compiling() else super().on_forward)(layer, inputs, output)

    @override
    def _close_micro_batch(self, pending: PendingSums) -> None:
        pending.close_micro_batch()

    @override
    def _take_input(
        self, layer: Layer, inputs: Tensor, locations: int, dtype: torch.dtype, shard: ActivationShard
    ) -> Callable[[Tensor, ActivationShard], None]:
        if self._takes_rows and shard is WHOLE and layer.sums_inputs:
            return self._take_linear(layer, inputs)
        examples = self._examples_taken(layer.batch_size(inputs))
        call = _Call(layer, locations, self._statistic.sums_gradients(layer), self._shard(shard))
        kept = self._kept(call, inputs, dtype, examples)
        added: PendingSums | None = None  # the step's sums to which this call has been added

        def add(grad: Tensor, shard: ActivationShard) -> None:
            nonlocal added
            pending = self._pending.setdefault(layer.name, PendingSums())
            came_before, added = added is pending, pending
            if examples == 0 or layer.multiplicity(grad) == 0:  # no example is taken, or the micro-batch is empty
                return
            scale = None if self._statistic.clamp is None else self._grad_scale()
            parts = self._reduced(call, kept, grad, examples, scale, self._shard(shard))
            # Two backward passes may go through one forward pass: the second brings more gradient for the same rows.
            if came_before and self._statistic.is_linear:
                del parts["x"]  # the first pass has added it
            elif came_before:
                self._warn(
                    "Two backward passes went through one forward pass. Their gradient rows count as those of two "
                    "batches: add the losses up and call backward() once."
                )
            self._add(pending, parts)

        return add

    def _take_linear(self, layer: Layer, inputs: Tensor) -> Callable[[Tensor, ActivationShard], None]:
        """Do what `_take_input` does, for plain means of the rows of a Linear: the case that must be fast."""
        statistic, last = self._statistic, self._last_sum
        taken = None if statistic.examples is None else self._examples_taken(layer.batch_size(inputs))
        if last is None or last.inputs() is not inputs or (last.version, last.taken) != (inputs._version, taken):
            rows = inputs.detach() if inputs.dim() > 1 else inputs.detach()[None]  # [d_in] -> [1, d_in]
            rows = rows if taken is None else rows[:taken]
            d_w, axes = rows.shape[-1], tuple(range(rows.dim() - 1))
            vector = self._vectors.cut(d_w + 1, rows.shape[:-1].numel(), rows)
            torch.sum(rows, axes, dtype=vector.dtype, out=vector[:d_w])
            last = self._last_sum = _LastSum(weakref.ref(inputs), inputs._version, taken, vector)
        vector = last.vector
        bias = layer.module._parameters["bias"] if layer.has_bias and taken is None else None
        # The gradient of a trained bias is the sum of the gradient rows of all examples.
        sums_gradients = statistic.sides == "both" and (bias is None or not bias.requires_grad)
        added: PendingSums | None = None

        def add(grad: Tensor, _: ActivationShard) -> None:
            nonlocal added
            pending = self._pending.get(layer.name)
            if pending is None:
                pending = self._pending[layer.name] = PendingSums()
            came_before, added = added is pending, pending
            if 0 in grad.shape[:-1] or taken == 0:  # the micro-batch is empty, or no example is taken
                return
            total = pending.total
            if not came_before:
                total["x"] = total["x"] + vector if "x" in total else vector  # not in place: it is shared
            if sums_gradients:
                self._add(pending, {"g": layer.gradient_sum(grad[:taken])})

        return add

    def _trace(self, layer: Layer, inputs: Tensor, output: Tensor) -> Tensor | None:
        """Do the same inside a graph that is compiled."""
        # torch.func.functional_call replaces parameters by tensors that are none.
        weight = layer.module._parameters.get("weight")
        if not (self.enabled and layer.module.training and isinstance(weight, nn.Parameter) and weight.requires_grad):
            return None
        if layer.weight is None:
            return None
        if not (is_dense(inputs) and is_dense(output) and output.requires_grad) or is_dtensor(inputs):
            return None
        taken, scale = self._taken_on_device(layer.batch_size(inputs), inputs.device), self._graph_numbers.loss_scale
        shard = self._shard(WHOLE)
        call = _Call(layer, layer.locations(output), self._statistic.sums_gradients(layer), shard)
        kept = self._kept(call, inputs, autograd.autocast_dtype(inputs.device) or inputs.dtype, taken)

        def reduce(grad: Tensor, kept: Tensor, taken: Tensor | None, scale: Tensor | None) -> Parts:
            if grad.numel() == 0:  # an empty micro-batch
                return {}
            with torch.no_grad(), autograd.without_autocast(grad.device):
                return self._reduced(call, kept, layer.with_batch_dimension(grad), taken, scale, shard)

        return self._ghosts[layer.name].attach(output, reduce, (kept, taken, scale))

    def _take_compiled(self, layer: Layer, name: str, value: Tensor) -> None:
        """Take one of a layer's sums from a backward pass of a compiled graph."""
        with torch.no_grad():
            self._enter_micro_batch(compiled=True)
            self._graph_numbers.set_micro_batch((self._micro_batch + 1) % self._micro_batches, value)
            pending = self._pending.setdefault(layer.name, PendingSums())
            weight = layer.module._parameters.get("weight")
            if weight is not None and layer.name not in self._weight_handles:
                # In the next pass, weights may get their gradients before this hook runs: see then what was cleared.
                self._weight_handles[layer.name] = weight.register_hook(lambda _: self._forget_cleared())
            # A CUDA graph may overwrite what it returned when it runs again, in the next micro-batch.
            self._add(pending, {name: value.clone()})

    def _make_ghosts(self) -> None:
        """Make the leaves that are missing, or that a layer has left for another device or precision."""
        for name, layer in self._layers.items():
            weight = layer.module._parameters.get("weight")
            if weight is None or self._places.get(name) == (weight.dtype, weight.device):
                continue
            self._places[name] = weight.dtype, weight.device
            if name not in self._ghosts or not self._ghosts[name].fit(weight):
                take = partial(self._take_compiled, layer)
                self._ghosts[name] = Ghosts(self._shapes(layer), weight, take)

    def _shard(self, shard: ActivationShard) -> ActivationShard:
        """Return a shard of a batch that the ranks of tensor parallelism shard."""
        return shard if self._sharers == 1 else shard.shared_by(self._sharers)

    def _any_weight(self) -> Tensor:
        return next(iter(self._layers.values())).module.weight

    def _add(self, pending: PendingSums, parts: Parts) -> None:
        is_moment = self._statistic.kind == "moment"  # G^T G has the divisor in both factors
        if "g" in parts and (scale := divisor(self._shares, self._grad_scale)) is not None:
            parts = {**parts, "g": parts["g"] / (scale * scale if is_moment else scale)}
        add_parts(pending.batch if is_moment else pending.total, parts)

    def _kept(self, call: _Call, inputs: Tensor, dtype: torch.dtype, taken: Taken) -> Tensor:
        """Return what the backward pass needs of an input: its sum for means, itself for moments."""
        layer, locations, _, shard = call
        batch = layer.with_batch_dimension(inputs.detach())
        if self._statistic.kind == "moment":
            # Autograd keeps autocast's copy of the input, so the original may legally be changed in place before the
            # backward pass.
            return batch.to(dtype)
        # Reduce to the sum now, not when the gradient arrives: only d_in numbers then outlive the forward pass.
        limit = self._statistic.clamp
        new_vector = None if torch.compiler.is_compiling() else self._vectors.cut
        return input_vector(layer, batch, locations, limit, taken, new_vector, shard)

    def _reduced(
        self, call: _Call, kept: Tensor, grad: Tensor, taken: Taken, scale: Scale, shard: ActivationShard
    ) -> Parts:
        """Return the sums of a call; scale: by what gradient rows are multiplied, where they are clamped."""
        layer, locations, sums_gradients, _ = call
        if self._statistic.kind == "moment":
            return moments(layer, kept, grad, locations, sums_gradients=sums_gradients)
        if not sums_gradients:  # the gradient of the bias is their sum, or g is not needed
            return {"x": kept}
        limit: Tensor | float | None = self._statistic.clamp
        if limit is not None:
            # It is meant for scaled rows: raw ones times the rows of the global batch, and so those of this rank's mean
            # loss times its rows.
            limit = limit / (layer.multiplicity(grad) * self._micro_batches)
            limit = limit if scale is None else limit * scale
        return {"x": kept, "g": gradient_sum(layer, first_examples(grad, taken), locations, limit, shard)}

    def _examples_taken(self, batch: int) -> int | None:
        """Return how many of a micro-batch's examples are among the global batch's first ones; None for all.

        The global batch is ordered by rank, then by micro-batch. With 2 ranks, 2 micro-batches of 4 examples and
        ``statistic.examples = 6``, rank 0 takes 4 and 2 examples, rank 1 none.
        """
        if self._statistic.examples is None:
            return None
        # This runs in the forward pass, before `_enter_micro_batch` has counted the micro-batch that it starts.
        starts_next = self._micro_batch < 0 or self._forward_ran
        micro_batch = (self._micro_batch + starts_next) % self._micro_batches
        first = (self._place * self._micro_batches + micro_batch) * batch
        return min(max(self._statistic.examples - first, 0), batch)

    def _taken_on_device(self, batch: int, device: torch.device) -> Tensor | None:
        """Return for each of the first examples of a micro-batch whether it is among the global batch's first ones."""
        examples, micro_batch = self._statistic.examples, self._graph_numbers.micro_batch
        if examples is None or micro_batch is None:
            return None
        first = (self._place * self._micro_batches + micro_batch.to(device)) * batch
        return torch.arange(min(batch, examples), device=device) + first < examples  # [min(batch, examples)]

    def _shapes(self, layer: Layer) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a call's sums."""
        if self._statistic.kind == "moment":
            gradients = {"g": (layer.d_out, layer.d_out)} if self._statistic.sums_gradients(layer) else {}
            return {"x": (layer.d_in, layer.d_in), **gradients, "number": (1,)}
        return {"x": (layer.d_w + 1 + layer.is_convolution,), "g": (layer.d_out,)}

    def _sums(self, layer: Layer, total: Parts) -> Sums:
        own = layer.weight
        weight: Tensor = layer.module.weight if own is None else own  # FSDP's may be wider
        dtype = wide_dtype(weight.dtype)
        x, g = total["x"].to(weight.device, dtype), total.get("g")
        g = None if g is None else g.to(weight.device, dtype)
        if self._statistic.kind == "moment":
            return Sums(x, g, total["number"].to(weight.device, dtype)[0])
        number = x[layer.d_w]  # with a bias, also the last entry of x[: layer.d_in]
        locations = mean_locations(x[-1], number) if g is None and layer.is_convolution else 1.0  # x[-1] counts rows
        return Sums(x[: layer.d_in], g, number, locations)
