"""Eva (Zhang et al., ICLR 2023): rank-one Kronecker factors of running means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture import MEAN, Captured, Statistic
from mkor_core.kl_clip import KLClipping
from mkor_core.method import LayerShape, LayerState, Method
from mkor_core.ranges import DECAY, POSITIVE

EXAMPLES = 16
"""Number of examples, from the start of a batch, whose rows enter the means, as upstream."""


@dataclass(frozen=True, kw_only=True)
class Eva(KLClipping, Method):
    """Eva: ``(g g^T (x) a a^T + damping I)^-1`` applied to the gradient; a and g are running means of raw rows."""

    damping: Annotated[float, POSITIVE, "the Tikhonov term"] = 0.03
    factor_decay: Annotated[float, DECAY, "the weight of the old mean"] = 0.05
    """Upstream's 0.95 is the weight of the new mean."""
    kl_clip: Annotated[float | None, POSITIVE, "the bound on all layers' updates together, as in KFAC"] = 1e-3
    """None leaves the update unchanged."""
    rows: Literal["global", "rank"] = "global"
    """``global`` uses gradient rows of the global mean loss, ``rank`` those of each rank's own loss, as upstream
    does."""

    @property
    @override
    def statistic(self) -> Statistic:
        return MEAN.first(EXAMPLES)

    @property
    @override
    def rank_rows(self) -> bool:
        return self.rows == "rank"

    @override
    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        return {
            "left": torch.zeros(shape.d_out, dtype=dtype, device=device),
            "right": torch.zeros(shape.d_in, dtype=dtype, device=device),
            "batches": torch.zeros((), dtype=torch.int64, device=device),
        }

    @override
    def accumulates(self, step: int) -> bool:
        return True

    @override
    def refreshes(self, step: int) -> bool:
        return False  # the means need no periodic work

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        # m <- factor_decay m + (1 - factor_decay) m_batch for both means; the first batch's enter unweighted.
        old = self.factor_decay * (state["batches"] > 0).to(captured.x.dtype)
        for side, total in (("left", captured.g), ("right", captured.x)):
            state[side] = old * state[side] + (1 - old) * total / captured.number
        state["batches"] = state["batches"] + 1

    @override
    def refresh(self, state: LayerState, step: int) -> None:
        pass

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        # V = (D - (g^T D a) / (|a|^2 |g|^2 + damping) g a^T) / damping, by Sherman-Morrison
        g, a = state["left"], state["right"]
        weight = (g @ grad @ a) / (a.dot(a) * g.dot(g) + self.damping)
        return (grad - torch.outer(weight * g, a)) / self.damping

    @override
    def has_statistics(self, state: LayerState) -> Tensor:
        return state["batches"] > 0
