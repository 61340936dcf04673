"""RS-KFAC (Puiu, 2022): KFAC whose factors are inverted along a few directions, which a random sketch finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor
from typing_extensions import override

from baselines.kfac._low_rank import LowRankKFAC, named_pairs, randomized_eigh, randomized_svd
from baselines.kfac._per_example import PerExampleFactors
from mkor_core.capture.statistics import LayerShape
from mkor_core.method import Distributed, LayerState, put
from mkor_core.ranges import AT_LEAST_1, Range


@dataclass(frozen=True, kw_only=True)
class RSKFAC(PerExampleFactors, Distributed, LowRankKFAC):
    """RS-KFAC: ``V = C^-1 D A^-1`` with the leading eigenpairs of running means of second moments A and C.

    A Linear's A is ``X^T X / N`` and its C ``N G^T G``; a Conv2d's, with L locations and B examples, ``X^T X / (B
    L^2)`` and ``B L G^T G``. The damping is a share of a factor's largest eigenvalue. The published runs (VGG16,
    CIFAR-10) have an inverse_update_period that falls to 30, damping that falls to 0.01, lr from 0.3 to 0.001, no
    momentum and weight decay 7e-4. The rows of all layers are kept until the moments are formed. ``thesis_code`` also
    starts the factors from 0 in place of I.
    """

    sketch: Literal["rsvd", "sre"] = "rsvd"
    """``rsvd`` takes a randomized singular value decomposition, ``sre`` the eigenpairs inside the sketch's range."""
    power_steps: Annotated[int, Range(at_least=1, largest=100), "products of the factor with the sketch"] = 4
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two decompositions"] = 50

    @property
    @override
    def refreshed(self) -> tuple[str, ...]:
        return ("left_vectors", "left_values", "right_vectors", "right_values")

    @property
    @override
    def first_eigenvalue(self) -> float:
        return 0.0 if self.thesis_code else 1.0

    @property
    @override
    def keeps_factors(self) -> bool:
        return True

    @override
    def refreshes(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def refresh(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:
        decompose = randomized_svd if self.sketch == "rsvd" else randomized_eigh
        # The same sketch in every step: a factor that has not changed keeps its eigenpairs to the last bit.
        left, right = (decompose(state[side], self.rank, self.power_steps, 0) for side in ("left", "right"))
        put(state, accept, **named_pairs("left", left), **named_pairs("right", right))

    @override
    def start_weight(self, state: LayerState) -> Tensor | float:
        return 0.0 if self.thesis_code else self.faded(state)

    @override
    def refresh_cost(self, shape: LayerShape) -> float:
        return float(sum(d * d * min(d, self.rank) for d in shape))
