"""SOAP (Vyas et al., 2024): Adam in the eigenbasis of Shampoo's factors, by pytorch_optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pytorch_optimizer import SOAP
from torch import nn

from baselines.parts.groups import decay_matrices_only
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE, POSITIVE_DECAY

_ROUNDING = (
    "the factors of the first gradient are singular, so rounding chooses the basis of their null space, in which Adam "
    "then works: summing gradients in another order changes the training"
)
LIMITS: Mapping[str, str] = {"micro_batches": _ROUNDING, "data_parallel": _ROUNDING}


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, DECAY, "the weight of the old first moment"] = 0.95,
    beta2: Annotated[float, DECAY, "the weight of the old second moment"] = 0.95,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-8,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.01,
    factor_decay: Annotated[float, POSITIVE_DECAY, "the weight of the old factor"] = 0.95,
    update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the eigenbasis"] = 10,
    max_dimension: Annotated[int, AT_LEAST_1, "the longest axis that has a factor"] = 10000,
) -> SOAP:
    """Return ``pytorch_optimizer.SOAP``; vectors (biases, norms) take Adam's step and are not decayed.

    Each axis of a tensor has a factor ``L <- factor_decay L + (1 - factor_decay) G G^T``, updated every step, where G
    is the gradient unfolded along that axis (a Conv2d's weight has four). Every ``update_period`` steps the factor's
    basis follows by one power iteration and a QR. An axis longer than ``max_dimension`` keeps the identity as its
    basis.

    The first step sets up the factors and changes no weight. The QR computes in float32, whatever the dtype of the
    parameters. State of a ``[m, n]`` matrix: two moments and ``2 (m^2 + n^2)`` numbers.
    """
    return SOAP(
        decay_matrices_only(parameters, weight_decay),
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        shampoo_beta=factor_decay,
        precondition_frequency=update_period,
        max_precondition_dim=max_dimension,
    )
