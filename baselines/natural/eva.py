"""Eva (Zhang et al., ICLR 2023): rank-one Kronecker factors of running means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.statistics import Captured, LayerShape, Statistic
from mkor_core.maths.inverses import dot
from mkor_core.maths.products import Cut, Gradient, bilinear
from mkor_core.method import InPlaceMethod, KLClipping, Known, LayerState, OfRankOne, Products, Proposal, cut_state, put
from mkor_core.ranges import DECAY, POSITIVE

EXAMPLES = 16
"""Number of examples, from the start of a batch, whose rows enter the means, as upstream."""


@dataclass(frozen=True, kw_only=True)
class Eva(KLClipping, OfRankOne, InPlaceMethod):
    """Eva: ``(g g^T (x) a a^T + damping I)^-1`` applied to the gradient; a and g are running means of raw rows."""

    fixed_in_state: ClassVar[tuple[str, ...]] = ("rows",)
    works_on_blocks: ClassVar[bool] = True

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
        return Statistic("mean", examples=EXAMPLES, of_rank=self.rows == "rank")

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        means = {"left": shape.d_out, "right": shape.d_in}
        state = {side: torch.zeros(*leading, d, dtype=dtype, device=device) for side, d in means.items()}
        return state | {"batches": torch.zeros(leading, dtype=torch.int64, device=device)}

    @override
    def accumulates(self, step: int) -> bool:
        return True

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        # m <- factor_decay m + (1 - factor_decay) m_batch for both means; the first batch's enter unweighted.
        new = 1 - self.factor_decay * (state["batches"] > 0).to(captured.x.dtype)[..., None]
        for side, total in (("left", captured.g), ("right", captured.x)):
            put(state, accept, **{side: state[side].lerp(total / captured.number[..., None], new)})
        state["batches"].add_(1 if accept is None else accept)

    @override
    def products(self, state: LayerState, grad: Gradient, cut: Cut | None = None) -> Products:
        part = cut_state(state, cut, has_bias=grad.bias is not None)
        return Products(over_all=bilinear(part["left"], grad, part["right"], cut))

    @override
    def propose(self, state: LayerState, products: Products) -> Proposal:
        # V = (D - share g a^T) / damping with share = (g^T D a) / (|a|^2 |g|^2 + damping), by Sherman-Morrison, so
        # that sum(V * D) = (|D|^2 - share g^T D a) / damping, column by column.
        by_weight, by_bias, of_weight, of_bias = products.over_all
        g, a = state["left"], state["right"]
        share = (by_weight + by_bias) / (dot(a, a) * dot(g, g) + self.damping)
        inner = (of_weight - share * by_weight) / self.damping, (of_bias - share * by_bias) / self.damping
        keeps = ~((inner[0] + inner[1]).isfinite() & (state["batches"] > 0))
        return Proposal(inner, keeps, (share,))

    @override
    def apply(self, state: LayerState, grad: Gradient, known: Known) -> None:
        _, keeps, (share,) = known.proposal or self.propose(state, known.products)
        whole = torch.full_like(share, 1 / self.damping)
        scale = torch.where(keeps, 1, whole if known.nu is None else known.nu.to(share.dtype) * whole)
        # Both masked: 0 times what is not finite is not 0.
        part = cut_state(state, known.cut, has_bias=grad.bias is not None)
        column = torch.where(keeps[..., None], 0, (scale * share)[..., None] * part["left"])
        grad.combine_rank_one_(scale, column, torch.where(keeps[..., None], 0, part["right"]))
