"""Sums of a layer's input rows X and gradient rows G, computed without forming the rows where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mkor_core.capture.blocks import WHOLE, ActivationShard
from mkor_core.capture.layer import Layer, wide_dtype

Scale = Tensor | float | None
"""The loss scale by which gradient rows are multiplied; None: they are not scaled."""

GradScale = Callable[[], Scale]

Parts = dict[str, Tensor]
"""A layer's sums by name: x, g, number."""


NewVector = Callable[[int, float, Tensor], Tensor]
"""Returns a vector of a length, filled with a number, in the `wide_dtype` and on the device of a tensor."""


def add_parts(total: Parts, parts: Parts) -> None:
    """Add sums to a total, in which some of them may still be missing. No tensor is changed in place."""
    for name, value in parts.items():
        # Not +=: the first value becomes the total, and layers called with the same input share it (q, k and v).
        total[name] = total[name] + value if name in total else value


def average_locations(rows: Tensor, locations: int) -> Tensor:
    """Return the mean of each example's rows: ``[examples * locations, d]`` -> ``[examples, d]``."""
    return rows if locations == 1 else rows.unflatten(0, (-1, locations)).mean(1)


def mean_locations(rows: Tensor, number: Tensor) -> Tensor:
    """Return rows / number, both scalars, and 1 where there are none."""
    # Not number.clamp(min=1): of an image that two tensor-parallel ranks share, each of them has the number 0.5.
    return torch.where(number > 0, rows / number, 1)


def loss_scale(source: Any) -> Scale:
    """Return the scale by which losses are multiplied now; source: a number, a ``GradScaler`` or a callable."""
    if isinstance(source, torch.amp.GradScaler):  # whose get_scale() would wait for the device
        # A GradScaler makes the tensor of its scale only when it scales its first loss.
        return (source._init_scale if source._scale is None else source._scale) if source.is_enabled() else None
    scale: Tensor | float = source() if callable(source) else source
    return scale if callable(source) or scale != 1.0 else None


def divisor(shares: int, grad_scale: GradScale) -> Tensor | float | None:
    """Return what gradient rows must be divided by; None for 1."""
    scale = grad_scale()
    if scale is None:
        return None if shares == 1 else shares
    return shares * scale


Taken = int | Tensor | None
"""Which of a micro-batch's examples count: the number of the first ones that do; or booleans on the device, for each of
the first ones whether it does; None: all."""


def first_examples(tensor: Tensor, taken: Taken) -> Tensor:
    """Return the first examples of a tensor ``[batch, ...]``, with zeros in those that do not count."""
    if not isinstance(taken, Tensor):
        return tensor[:taken]  # [:None] takes all
    # Selected, not multiplied by 0: a NaN in an example that does not count would stay a NaN.
    return torch.where(taken.view(-1, *[1] * (tensor.dim() - 1)), tensor[: len(taken)], 0)


