"""AdamW (Loshchilov and Hutter, ICLR 2019), torch's."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW

from baselines._groups import decay_matrices_only


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> AdamW:
    """Return ``torch.optim.AdamW``; vectors (biases, norms) are not decayed."""
    return AdamW(decay_matrices_only(parameters, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)
