"""B-KFAC (Puiu, 2022): KFAC whose factors are kept as a few eigenpairs, which Brand's update carries on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from baselines._low_rank import Pairs, brand, clipped, randomized_svd
from mkor_core.capture import ROWS, Captured, Rows, Statistic
from mkor_core.linalg import finite_or_gradient
from mkor_core.method import LayerShape, LayerState, Method, Update
from mkor_core.ranges import AT_LEAST_1, DECAY, POSITIVE
from mkor_core.transfers import upload


@dataclass(frozen=True, kw_only=True)
class BKFAC(Method):
    """B-KFAC: RS-KFAC's update, whose factors never become matrices ``[d, d]``: linear in the width.

    A factor's ``rank`` leading eigenpairs and the rows of a batch give its next ones, in every factor update. Of a
    batch with more rows, ``max_rows`` are drawn: tokens would make more rows than the layer is wide, for which the
    released code falls back on RS-KFAC. Layers narrower than rank plus rows take the same update in a dense form, and
    so do those of a Conv2d, whose rows are its locations. Ranks gather the rows.
    """

    gathers_rows: ClassVar[bool] = True

    rank: Annotated[int, AT_LEAST_1, "the number of eigenpairs of a factor"] = 220
    max_rows: Annotated[int, AT_LEAST_1, "the rows of a batch that update the factors"] = 256
    damping: Annotated[float, POSITIVE, "the share of the largest eigenvalue that is added to all"] = 0.1
    factor_decay: Annotated[float, DECAY, "the weight of the old factor"] = 0.95
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 10
    overwrite_period: Annotated[int | None, AT_LEAST_1, "steps between two decompositions of dense factors"] = None
    """B-R-KFAC: keep dense factors too, from which a randomized decomposition corrects the eigenpairs; 250 in the
    published runs. None keeps none."""
    update_clip: Annotated[float | None, POSITIVE, "the largest root mean square of a layer's update"] = 0.07
    thesis_code: bool = False
    """As in RS-KFAC. It also appends the bias's 1 to rows that are divided by the root of their number, so
    that the bias weighs that number times too much."""

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS

    @override
    def condense(self, rows: list[Rows], step: int) -> Captured:
        # So that x^T x over the number of rows is A, and g^T g times it C, also of a Conv2d's locations.
        x = torch.cat([part.x / part.locations**0.5 for part in rows])
        g = torch.cat([part.g for part in rows])
        return Captured(x, g, torch.full((), len(x), dtype=x.dtype, device=x.device))

    @override
    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        state: LayerState = {"batches": torch.zeros((), dtype=torch.int64, device=device)}
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            state[f"{side}_vectors"] = torch.eye(d, min(d, self.rank), dtype=dtype, device=device)
            state[f"{side}_values"] = torch.zeros(min(d, self.rank), dtype=dtype, device=device)
            if self.overwrite_period is not None:
                state[side] = torch.zeros(d, d, dtype=dtype, device=device)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.factor_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return self.accumulates(step)

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        x, g = captured.x, captured.g
        number = len(x)
        if number > self.max_rows:
            drawn = torch.randperm(number, generator=torch.Generator().manual_seed(step))[: self.max_rows]
            chosen = upload(drawn, x.device)
            # As many rows as before, in the mean.
            x, g = x[chosen], g[chosen] * (number / self.max_rows) ** 0.5
        columns = {"right": x.T / len(x) ** 0.5, "left": g.T * number**0.5}
        if self.thesis_code:
            has_bias = (captured.x[:, -1] == 1).all()
            columns["right"][-1] *= 1 + (len(x) ** 0.5 - 1) * has_bias.to(x.dtype)
        for side, rows in columns.items():
            pairs = brand(self._pairs(state, side), rows, self.factor_decay, self.rank)
            if side in state:
                state[side] = self.factor_decay * state[side] + (1 - self.factor_decay) * rows @ rows.T
            state[f"{side}_vectors"], state[f"{side}_values"] = pairs
        state["batches"] = state["batches"] + 1

    @override
    def refresh(self, state: LayerState, step: int) -> None:
        if self.overwrite_period is not None and step % self.overwrite_period == 0:
            for side in ("left", "right"):
                pairs = randomized_svd(state[side], self.rank, 4, step)
                state[f"{side}_vectors"], state[f"{side}_values"] = pairs

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        update = self._divided(state, "right", self._divided(state, "left", grad).T).T
        return clipped(update, self.update_clip)

    @override
    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        return {"left": self._divided(state, "left", grad), "right": self._divided(state, "right", grad.T).T}

    @override
    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        return [finite_or_gradient(update.value, update.grad) for update in updates]

    @override
    def has_statistics(self, state: LayerState) -> Tensor:
        return state["batches"] > 0

    def _pairs(self, state: LayerState, side: str) -> Pairs:
        return Pairs(state[f"{side}_vectors"], state[f"{side}_values"])

    def _divided(self, state: LayerState, side: str, matrix: Tensor) -> Tensor:
        faded = torch.pow(self.factor_decay, state["batches"].to(matrix.dtype))
        return self._pairs(state, side).divided(matrix, self.damping, faded if self.thesis_code else None)
