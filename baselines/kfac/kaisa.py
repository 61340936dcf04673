"""KFAC as KAISA distributes it (Pauloski et al., SC '21), with the semantics of kfac-pytorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.parts.means import CountsBatches, fold
from mkor_core.capture.statistics import Captured, LayerShape, Statistic
from mkor_core.maths import linalg
from mkor_core.maths.linalg import product
from mkor_core.method import Distributed, KLClipping, LayerState, Method, put
from mkor_core.ranges import AT_LEAST_1, DECAY, FRACTION, POSITIVE


@dataclass(frozen=True, kw_only=True)
class KAISA(CountsBatches, KLClipping, Distributed, Method):
    """KFAC: ``V = (C + damping I)^-1 D (A + damping I)^-1`` with running averages of second moments A and C."""

    refreshes_sides: ClassVar[bool] = True
    fixed_in_state: ClassVar[tuple[str, ...]] = ("compute_method", "rows")

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
    @override
    def statistic(self) -> Statistic:
        return Statistic("moment", of_rank=self.rows == "rank")

    @property
    @override
    def worker_fraction(self) -> float:
        return self.grad_worker_fraction

    @property
    @override
    def refreshed(self) -> tuple[str, ...]:
        if self.compute_method == "eigen":
            return ("left_vectors", "left_values", "right_vectors", "right_values")
        return ("left_inverse", "right_inverse")

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        state: LayerState = {"batches": torch.zeros((), dtype=torch.int64, device=device)}
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            identity = linalg.identity(d, dtype, device)
            state[side] = identity
            if self.compute_method == "eigen":
                state[f"{side}_vectors"] = linalg.identity(d, dtype, device)
                state[f"{side}_values"] = torch.ones(d, dtype=dtype, device=device)
            else:
                state[f"{side}_inverse"] = linalg.identity(d, dtype, device).div_(1 + self.damping)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % (self.factor_update_period or self.inverse_update_period) == 0

    @override
    def refreshes(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        left, right = captured.g / captured.number, captured.x / captured.number  # the batch's mean second moments
        fold(state, accept, 1 - self.factor_decay, left=left, right=right)

    @override
    def refresh(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:
        # Both decompositions come before the first change: one that fails leaves the layer what it had.
        put(state, accept, **self._decomposed(state, "left"), **self._decomposed(state, "right"))

    @override
    def refresh_side(self, state: LayerState, side: str, step: int, accept: Tensor | None = None) -> None:
        put(state, accept, **self._decomposed(state, side))

    def _decomposed(self, state: LayerState, side: str) -> LayerState:
        """Return the tensors of a side that follow from its factor."""
        if self.compute_method == "inverse":
            inverse = damped_inverse(state[side], self.damping, state[f"{side}_inverse"])
            return {f"{side}_inverse": inverse}
        values, vectors = torch.linalg.eigh(state[side])
        return {f"{side}_values": values.clamp(min=0), f"{side}_vectors": vectors}  # rounding can make values negative

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        if self.compute_method == "inverse":
            return product(product(state["left_inverse"], grad), state["right_inverse"])
        # V = Q_C [(Q_C^T D Q_A) / (d_C d_A^T + damping)] Q_A^T for C = Q_C diag(d_C) Q_C^T, A = Q_A diag(d_A) Q_A^T
        left, right = state["left_vectors"], state["right_vectors"]
        rotated = product(product(left.T, grad), right)
        rotated.div_(torch.outer(state["left_values"], state["right_values"]).add_(self.damping))
        return product(product(left, rotated), right.T)

    @override
    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        if self.compute_method == "inverse":
            return {"left": state["left_inverse"] @ grad, "right": grad @ state["right_inverse"]}
        left, right = state["left_vectors"], state["right_vectors"]
        return {
            "left": left @ ((left.T @ grad) / (state["left_values"][:, None] + self.damping)),
            "right": ((grad @ right) / (state["right_values"] + self.damping)) @ right.T,
        }

    @override
    def start_weight(self, state: LayerState) -> Tensor:
        return torch.as_tensor(self.factor_decay, device=state["batches"].device) ** state["batches"]

    @override
    def refresh_cost(self, shape: LayerShape) -> float:
        return float(shape.d_out**3 + shape.d_in**3)  # decompositions are cubic


def damped_inverse(moment: Tensor, damping: float, last: Tensor) -> Tensor:
    """Return ``(M + damping I)^-1`` ``[d, d]``, or the last inverse if this one does not exist."""
    damped = moment.clone()
    damped.diagonal().add_(damping)
    # torch.linalg.inv would make the host wait to see whether the matrix is singular.
    inverse, status = torch.linalg.inv_ex(damped)
    return torch.where(status == 0, inverse, last)
