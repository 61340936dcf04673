"""KLD-WRM (Puiu, 2022): natural gradient whose regularizer remembers all past steps, the "wake"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from torch import Tensor
from typing_extensions import override

from baselines.natural._wake import WakeRegularized
from baselines.parts.combined import Combined
from baselines.parts.groups import decay_matrices_only
from baselines.parts.hooked import SCALED_ROWS, keep_in_state_dict, refuse_scaler
from baselines.parts.layered import LayeredModel
from mkor_core import Preconditioner
from mkor_core.capture.layer import kind_of
from mkor_core.kernels.bases import SGD
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE

STATE_KEY = "kld_wrm"
"""The entry of the state dict that contains factors and memories."""

LIMITS: Mapping[str, str] = {"grad_scaler": SCALED_ROWS}


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old velocity"] = 0.9,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the multiple of the matrices added to V"] = 0.0,
    subproblem: Literal["SO", "Q", "Q_released"] = "SO",
    damping: Annotated[float, POSITIVE, "the Tikhonov term"] = 1e-2,
    factor_decay: Annotated[float, DECAY, "rho, the weight of the old factor and of the wake"] = 0.99,
    kl_clip: Annotated[float | None, POSITIVE, "the bound on all layers' updates together, as in KFAC"] = 1e-3,
    rms_clip: Annotated[float | None, POSITIVE, "the largest root mean square of a layer's V"] = 1.5,
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 1,
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two decompositions"] = 1,
) -> KLDWRM:
    """Return SGD over ``V``, the minimizer of KLD-WRM's model in each step; other parameters get plain SGD.

    With ``F = C (x) A`` of running averages that start at the first batch, ``F_k`` of the batch, and l the last
    learning rate over this one:

    - ``SO``: ``V = (F + damping I)^-1 (D - rho l D_old)``.
    - ``Q``: ``V = (F + lr F_k)^-1 D'``, ``D' = D + rho l (D'_old - D_old - F_old V_old)``, solved exactly in a basis in
      which both are diagonal, with the root of the damping added to the diagonals of the running averages.
    - ``Q_released`` replaces the sum by ``(C + lr C_k) (x) (A + lr A_k)``, as the released code does.

    ``rms_clip`` bounds V of Q alone. A constant gradient is cut to 1 - rho of it, so that learning rates are ten times
    KFAC's. Momentum, damping and clips break the assumption that the last step solved its model. Gradient rows are
    scaled by their number; a Conv2d has one row per example, averaged over its locations. Biases are columns of their
    layers' matrices. State of a layer: KFAC's, one gradient copy and, for Q, the moments of the last batch.
    """
    groups = decay_matrices_only(model.model.parameters(), weight_decay)
    return KLDWRM(
        model,
        groups,
        lr,
        momentum,
        subproblem=subproblem,
        damping=damping,
        factor_decay=factor_decay,
        kl_clip=kl_clip,
        rms_clip=rms_clip,
        factor_update_period=factor_update_period,
        inverse_update_period=inverse_update_period,
    )


class KLDWRM(Combined):
    """SGD whose gradients are preconditioned before each step by a rule that knows the learning rate."""

    def __init__(
        self, model: LayeredModel, groups: list[dict[str, Any]], lr: float, momentum: float, **rule: Any
    ) -> None:
        super().__init__(SGD(groups, lr=lr, momentum=momentum))
        known = {layer.module for layer in model.layers.values()}
        others = [module for module in model.model.modules() if kind_of(module) is not None and module not in known]
        self.preconditioner = Preconditioner(
            model.model,
            WakeRegularized(lr=self._rate, **rule),
            exclude=others,
            lr=self._rate,
            accumulation_steps=model.accumulation_steps,
        )
        keep_in_state_dict(self, STATE_KEY, self.preconditioner.state_dict, self.preconditioner.load_state_dict)
        refuse_scaler(self, "kld_wrm", SCALED_ROWS)

    @override
    def take_step(self) -> None:
        self.preconditioner.step()
        super().take_step()

    def _rate(self) -> float | Tensor:
        rate: float | Tensor = self.param_groups[0]["lr"]
        return rate
