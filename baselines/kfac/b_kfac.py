"""B-KFAC (Puiu, 2022): KFAC whose factors are kept as a few eigenpairs, which Brand's update carries on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from baselines.kfac._low_rank import LowRankKFAC, brand, named_pairs, pairs_of, randomized_svd
from mkor_core.capture.statistics import ROWS, Captured, Rows, Statistic
from mkor_core.devices import upload
from mkor_core.method import LayerState, put
from mkor_core.ranges import AT_LEAST_1


@dataclass(frozen=True, kw_only=True)
class BKFAC(LowRankKFAC):
    """B-KFAC: RS-KFAC's update, whose factors never become matrices ``[d, d]``: linear in the width.

    A factor's ``rank`` leading eigenpairs and the rows of a batch give its next ones, in every factor update. Of a
    batch with more rows, ``max_rows`` are drawn: tokens would make more rows than the layer is wide, for which the
    released code falls back on RS-KFAC. Layers narrower than rank plus rows take the same update in a dense form, and
    so do those of a Conv2d, whose rows are its locations. Ranks gather the rows. ``thesis_code`` also appends the
    bias's 1 to rows that are divided by the root of their number, and by that of a Conv2d's locations: the bias weighs
    that number, times the locations, too much.
    """

    max_rows: Annotated[int, AT_LEAST_1, "the rows of a batch that update the factors"] = 256
    overwrite_period: Annotated[int | None, AT_LEAST_1, "steps between two decompositions of dense factors"] = None
    """B-R-KFAC: keep dense factors too, from which a randomized decomposition corrects the eigenpairs; 250 in the
    published runs. None keeps none."""

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS.gathered(self._rows)

    def _rows(self, rows: list[Rows], step: int) -> Captured:
        # So that x^T x over the number of rows is A, and g^T g times it C, also of a Conv2d's locations.
        x = torch.cat([self._inputs(part) for part in rows])
        g = torch.cat([part.g for part in rows])
        return Captured(x, g, torch.full((), len(x), dtype=x.dtype, device=x.device))

    def _inputs(self, part: Rows) -> Tensor:
        x: Tensor = part.x / part.locations**0.5
        if self.thesis_code:  # the 1 of a bias stays 1, by which `accumulate` knows that there is one
            ones = part.x[:, -1]
            x[:, -1] = torch.where((ones == 1).all(), ones, x[:, -1])
        return x

    @property
    @override
    def first_eigenvalue(self) -> float:
        return 0.0

    @property
    @override
    def keeps_factors(self) -> bool:
        return self.overwrite_period is not None

    @override
    def refreshes(self, step: int) -> bool:
        return self.accumulates(step)

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
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
        new: LayerState = {}
        for side, rows in columns.items():
            pairs = brand(pairs_of(state, side), rows, self.factor_decay, self.rank)
            if self.overwrite_period is not None:
                new[side] = state[side].lerp(rows @ rows.T, 1 - self.factor_decay)
                if step % self.overwrite_period == 0:
                    pairs = randomized_svd(new[side], self.rank, 4, step)
            new |= named_pairs(side, pairs)
        put(state, accept, **new)
        state["batches"].add_(1 if accept is None else accept)
