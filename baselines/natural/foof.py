"""FOOF (Benzing, ICML 2022): K-FAC's input side alone, "gradient descent on neurons"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from baselines.kfac.kaisa import damped_inverse
from baselines.parts.means import CountsBatches, InputMethod, fold
from mkor_core.capture.statistics import MOMENT, Captured, LayerShape, Statistic
from mkor_core.devices import aligned
from mkor_core.maths import linalg
from mkor_core.method import Distributed, LayerState, put
from mkor_core.ranges import FRACTION, POSITIVE


@dataclass(frozen=True, kw_only=True)
class FOOF(CountsBatches, Distributed, InputMethod):
    """FOOF: ``V = D (A + damping I)^-1`` with the running second moment A of the inputs; KFAC with C = I.

    See https://arxiv.org/abs/2201.12250; the defaults are those of https://github.com/hseung88/mac. A Conv2d's rows are
    divided by the number of its output locations, as KAISA's are; FOOF's author adds the moments of the locations up,
    MAC's authors average them.
    """

    damping: Annotated[float, POSITIVE, "the Tikhonov term"] = 0.01
    rescale: bool = False
    """Give V the norm of D (ours), as MKOR does."""
    grad_worker_fraction: Annotated[float, FRACTION, "the share of ranks that precondition a layer"] = 1.0
    """As KAISA's."""

    @property
    @override
    def statistic(self) -> Statistic:
        return MOMENT.of_inputs()

    @property
    @override
    def worker_fraction(self) -> float:
        return self.grad_worker_fraction

    @property
    @override
    def refreshed(self) -> tuple[str, ...]:
        return ("right_inverse",)

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {
            "right": aligned((shape.d_in, shape.d_in), dtype, device),
            "right_inverse": linalg.identity(shape.d_in, dtype, device),
            "batches": torch.zeros((), dtype=torch.int64, device=device),
        }

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        moment = captured.x / captured.number
        fold(state, accept, self.new_weight(state, moment), right=moment)

    @override
    def refresh(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:
        put(state, accept, right_inverse=damped_inverse(state["right"], self.damping, state["right_inverse"]))

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        update = linalg.product(grad, state["right_inverse"])
        return linalg.rescale(update, grad) if self.rescale else update

    @override
    def refresh_cost(self, shape: LayerShape) -> float:
        return float(shape.d_in**3)
