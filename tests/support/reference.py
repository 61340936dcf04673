"""Dense float64 ground truths, written from the equations, without using the code that they check."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from mkor_core.capture.statistics import Captured, Sums


def kron_precondition(left: Tensor, grad: Tensor, right: Tensor) -> Tensor:
    """Return ``L D R`` by the Kronecker product: row-stacked ``vec(L D R) = (L (x) R^T) vec(D)``."""
    return (torch.kron(left.contiguous(), right.T.contiguous()) @ grad.flatten()).reshape(grad.shape)


def kfac_solve(c: Tensor, grad: Tensor, a: Tensor, damping: float) -> Tensor:
    """Return ``(C (x) A + damping I)^-1 vec(D)``, row-stacked."""
    matrix = torch.kron(c, a) + damping * torch.eye(grad.numel(), dtype=grad.dtype)
    return torch.linalg.solve(matrix, grad.flatten()).reshape(grad.shape)


def rows_of(layer: Any, inputs: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return X and G of a linear layer or a convolution by explicit loops over examples and output locations."""
    xs: list[Tensor] = []
    gs: list[Tensor] = []
    if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        xs, gs = list(inputs.reshape(-1, inputs.shape[-1])), list(grad.reshape(-1, grad.shape[-1]))
    else:
        padding = layer.padding if isinstance(layer.padding, tuple) else (0,) * len(layer.kernel_size)
        padded = torch.nn.functional.pad(inputs, [margin for both in reversed(padding) for margin in (both, both)])
        axes = list(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True))
        for n in range(inputs.shape[0]):
            for place in product(*map(range, grad.shape[2:])):
                windows = [
                    slice(i * stride, i * stride + dilation * (size - 1) + 1, dilation)
                    for i, (size, stride, dilation) in zip(place, axes, strict=True)
                ]
                xs.append(padded[(n, slice(None), *windows)].flatten())
                gs.append(grad[(n, slice(None), *place)])
    x, g = torch.stack(xs), torch.stack(gs)
    return (torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) if layer.bias is not None else x), g


def backward(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take a forward and a backward pass of one layer; return D, X and G, computed from explicit rows."""
    layer.zero_grad()
    output = layer(inputs)
    output.retain_grad()
    output.square().mean().backward()
    x, g = rows_of(layer, inputs, output.grad)
    return g.T @ x, x, g


def joined(layer: nn.Module) -> Tensor:
    """Return a copy of the gradients of a layer's weight and bias as one matrix, the bias last."""
    parts = [p.grad.reshape(len(p), -1) for p in layer.parameters() if p.grad is not None]
    return torch.cat(parts, 1).clone()


def complete(sums: Sums, bias_gradient: Tensor) -> Captured:
    """Return what a method gets of a layer's sums; bias_gradient: the unscaled gradient of the bias, ``[d_out]``."""
    return Captured(sums.x, sums.of_gradients(bias_gradient if sums.g is None else sums.g), sums.number)
