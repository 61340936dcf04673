"""KFAC as KAISA distributes it (Pauloski et al., SC '21), with the semantics of kfac-pytorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from mkor_core.capture import MOMENT, Captured, Statistic
from mkor_core.kl_clip import KLClipping
from mkor_core.method import LayerShape, LayerState, Method
from mkor_core.ranges import AT_LEAST_1, DECAY, FRACTION, POSITIVE


@dataclass(frozen=True, kw_only=True)
class KAISA(KLClipping, Method):
    """KFAC: ``V = (C + damping I)^-1 D (A + damping I)^-1`` with running averages of second moments A and C."""

    refresh_needs_statistics: ClassVar[bool] = False

    damping: Annotated[float, POSITIVE, "the number added to the eigenvalues"] = 1e-3
    """Added to both factors (``inverse``), or to the products of their eigenvalues (``eigen``)."""
    factor_decay: Annotated[float, DECAY, "the weight of the old factor"] = 0.95
    """The running averages start from I."""
    kl_clip: Annotated[float | None, POSITIVE, "the bound on all layers' updates together"] = 1e-3
    """Bounds ``|sum(V * D) lr^2|`` over all layers; None leaves the update unchanged."""
    factor_update_period: Annotated[int | None, AT_LEAST_1, "steps between two updates of the factors"] = 10
    """None updates the factors with every decomposition."""
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two decompositions"] = 100
    compute_method: Literal["eigen", "inverse"] = "eigen"
    """``eigen`` decomposes the factors, ``inverse`` inverts them."""
    grad_worker_fraction: Annotated[float, FRACTION, "the share of ranks that precondition a layer"] = 1.0
    """1 is COMM-OPT, 1/ranks is MEM-OPT, values between are HYBRID-OPT."""
    rows: Literal["global", "rank"] = "global"
    """``global`` uses gradient rows of the global mean loss, the same for any number of ranks; ``rank`` those of each
    rank's own loss, as upstream does."""

    @property
    def statistic(self) -> Statistic:
        """Second moments of the rows; a Conv2d's are divided by its output locations."""
        return MOMENT

    @property
    def rank_rows(self) -> bool:
        """As `rows` says."""
        return self.rows == "rank"

    @property
    def worker_fraction(self) -> float:
        """As `grad_worker_fraction` says."""
        return self.grad_worker_fraction

    @property
    def refreshed(self) -> tuple[str, ...]:
        """The decomposition or the inverses."""
        if self.compute_method == "eigen":
            return ("left_vectors", "left_values", "right_vectors", "right_values")
        return ("left_inverse", "right_inverse")

    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        """A = C = I, and what a decomposition of them gives."""
        state: LayerState = {}
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            identity = torch.eye(d, dtype=dtype, device=device)
            state[side] = identity
            if self.compute_method == "eigen":
                state[f"{side}_vectors"] = identity.clone()
                state[f"{side}_values"] = torch.ones(d, dtype=dtype, device=device)
            else:
                state[f"{side}_inverse"] = identity / (1 + self.damping)
        return state

    def accumulates(self, step: int) -> bool:
        """Every factor_update_period steps."""
        return step % (self.factor_update_period or self.inverse_update_period) == 0

    def refreshes(self, step: int) -> bool:
        """Every inverse_update_period steps."""
        return step % self.inverse_update_period == 0

    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        """``A <- factor_decay A + (1 - factor_decay) A_batch``, and C alike."""
        for side, moment in (("left", captured.g), ("right", captured.x)):
            batch = moment / captured.number
            state[side] = self.factor_decay * state[side] + (1 - self.factor_decay) * batch

    def refresh(self, state: LayerState, step: int) -> None:
        """Decompose (eigenvalues clamped at 0) or invert both factors."""
        for side in ("left", "right"):
            if self.compute_method == "eigen":
                values, state[f"{side}_vectors"] = torch.linalg.eigh(state[side])
                state[f"{side}_values"] = values.clamp(min=0)
            else:
                damped = state[side] + self.damping * torch.eye(len(state[side])).to(state[side])
                state[f"{side}_inverse"] = torch.linalg.inv(damped)

    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        """Return ``Q_C [(Q_C^T D Q_A) / (d_C d_A^T + damping)] Q_A^T``, or the product with both inverses."""
        if self.compute_method == "inverse":
            return state["left_inverse"] @ grad @ state["right_inverse"]
        left, right = state["left_vectors"], state["right_vectors"]
        eigenvalues = torch.outer(state["left_values"], state["right_values"])
        return left @ ((left.T @ grad @ right) / (eigenvalues + self.damping)) @ right.T

    def refresh_cost(self, shape: LayerShape) -> float:
        """The cubes of the dimensions."""
        return float(shape.d_out**3 + shape.d_in**3)
