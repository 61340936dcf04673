"""NorMuon (Li et al., 2025): Muon with rows at equal length; and Muon itself with the exact polar factor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.muon._polar import polar_factor, scaled
from baselines.parts.layered import LayeredModel
from baselines.parts.matrices import MatrixOptimizer, State, layer_groups
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE

ADAM_BETAS, ADAM_EPS = (0.9, 0.95), 1e-10
"""Of the parameters under Adam, as in baselines/muon/muon.py."""
ROW_EPS = 1e-10


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old mean"] = 0.95,
    row_decay: Annotated[float | None, DECAY, "the weight of the old mean squares of rows"] = 0.95,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.0,
    polar: Literal["ns5", "exact"] = "ns5",
    length: Literal["jordan", "match_rms"] = "jordan",
    adamw_lr: Annotated[float | None, POSITIVE, "the learning rate of the parameters under AdamW"] = None,
) -> NorMuon:
    """Return NorMuon over the weights of the model's layers, with AdamW for all other parameters.

    The polar factor O of Nesterov's mean has its rows divided by the roots of running means of their mean squares, and
    gets its norm back. ``row_decay=None`` leaves that out: Muon, whose polar factor may be exact here, as a control.
    With the exact one and no more rows than columns, all rows of O have one length, so that NorMuon is Muon.

    ``jordan`` is the released scale, ``sqrt(max(1, d_out / d_in))``; ``match_rms`` the paper's: entries of O have the
    root mean square 0.2, so that one learning rate suits AdamW too. If ``adamw_lr`` is None, AdamW uses ``lr``.

    State of a ``[m, n]`` matrix: one mean and m numbers.
    """
    chosen = {"momentum": momentum, "row_decay": row_decay, "polar": polar, "length": length}
    groups = layer_groups(model, weight_decay, betas=ADAM_BETAS, eps=ADAM_EPS, **chosen)
    rates = {True: lr, False: lr if adamw_lr is None else adamw_lr}
    return NorMuon([{**group, "lr": rates[group["is_matrix"]]} for group in groups])


class NorMuon(MatrixOptimizer):
    """See `optimizer_for`."""

    @override
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        return {"mean": torch.zeros_like(grad), "rows": grad.new_zeros(len(grad), 1)}

    @override
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor | None:
        new = 1 - group["momentum"]
        state["mean"].lerp_(grad, new)
        factor = polar_factor(torch.lerp(state["mean"], grad, new), group["polar"])
        whole = factor.norm()
        if group["row_decay"] is not None:
            state["rows"].lerp_(factor.square().mean(1, keepdim=True), 1 - group["row_decay"])
            factor = factor / (state["rows"].sqrt() + ROW_EPS)
            norm = factor.norm()
            factor = factor * (whole / torch.where(norm > 0, norm, 1))
        return scaled(factor, group["length"])
