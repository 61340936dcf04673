"""Sums of a layer's input rows X and gradient rows G, computed without forming the rows where that is possible."""

from __future__ import annotations

import torch
from torch import Tensor

from mkor_core.layer import Layer, wide_dtype

Parts = dict[str, Tensor]
"""A layer's sums by name: x, g, number."""


def average_locations(rows: Tensor, locations: int) -> Tensor:
    """Return the mean of each example's rows: ``[examples * locations, d]`` -> ``[examples, d]``."""
    return rows if locations == 1 else rows.unflatten(0, (-1, locations)).mean(1)


def input_vector(layer: Layer, inputs: Tensor, locations: int, limit: float | None = None) -> Tensor:
    """Return a call's sum of input rows / locations and then, as its last entries, what they are divided by.

    Args:
        layer: the layer.
        inputs: its input, with a batch dimension.
        locations: output locations of an example.
        limit: on the magnitude of entries of the rows, those of a Conv2d averaged over locations.

    Returns:
        ``[d_w + 1]`` with the number of rows for a Linear, ``[d_w + 2]`` with the numbers of examples and of rows for a
        Conv2d; in `wide_dtype`.
    """
    number, d_w, dtype = layer.multiplicity(inputs), layer.d_w, wide_dtype(inputs.dtype)
    vector = torch.full((d_w + 1,), float(number), dtype=dtype, device=inputs.device)
    if limit is not None:
        rows = average_locations(layer.patches(inputs.to(dtype)), locations)
        torch.sum(rows.clamp(-limit, limit), 0, out=vector[:d_w])
    elif layer.is_convolution:
        torch.div(layer.input_sum(inputs), locations, out=vector[:d_w])
    else:
        torch.sum(inputs, tuple(range(inputs.dim() - 1)), dtype=dtype, out=vector[:d_w])
    return torch.cat([vector, vector[d_w:] * locations]) if layer.is_convolution else vector


def clamped_gradient_sum(layer: Layer, grad: Tensor, locations: int, limit: float, factor: Tensor | float) -> Tensor:
    """Return the sum ``[d_out]`` of gradient rows, times a factor and then clamped; a Conv2d's location means."""
    rows = average_locations(layer.gradient_rows(grad.to(wide_dtype(grad.dtype))), locations)
    return (rows * factor).clamp(-limit, limit).sum(0)


def moments(layer: Layer, inputs: Tensor, grad: Tensor, locations: int) -> Parts:
    """Return ``X^T X``, ``G^T G`` of rows divided by the number of locations, and the number of rows."""
    dtype = wide_dtype(grad.dtype)
    x, g = layer.patches(inputs.to(dtype)), layer.gradient_rows(grad.to(dtype))
    number = torch.full((), float(x.shape[0]), dtype=dtype, device=x.device)
    moment = x.T @ x
    if layer.has_bias:  # what a column of ones adds; to append it would copy the rows
        bordered = moment.new_empty(layer.d_in, layer.d_in)
        bordered[:-1, :-1] = moment
        bordered[-1, :-1] = bordered[:-1, -1] = x.sum(0)
        bordered[-1, -1] = number
        moment = bordered
    return {"x": moment / locations**2, "g": (g.T @ g) / locations**2, "number": number}
