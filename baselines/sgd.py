"""SGD with momentum, torch's."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> SGD:
    """Return ``torch.optim.SGD``; ``v <- momentum v + D``, ``w <- w - lr v``."""
    return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
