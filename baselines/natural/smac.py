"""SMAC (Seung et al.): MAC with the mean squares of a layer's gradient rows as its output side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from baselines.parts.means import InputMethod, fold
from mkor_core.capture.statistics import ROWS, Captured, LayerShape, Rows, Statistic
from mkor_core.maths import linalg
from mkor_core.method import LayerState, put
from mkor_core.ranges import POSITIVE


@dataclass(frozen=True, kw_only=True)
class SMAC(InputMethod):
    """SMAC: ``V = (diag(s) + damping I)^-1 D (I - a a^T / (damping + |a|^2))``, as https://github.com/hseung88/mac.

    a is MAC's running mean input, s the running mean of the squared raw gradient rows ``[d_out]``. Raw rows belong to
    the mean loss of a batch, so s falls with the square of the batch: a damping far above s, as the released 1 nearly
    always is, leaves MAC with its step divided by the damping. As in MAC, the first layer's second moment over all
    training data and the weights of attention are left out, and so is the exception of attention's joint projections
    from s.
    """

    damping: Annotated[float, POSITIVE, "the Tikhonov term of both sides"] = 1.0
    rescale: bool = False
    """Give V the norm of D (ours), as MKOR does, so that the learning rate need not follow the damping."""

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS.summed(_sums, lambda shape: ((shape.d_in,), (shape.d_out,)))

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {
            "mean": torch.zeros(shape.d_in, dtype=dtype, device=device),
            "squares": torch.zeros(shape.d_out, dtype=dtype, device=device),
            "batches": torch.zeros((), dtype=torch.int64, device=device),
            # What V is made of between two updates; at first, V is D.
            "right": torch.zeros(shape.d_in, dtype=dtype, device=device),
            "left": torch.ones(shape.d_out, dtype=dtype, device=device),
        }

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        a, squares = captured.x / captured.number, captured.g / captured.number
        fold(state, accept, self.new_weight(state, a), mean=a, squares=squares)
        if self.refreshes(step):
            put(state, accept, right=state["mean"], left=(state["squares"] + self.damping).reciprocal())

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        a = state["right"]
        update = grad - torch.outer(grad @ a, a / (self.damping + a.dot(a)))
        update = state["left"][:, None] * update
        return linalg.rescale(update, grad) if self.rescale else update


def _sums(rows: list[Rows], _: int) -> Captured:
    """Return the sums of the input rows and of the squared raw gradient rows, over all locations, and their number."""
    x = torch.stack([part.x.sum(0) for part in rows]).sum(0)
    squares = torch.stack([part.g.square().sum(0) for part in rows]).sum(0)
    number = sum(len(part.x) for part in rows)
    return Captured(x, squares, torch.full((), number, dtype=x.dtype, device=x.device))
