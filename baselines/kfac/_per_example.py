"""KFAC's factors from the gradients of single examples, as the code has them that counts its loss per example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from baselines.kfac.kaisa import KAISA
from baselines.parts.means import fold
from mkor_core.capture.statistics import ROWS, Captured, LayerShape, Rows, Statistic
from mkor_core.method import LayerState
from mkor_core.ranges import DECAY
from mkor_core.ranks.comm import Triangles


class PerExampleFactors:
    """Mixin of a `Method` whose running averages A and C count the loss of an example; list it before `Method`.

    A Linear's A is ``X^T X / N`` and its C ``N G^T G``; a Conv2d's, with L locations and B examples, ``X^T X / (B
    L^2)`` and ``B L G^T G``. C is ``N^2`` times the one of raw rows, so that a damping counts for less.
    """

    factor_decay: Annotated[float, DECAY, "the weight of the old factor"]

    @property
    def statistic(self) -> Statistic:
        """See `Method.statistic`."""
        return ROWS.summed(_moments, _triangles)

    def accumulate(self, state: LayerState, captured: Captured, _: int, accept: Tensor | None = None) -> None:
        """See `Method.accumulate`."""
        triangles = Triangles()
        right = triangles.unpack(captured.x, len(state["right"])) / captured.number
        left = triangles.unpack(captured.g, len(state["left"])) * captured.number
        fold(state, accept, 1 - self.factor_decay, left=left, right=right)


@dataclass(frozen=True, kw_only=True)
class PerExampleKFAC(PerExampleFactors, KAISA):
    """KAISA's rule with factors per example."""


def _moments(rows: list[Rows], _: int) -> Captured:
    # Summed over ranks: X^T X / L^2, L G^T G and the number of examples (of rows, for a Linear).
    x = torch.stack([part.x.T @ part.x / part.locations**2 for part in rows]).sum(0)
    g = torch.stack([part.g.T @ part.g * part.locations for part in rows]).sum(0)
    number = torch.full((), sum(len(part.x) / part.locations for part in rows), dtype=x.dtype, device=x.device)
    triangles = Triangles()
    return Captured(triangles.pack(x), triangles.pack(g), number)


def _triangles(shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the moments' upper triangles."""
    return (shape.d_in * (shape.d_in + 1) // 2,), (shape.d_out * (shape.d_out + 1) // 2,)