def input_vector(
    layer: Layer,
    inputs: Tensor,
    locations: int,
    limit: float | None = None,
    taken: Taken = None,
    new_vector: NewVector | None = None,
    shard: ActivationShard = WHOLE,
) -> Tensor:
    """Return a call's sum of input rows / locations and then, as its last entries, what they are divided by.

    Args:
        layer: the layer.
        inputs: its input, with a batch dimension.
        locations: output locations of an example.
        limit: on the magnitude of entries of the rows, those of a Conv2d averaged over locations.
        taken: the examples that count.
        new_vector: returns the vector to fill; None for one of its own.
        shard: the columns of the rows that ``inputs`` has; the others are 0 here.

    Returns:
        ``[d_w + 1]`` with the number of rows for a Linear, ``[d_w + 2]`` with the numbers of examples and of rows for a
        Conv2d; in `wide_dtype`.
    """
    inputs = first_examples(inputs, taken)
    # The vector is filled with the number, then the sum of the rows is written over its first d_w entries. With a
    # bias, the number behind them is also the sum of the ones in X's last column.
    number, d_w, dtype = layer.multiplicity(inputs), layer.d_w, wide_dtype(inputs.dtype)
    if new_vector is None:
        vector = torch.full((d_w + 1,), number, dtype=dtype, device=inputs.device)
    else:
        vector = new_vector(d_w + 1, number, inputs)
    if isinstance(taken, Tensor):
        vector[d_w:] = taken.sum() * layer.multiplicity(inputs[:1])
    part = vector[:d_w]
    if shard.column_shards > 1:
        part = part.zero_()[shard.offset : shard.offset + inputs.shape[-1]]
    if limit is not None:
        rows = average_locations(layer.patches(inputs.to(dtype)), locations)
        torch.sum(rows.clamp(-limit, limit), 0, out=part)
    elif layer.is_convolution:
        torch.div(layer.patch_sum(inputs), locations, out=part)
    else:
        torch.sum(inputs, tuple(range(inputs.dim() - 1)), dtype=dtype, out=part)
    if shard.column_shards > 1:
        # A column is on one of column_shards ranks, the number of rows on all of them. This factor makes one weight
        # right for both.
        part.mul_(shard.column_shards)
    if shard.weight != 1:
        vector.mul_(shard.weight)
    # Of a Conv2d, the number so far is that of examples; each has a row for every location.
    return torch.cat([vector, vector[d_w:] * locations]) if layer.is_convolution else vector


def gradient_sum(
    layer: Layer, grad: Tensor, locations: int, limit: Tensor | float | None = None, shard: ActivationShard = WHOLE
) -> Tensor:
    """Return the sum of gradient rows / locations ``[d_out]``, in `wide_dtype`.

    Args:
        layer: the layer.
        grad: the gradient of its output, with a batch dimension.
        locations: output locations of an example.
        limit: on the magnitude of entries of the rows, those of a Conv2d averaged over locations.
        shard: the columns of the rows that ``grad`` has; the others are 0 here.
    """
    if limit is None:
        total = layer.gradient_sum(grad)
        total = total if locations == 1 else total / locations
    else:
        rows = average_locations(layer.gradient_rows(grad.to(wide_dtype(grad.dtype))), locations)
        total = rows.clamp(-limit, limit).sum(0)  # type: ignore[arg-type]  # torch takes either, its stubs no union
    if shard == WHOLE:
        return total
    whole = total.new_zeros(layer.d_out)
    whole[shard.offset : shard.offset + len(total)] = total * (shard.column_shards * shard.weight)
    return whole


def moments(layer: Layer, inputs: Tensor, grad: Tensor, locations: int, *, sums_gradients: bool) -> Parts:
    """Return ``X^T X``, ``G^T G`` of rows divided by the number of locations, and the number of rows ``[1]``.

    sums_gradients: whether ``G^T G`` is wanted.
    """
    dtype = wide_dtype(grad.dtype)
    x = layer.patches(inputs.to(dtype))
    # Not a scalar: torch.compile would make one on a CPU, as an input of the graph, a number of Python's.
    number = torch.full((1,), x.shape[0], dtype=dtype, device=x.device)
    moment = x.T @ x  # [d_w, d_w]
    if layer.has_bias:  # what a column of ones adds; to append it would copy the rows
        bordered = moment.new_empty(layer.d_in, layer.d_in)
        bordered[:-1, :-1] = moment
        bordered[-1, :-1] = bordered[:-1, -1] = x.sum(0)
        bordered[-1, -1:] = number
        moment = bordered
    parts = {"x": moment}
    if sums_gradients:
        g = layer.gradient_rows(grad.to(dtype))
        parts["g"] = g.T @ g
    # Both factors of x x^T are rows that are divided by the number of locations; so are those of g g^T.
    if locations != 1:
        parts = {name: part / locations**2 for name, part in parts.items()}
    return {**parts, "number": number}
