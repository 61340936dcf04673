"""LAMB (You et al., ICLR 2020) in the form of NVIDIA's fused BERT optimizer, by timm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from torch import nn

from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

# isort: split
from timm.optim import Lamb

from baselines.parts.groups import decay_matrices_only
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, DECAY, "the weight of the old first moment"] = 0.9,
    beta2: Annotated[float, DECAY, "the weight of the old second moment"] = 0.999,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-6,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the multiple of the weights added to the update"] = 0.01,
    max_grad_norm: Annotated[float, POSITIVE, "the global norm that gradients are scaled down to"] = 1.0,
) -> Lamb:
    """Return LAMB without bias correction; vectors (biases, norms) are not decayed."""
    return Lamb(
        decay_matrices_only(parameters, weight_decay),
        lr=lr,
        bias_correction=False,
        betas=(beta1, beta2),
        eps=eps,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
    )
