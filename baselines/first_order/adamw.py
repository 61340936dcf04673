"""AdamW (Loshchilov and Hutter, ICLR 2019), by torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from torch import nn

from baselines.parts.groups import decay_matrices_only
from mkor_core.kernels.bases import AdamW
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE

COMPLEX_WEIGHTS = True


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, DECAY, "the weight of the old first moment"] = 0.9,
    beta2: Annotated[float, DECAY, "the weight of the old second moment"] = 0.999,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-8,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.01,
) -> AdamW:
    """Return ``torch.optim.AdamW``, fused on a GPU; vectors (biases, norms) are not decayed."""
    return AdamW(decay_matrices_only(parameters, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)
