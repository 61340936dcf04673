"""SGD with momentum, by torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from torch import nn

from mkor_core.kernels.bases import SGD
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE

COMPLEX_WEIGHTS = True


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old velocity"] = 0.9,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the multiple of the weights added to the gradient"] = 0.0,
    nesterov: bool = False,
) -> SGD:
    """Return ``torch.optim.SGD``, fused on a GPU; ``v <- momentum v + D``, ``w <- w - lr v``."""
    return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
