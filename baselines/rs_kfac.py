"""RS-KFAC (Puiu, 2022): KFAC whose factors are inverted along a few directions, which a random sketch finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines._low_rank import Pairs, clipped, randomized_eigh, randomized_svd
from mkor_core.capture import ROWS, Captured, Rows, Statistic
from mkor_core.comm import Triangles
from mkor_core.linalg import finite_or_gradient
from mkor_core.method import LayerShape, LayerState, Method, Update
from mkor_core.ranges import AT_LEAST_1, DECAY, POSITIVE, Range


@dataclass(frozen=True, kw_only=True)
class RSKFAC(Method):
    """RS-KFAC: ``V = C^-1 D A^-1`` with the leading eigenpairs of running means of second moments A and C.

    A Linear's A is ``X^T X / N`` and its C ``N G^T G``; a Conv2d's, with L locations and B examples, ``X^T X / (B
    L^2)`` and ``B L G^T G``. The damping is a share of a factor's largest eigenvalue. The published runs (VGG16,
    CIFAR-10) have an inverse_update_period that falls to 30, damping that falls to 0.01, lr from 0.3 to 0.001, no
    momentum and weight decay 7e-4. The rows of all layers are kept until the moments are formed.
    """

    refresh_needs_statistics: ClassVar[bool] = False

    rank: Annotated[int, AT_LEAST_1, "the number of eigenpairs of a factor"] = 220
    sketch: Literal["rsvd", "sre"] = "rsvd"
    """``rsvd`` takes a randomized singular value decomposition, ``sre`` the eigenpairs inside the sketch's range."""
    power_steps: Annotated[int, Range(at_least=1, largest=100), "products of the factor with the sketch"] = 4
    damping: Annotated[float, POSITIVE, "the share of the largest eigenvalue that is added to all"] = 0.1
    factor_decay: Annotated[float, DECAY, "the weight of the old factor"] = 0.95
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 10
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two decompositions"] = 50
    update_clip: Annotated[float | None, POSITIVE, "the largest root mean square of a layer's update"] = 0.07
    thesis_code: bool = False
    """The code of the author's thesis starts factors from 0 in place of I, adds factor_decay^k to the damping after k
    updates, and takes the smallest kept eigenvalue for all that are left out, in place of 0."""

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS

    @override
    def condense(self, rows: list[Rows], step: int) -> Captured:
        # Summed over ranks: X^T X / L^2, L G^T G and the number of examples (of rows, for a Linear).
        x = torch.stack([part.x.T @ part.x / part.locations**2 for part in rows]).sum(0)
        g = torch.stack([part.g.T @ part.g * part.locations for part in rows]).sum(0)
        number = torch.full((), sum(len(part.x) / part.locations for part in rows), dtype=x.dtype, device=x.device)
        triangles = Triangles()
        return Captured(triangles.pack(x), triangles.pack(g), number)

    @override
    def sum_shapes(self, shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (shape.d_in * (shape.d_in + 1) // 2,), (shape.d_out * (shape.d_out + 1) // 2,)

    @property
    @override
    def refreshed(self) -> tuple[str, ...]:
        return ("left_vectors", "left_values", "right_vectors", "right_values")

    @override
    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        state: LayerState = {"batches": torch.zeros((), dtype=torch.int64, device=device)}
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            identity = torch.eye(d, dtype=dtype, device=device)
            state[side] = identity if not self.thesis_code else torch.zeros_like(identity)
            state[f"{side}_vectors"] = identity[:, : self.rank].clone()
            state[f"{side}_values"] = state[side].diagonal()[: self.rank].clone()
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.factor_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        triangles, new = Triangles(), 1 - self.factor_decay
        right = triangles.unpack(captured.x, len(state["right"])) / captured.number
        left = triangles.unpack(captured.g, len(state["left"])) * captured.number
        state["right"] = self.factor_decay * state["right"] + new * right
        state["left"] = self.factor_decay * state["left"] + new * left
        state["batches"] = state["batches"] + 1

    @override
    def refresh(self, state: LayerState, step: int) -> None:
        decompose = randomized_svd if self.sketch == "rsvd" else randomized_eigh
        for side in ("left", "right"):
            # The same sketch in every step: a factor that has not changed keeps its eigenpairs to the last bit.
            pairs = decompose(state[side], self.rank, self.power_steps, 0)
            state[f"{side}_vectors"], state[f"{side}_values"] = pairs

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        update = self._divided(state, "right", self._divided(state, "left", grad).T).T
        return clipped(update, self.update_clip)

    @override
    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        return {"left": self._divided(state, "left", grad), "right": self._divided(state, "right", grad.T).T}

    @override
    def start_weight(self, state: LayerState) -> Tensor | float:
        return 0.0 if self.thesis_code else self._faded(state)

    @override
    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        return [finite_or_gradient(update.value, update.grad) for update in updates]

    @override
    def has_statistics(self, state: LayerState) -> Tensor:
        return state["batches"] > 0

    @override
    def refresh_cost(self, shape: LayerShape) -> float:
        return float(sum(d * d * min(d, self.rank) for d in shape))

    def _divided(self, state: LayerState, side: str, matrix: Tensor) -> Tensor:
        """Return a damped factor's inverse times a matrix."""
        pairs = Pairs(state[f"{side}_vectors"], state[f"{side}_values"])
        return pairs.divided(matrix, self.damping, self._faded(state) if self.thesis_code else None)

    def _faded(self, state: LayerState) -> Tensor:
        return torch.pow(self.factor_decay, state["batches"].to(state["left"].dtype))
