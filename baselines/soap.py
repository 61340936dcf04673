"""SOAP (Vyas et al., 2024): Adam in the eigenbasis of Shampoo's factors, by pytorch_optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytorch_optimizer import SOAP
from torch import nn

from baselines._groups import decay_matrices_only

_ROUNDING = (
    "the first gradient's factors are singular, so rounding chooses the basis of their null space, in which Adam then "
    "works: gradients summed in another order train otherwise"
)
LIMITS: Mapping[str, str] = {"micro_batches": _ROUNDING, "data_parallel": _ROUNDING}


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    beta1: float = 0.95,
    beta2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    factor_decay: float = 0.95,
    update_period: int = 10,
    max_dimension: int = 10000,
) -> SOAP:
    """Return ``pytorch_optimizer.SOAP``; vectors (biases, norms) get Adam's step and are not decayed.

    Every axis of a tensor has a factor ``L <- factor_decay L + (1 - factor_decay) G G^T`` (G unfolded along it; a
    Conv2d's weight has four), updated every step; its basis follows by one power iteration and a QR every
    ``update_period`` steps. An axis longer than ``max_dimension`` keeps the identity as its basis.

    The first step only looks: it sets up the factors and changes no weight. The QR is in float32 whatever the
    parameters are in. State of a ``[m, n]`` matrix: two moments and ``2 (m^2 + n^2)`` numbers.
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
