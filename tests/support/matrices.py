"""Random matrices in float64, their powers, and what an optimizer makes of gradients that it is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from baselines import build


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers, the same in every call with this seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spd(dimension: int, seed: int = 0) -> Tensor:
    """Return a well-conditioned positive definite matrix, the same in every call with this seed."""
    root = random(dimension, dimension, seed=seed)
    return root @ root.T / dimension + torch.eye(dimension, dtype=torch.float64)


def power(matrix: Tensor, exponent: float) -> Tensor:
    """Return a power of a positive semidefinite matrix, whose rounding may make its smallest eigenvalues negative."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0) ** exponent) @ vectors.T


def change(optimizer: torch.optim.Optimizer, weight: nn.Parameter, grad: Tensor) -> Tensor:
    """Take a step with a gradient; return by how much the weight falls."""
    before = weight.detach().clone()
    weight.grad = grad.clone()
    optimizer.step()
    return before - weight.detach()


def updates(name: str, grads: list[Tensor], **chosen: Any) -> list[Tensor]:
    """Return an optimizer's updates of the weight of a Linear without a bias, at a learning rate of 1."""
    m, n = grads[0].shape
    torch.manual_seed(0)
    layer = nn.Linear(n, m, bias=False).double()
    optimizer, _ = build(name, layer, {"lr": 1.0, **chosen})
    return [change(optimizer, layer.weight, grad) for grad in grads]
