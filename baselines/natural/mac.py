"""MAC (Seung et al., ICDM 2025): K-FAC's input side with a running mean input in place of the second moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.parts.means import InputMethod, fold
from mkor_core.capture.statistics import MEAN, Captured, LayerShape, Statistic
from mkor_core.maths import inverses
from mkor_core.maths.inverses import dot
from mkor_core.maths.products import Gradient, precondition_
from mkor_core.method import InPlaceMethod, Known, LayerState, put
from mkor_core.ranges import POSITIVE


@dataclass(frozen=True, kw_only=True)
class MAC(InputMethod, InPlaceMethod):
    """MAC: ``V = D (I - a a^T / (damping + |a|^2)) / damping``, D times the inverse of ``a a^T + damping I``.

    a is the running mean input (https://arxiv.org/abs/2506.08464, https://github.com/hseung88/mac). Without memory
    (``factor_decay=0``) and with D's norm, V is MKOR's by the exact rule after one update from J = I, on the input side
    alone, if the weight of the old factor is damping / (1 + damping). The published runs have a damping of 1; those of
    transformers have 3, factor_decay 0.99 and inverse_update_period 5. Two parts of the released code are left out: the
    first layer's second moment over all training data, and the weights of attention in a value projection's mean.
    """

    damping: Annotated[float, POSITIVE, "the Tikhonov term"] = 1.0
    scale: Literal["released", "paper", "gradient"] = "released"
    """The length of V: ``released`` leaves out the division by the damping, as the released code does, ``paper`` has
    it, and ``gradient`` gives V the norm of D (ours), so that MKOR's learning rates suit it."""

    @property
    @override
    def statistic(self) -> Statistic:
        return MEAN.of_inputs()

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        inverse = inverses.identity(leading, shape.d_in, 1, dtype, device)
        return {
            "mean": torch.zeros(*leading, shape.d_in, dtype=dtype, device=device),
            "batches": torch.zeros(leading, dtype=torch.int64, device=device),
            **inverses.state_of(inverse, "right"),
        }

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        a = captured.x / captured.number[..., None]
        fold(state, accept, self.new_weight(state, a)[..., None], mean=a)
        if self.refreshes(step):
            # J = c (I - a a^T / (damping + |a|^2)): a window of one column.
            a = state["mean"]
            c = torch.full_like(a[..., 0], 1 / self.damping if self.scale == "paper" else 1.0)
            weight = c / (self.damping + dot(a, a))
            put(state, accept, right=a[..., None, :], right_weights=weight[..., None], right_scale=c)

    @override
    def apply(self, state: LayerState, grad: Gradient, known: Known) -> None:
        precondition_(None, grad, inverses.from_state(state, "right"), rescale=self.scale == "gradient")
