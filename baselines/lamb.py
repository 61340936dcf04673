"""LAMB (You et al., ICLR 2020) in the form of NVIDIA's fused BERT optimizer, by timm."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from baselines import _torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

# isort: split
from timm.optim import Lamb

from baselines._groups import decay_matrices_only


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    max_grad_norm: float = 1.0,
) -> Lamb:
    """Return LAMB without bias correction; vectors (biases, norms) are not decayed (ALGORITHMS.md, LAMB)."""
    return Lamb(
        decay_matrices_only(parameters, weight_decay),
        lr=lr,
        bias_correction=False,
        betas=(beta1, beta2),
        eps=eps,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
    )
