"""Newton-Muon (2026): gradients divided by the inputs' second moment before Muon's momentum and polar factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.parts.means import fold
from mkor_core.capture.statistics import ROWS, Captured, LayerShape, Rows, Statistic
from mkor_core.maths import linalg
from mkor_core.method import LayerState, Method, put
from mkor_core.ranges import AT_LEAST_1, DECAY, POSITIVE
from mkor_core.ranks.comm import Triangles

FIRST_MOMENT = 1e-3
"""The multiple of the identity with which the moment starts."""


@dataclass(frozen=True, kw_only=True)
class NewtonMuon(Method):
    """Newton-Muon with ``base: muon``: ``V = D (K + damping tr(K) / n I)^-1``, K a running mean of ``X^T X / rows``.

    The paper's scale ``sqrt(max(m, n))`` with lr 4e-4 is the base's ``match_adamw_rms`` with lr 2e-3; its scale
    ``sqrt(max(1, m / n))`` with lr 0.05 is the base without it. The base ``normuon`` has the exact polar factor. The
    paper's blocks for QKV and for a wide contraction are left out. A Conv2d has one row per location. Ranks exchange
    ``n (n + 1) / 2`` numbers an update; the rows of a layer, gradients included, are kept until then.
    """

    fixed_in_state: ClassVar[tuple[str, ...]] = ("bias",)

    damping: Annotated[float, POSITIVE, "the share of K's mean eigenvalue that is added to K"] = 0.2
    factor_decay: Annotated[float, DECAY, "the weight of the old moment"] = 0.95
    """The paper's second script has 0.8."""
    update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the moment and its inverse"] = 32
    """The first comes at the end of the first period, so that shorter runs are the base's. The paper's second script
    has 16, its benchmark 64."""
    correction: Literal["none", "debias", "rescale"] = "none"
    """K starts from nearly 0, so that V is 1 / (1 - factor_decay) times too long at first. ``debias`` divides K by
    ``1 - factor_decay^j`` after j updates; ``rescale`` gives V the norm of D."""
    bias: Literal["apart", "joint"] = "apart"
    """``apart`` leaves the bias's gradient as it is; ``joint`` takes it as an input of 1, which centers inputs."""

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS.summed(self._moments, _shapes)

    def _moments(self, rows: list[Rows], step: int) -> Captured:
        # The triangle of the sum of x x^T, and how many rows do not end in the 1 of a bias; of g, a 0 that is NaN if g
        # is not finite, so that the step does not count.
        x = linalg.joined_rows([part.x for part in rows])
        others = (x[:, -1:] != 1).sum(0).to(x.dtype)
        gradients = torch.stack([part.g.sum() for part in rows]).sum(0, keepdim=True)
        number = torch.full((), len(x), dtype=x.dtype, device=x.device)
        return Captured(torch.cat([Triangles().pack(x.T @ x), others]), 0 * gradients, number)

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {
            "right": linalg.identity(shape.d_in, dtype, device).mul_(FIRST_MOMENT),
            "right_inverse": linalg.identity(shape.d_in, dtype, device),
            "batches": torch.zeros((), dtype=torch.int64, device=device),
            "has_bias": torch.ones((), dtype=torch.bool, device=device),
        }

    @override
    def accumulates(self, step: int) -> bool:
        return (step + 1) % self.update_period == 0  # before the first one, V is D

    @override
    def refreshes(self, step: int) -> bool:
        return self.accumulates(step)

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        moment = Triangles().unpack(captured.x[:-1], len(state["right"])) / captured.number
        fold(state, accept, 1 - self.factor_decay, right=moment)
        put(state, accept, has_bias=state["has_bias"] & (captured.x[-1] == 0))
        put(state, accept, right_inverse=self._inverse(state))

    def _inverse(self, state: LayerState) -> Tensor:
        """Return the inverse of the damped moment, and 1 in place of a bias that stands apart."""
        moment, kept = state["right"], self._kept(state)
        if self.correction == "debias":
            moment = moment / (1 - self.start_weight(state))
        moment = moment * torch.outer(kept, kept)
        mean = moment.diagonal().sum() / kept.sum()
        damped = moment.clone()
        damped.diagonal().add_(self.damping * mean)
        # torch.linalg.cholesky would make the host wait to see whether it failed.
        root, status = torch.linalg.cholesky_ex(damped)
        identity = torch.eye(len(kept), dtype=kept.dtype, device=kept.device)
        inverse = torch.where(status == 0, torch.cholesky_inverse(root), identity)
        return inverse * torch.outer(kept, kept) + torch.diag(1 - kept)

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        update = linalg.product(grad, state["right_inverse"])
        if self.correction != "rescale":
            return update
        kept = self._kept(state)
        return linalg.rescale(update * kept, grad * kept) + grad * (1 - kept)

    @override
    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        return {"right": grad @ state["right_inverse"]}

    @override
    def start_weight(self, state: LayerState) -> Tensor:
        return torch.pow(self.factor_decay, state["batches"].to(state["right"].dtype))

    def _kept(self, state: LayerState) -> Tensor:
        """Return 1 for each column of D that is preconditioned, ``[d_in]``: 0 for a bias that stands apart."""
        kept = torch.ones_like(state["right"][0])
        if self.bias == "apart":
            # A layer without any statistics counts as one without a bias.
            kept[-1] = torch.where(state["has_bias"] & (state["batches"] > 0), 0, kept[-1])
        return kept


def _shapes(shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of what `NewtonMuon` exchanges."""
    return (shape.d_in * (shape.d_in + 1) // 2 + 1,), (1,)
