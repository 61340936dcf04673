"""Eva (Zhang et al., ICLR 2023): rank-one Kronecker factors of running means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.blocks import Block
from mkor_core.capture.statistics import MEAN, Captured, Statistic
from mkor_core.maths import linalg
from mkor_core.maths.products import Gradient
from mkor_core.method import BlockSums, LayerShape, LayerState, Prepared, StackedMethod, cut_to_block
from mkor_core.ranges import DECAY, POSITIVE

EXAMPLES = 16
"""Number of examples, from the start of a batch, whose rows enter the means, as upstream."""


@dataclass(frozen=True, kw_only=True)
class Eva(StackedMethod):
    """Eva: ``(g g^T (x) a a^T + damping I)^-1`` applied to the gradient; a and g are running means of raw rows."""

    fixed_in_state: ClassVar[tuple[str, ...]] = ("rows",)

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

    @property
    @override
    def clip(self) -> float | None:
        return self.kl_clip

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {
            "left": torch.zeros(*leading, shape.d_out, dtype=dtype, device=device),
            "right": torch.zeros(*leading, shape.d_in, dtype=dtype, device=device),
            "batches": torch.zeros(leading, dtype=torch.int64, device=device),
        }

    @override
    def accumulates(self, step: int) -> bool:
        return True

    @override
    def refreshes(self, step: int) -> bool:
        return False  # the means need no periodic work

    @override
    def accumulate(
        self,
        state: LayerState,
        captured: Captured,
        step: int,
        accept: Tensor | None = None,
        gradient_norm: Tensor | None = None,
    ) -> None:
        # m <- factor_decay m + (1 - factor_decay) m_batch for both means; the first batch's enter unweighted.
        batches = state["batches"]
        accept = torch.ones_like(batches, dtype=torch.bool) if accept is None else accept
        new = 1 - self.factor_decay * (batches > 0).to(captured.x.dtype)[..., None]
        for side, total in (("left", captured.g), ("right", captured.x)):
            mean = state[side].lerp(total / captured.number[..., None], new)
            state[side].copy_(torch.where(accept[..., None], mean, state[side]))
        batches.add_(accept)

    @override
    def refresh(
        self,
        state: LayerState,
        step: int,
        accept: Tensor | None = None,
        will_step: Tensor | None = None,
        host: Mapping[str, Tensor] | None = None,
    ) -> None:
        pass

    @override
    def prepare(self, state: LayerState, grad: Gradient) -> Prepared:
        return self._prepared(state, *_inner_products(state, grad))

    def _prepared(
        self, state: LayerState, by_weight: Tensor, by_bias: Tensor, of_weight: Tensor, of_bias: Tensor
    ) -> Prepared:
        # V = (D - weight g a^T) / damping with weight = (g^T D a) / (|a|^2 |g|^2 + damping), by Sherman-Morrison, so
        # that sum(V * D) = (|D|^2 - weight g^T D a) / damping, column by column.
        g, a, has_statistics = state["left"], state["right"], state["batches"] > 0
        share = (by_weight + by_bias) / (linalg.inner(a, a) * linalg.inner(g, g) + self.damping)
        in_weight = (of_weight - share * by_weight) / self.damping
        in_bias = (of_bias - share * by_bias) / self.damping
        finite = (in_weight + in_bias).isfinite()
        return Prepared((in_weight, in_bias), ~(finite & has_statistics), (share,))

    @property
    @override
    def works_on_blocks(self) -> bool:
        return True

    @override
    def block_sums(self, state: LayerState, grad: Gradient, block: Block) -> BlockSums:
        cut = cut_to_block(state, block, has_bias=grad.bias is not None)
        return BlockSums(over_all=_inner_products(cut, grad, counts_bias=block.counts_bias))

    @override
    def prepare_block(self, state: LayerState, sums: BlockSums) -> Prepared:
        return self._prepared(state, *sums.over_all)

    @override
    def apply_to_block(
        self, state: LayerState, grad: Gradient, block: Block, sums: BlockSums, nu: Tensor | None = None
    ) -> None:
        cut = cut_to_block(state, block, has_bias=grad.bias is not None)
        self.apply(cut, grad, self.prepare_block(state, sums), nu)

    @override
    def apply(
        self, state: LayerState, grad: Gradient, prepared: Prepared | None = None, nu: Tensor | None = None
    ) -> None:
        prepared = prepared or self.prepare(state, grad)
        (share,) = prepared.tensors
        whole = torch.full_like(share, 1 / self.damping)
        scale = torch.where(prepared.keeps, 1, whole if nu is None else nu.to(share.dtype) * whole)
        keeps, factor = prepared.keeps[..., None], (scale * share)[..., None]
        # Both masked: 0 times what is not finite is not 0.
        column, row = torch.where(keeps, 0, factor * state["left"]), torch.where(keeps, 0, state["right"])
        grad.combine_rank_one_(scale, column, row)


def _inner_products(
    state: LayerState, grad: Gradient, *, counts_bias: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``g^T D a`` over the weight's columns and over the bias's, and ``|D|^2`` over either, each ``[...]``.

    counts_bias: whether the bias's column counts.
    """
    g, a = state["left"], state["right"]
    weight, bias = grad
    columns = a if bias is None else a[..., :-1]
    by_weight, of_weight = linalg.inner(g, linalg.matvec(weight, columns)), linalg.square_norm(weight)
    if bias is None or not counts_bias:
        return by_weight, torch.zeros_like(by_weight), of_weight, torch.zeros_like(of_weight)
    return by_weight, linalg.inner(g, bias) * a[..., -1], of_weight, linalg.inner(bias, bias)
