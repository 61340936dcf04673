"""NadamW: AdamW with Nesterov's momentum, the target-setter of AlgoPerf (Dahl et al., 2023), by timm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from torch import nn

from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

# isort: split
from timm.optim import NAdamW

from baselines.parts.groups import decay_matrices_only
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, DECAY, "the weight of the old first moment"] = 0.9,
    beta2: Annotated[float, DECAY, "the weight of the old second moment"] = 0.999,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-8,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.01,
) -> NAdamW:
    """Return ``timm.optim.NAdamW``; vectors (biases, norms) are not decayed.

    ``W <- (1 - lr weight_decay) W - lr u / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)`` with Adam's moments m and
    v and ``u = beta1 m + (1 - beta1) D``. ``torch.optim.NAdam`` differs: its momentum follows a schedule, and its
    bias corrections differ. The settings that won AlgoPerf have lr 8e-4 to 5e-3, beta1 0.86 to 0.97, beta2 0.996 to
    0.998 and weight_decay 0.08 to 0.16, with a warm-up and a cosine.
    """
    return NAdamW(decay_matrices_only(parameters, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)
