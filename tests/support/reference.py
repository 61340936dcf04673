"""Dense float64 ground truths, written from the equations, without using the code that they check."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def random_spd(dimension: int, generator: torch.Generator) -> Tensor:
    """Return a well-conditioned symmetric positive definite matrix."""
    root = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
    return root @ root.T / dimension + torch.eye(dimension, dtype=torch.float64)


def kron_precondition(left: Tensor, grad: Tensor, right: Tensor) -> Tensor:
    """Return ``L D R`` by the Kronecker product: row-stacked ``vec(L D R) = (L (x) R^T) vec(D)``."""
    return (torch.kron(left.contiguous(), right.T.contiguous()) @ grad.flatten()).reshape(grad.shape)


def kfac_solve(c: Tensor, grad: Tensor, a: Tensor, damping: float) -> Tensor:
    """Return ``(C (x) A + damping I)^-1 vec(D)``, row-stacked."""
    matrix = torch.kron(c, a) + damping * torch.eye(grad.numel(), dtype=grad.dtype)
    return torch.linalg.solve(matrix, grad.flatten()).reshape(grad.shape)


def rows_of(layer: nn.Linear | nn.Conv2d, inputs: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return X and G of a layer by explicit loops over examples and output locations."""
    xs: list[Tensor] = []
    gs: list[Tensor] = []
    if isinstance(layer, nn.Linear):
        xs, gs = list(inputs.reshape(-1, inputs.shape[-1])), list(grad.reshape(-1, grad.shape[-1]))
    else:
        padding = layer.padding if isinstance(layer.padding, tuple) else (0, 0)
        padded = torch.nn.functional.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
        (kh, kw), (sh, sw), (dh, dw) = layer.kernel_size, layer.stride, layer.dilation
        for n in range(inputs.shape[0]):
            for i in range(grad.shape[2]):
                for j in range(grad.shape[3]):
                    top, start = i * sh, j * sw
                    patch = padded[n, :, top : top + dh * (kh - 1) + 1 : dh, start : start + dw * (kw - 1) + 1 : dw]
                    xs.append(patch.flatten())
                    gs.append(grad[n, :, i, j])
    x, g = torch.stack(xs), torch.stack(gs)
    return (torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) if layer.bias is not None else x), g
