"""SOAP-Muon (a note by Vyas): Muon whose mean is divided by SOAP's second moment, in SOAP's basis, before the polar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.muon._polar import polar_factor, scaled
from baselines.muon.normuon import ADAM_BETAS, ADAM_EPS
from baselines.parts.layered import LayeredModel
from baselines.parts.matrices import MatrixOptimizer, State, eigenbasis, layer_groups
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE

_ROUNDING = (
    "the factors of the first gradient are singular, so rounding chooses the basis of their null space, in which the "
    "mean is then divided: summing gradients in another order changes the training"
)
LIMITS: Mapping[str, str] = {"micro_batches": _ROUNDING, "data_parallel": _ROUNDING}


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old mean"] = 0.95,
    second_moment: Literal["momentum", "gradient", "none"] = "momentum",
    beta2: Annotated[float, DECAY, "the weight of the old second moment"] = 0.9,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-8,
    factor_decay: Annotated[float, DECAY, "the weight of the old factor"] = 0.9,
    update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the eigenbases"] = 10,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.0,
    polar: Literal["ns5", "exact"] = "ns5",
    length: Literal["jordan", "match_rms"] = "jordan",
    adamw_lr: Annotated[float | None, POSITIVE, "the learning rate of the parameters under AdamW"] = None,
) -> SOAPMuon:
    """Return SOAP-Muon over the weights of the model's layers, with AdamW for all other parameters.

    ``V = msgn(Q_L [(Q_L^T M Q_R) / (sqrt(v) + eps)] Q_R^T)`` with Nesterov's mean M of the gradients. The eigenbases
    Q_L and Q_R of ``L <- factor_decay L + (1 - factor_decay) D D^T``, and of R likewise, follow every
    ``update_period`` steps by a power iteration and a QR, as SOAP's do. The first step is Muon's and sets them up.

    ``second_moment`` says of what v ``[m, n]`` is the mean square: of the turned M (``momentum``), as in the published
    code (https://github.com/KellerJordan/modded-nanogpt, track 3, result 14), or of the turned D, as in SOAP
    (``gradient``); ``none`` is Muon, a control. That code's contra-Muon, row means and least ratio of step to weight
    are other methods and left out. The author's note, https://nikhilvyas.github.io/SOAP_Muon.pdf, could not be read;
    the order of operations and the defaults are that code's. ``length`` is as in NorMuon.

    State of a ``[m, n]`` matrix: two moments and ``2 (m^2 + n^2)`` numbers.
    """
    chosen: dict[str, Any] = {"momentum": momentum, "second_moment": second_moment, "beta2": beta2, "divisor_eps": eps}
    chosen |= {"factor_decay": factor_decay, "update_period": update_period, "polar": polar, "length": length}
    groups = layer_groups(model, weight_decay, betas=ADAM_BETAS, eps=ADAM_EPS, **chosen)
    rates = {True: lr, False: lr if adamw_lr is None else adamw_lr}
    return SOAPMuon([{**group, "lr": rates[group["is_matrix"]]} for group in groups])


class SOAPMuon(MatrixOptimizer):
    """See `optimizer_for`."""

    @override
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        state: State = {"mean": torch.zeros_like(grad)}
        if group["second_moment"] != "none":
            state["square"] = torch.zeros_like(grad)
            for side, d in zip(("left", "right"), grad.shape, strict=True):
                state |= {side: grad.new_zeros(d, d), f"{side}_vectors": grad.new_zeros(d, d)}
        return state

    @override
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor | None:
        new = 1 - group["momentum"]
        state["mean"].lerp_(grad, new)
        update = torch.lerp(state["mean"], grad, new)
        if group["second_moment"] != "none":
            update = _divided(update, grad, state, group) if t > 1 else update
            _follow(grad, state, group, t)
        return scaled(polar_factor(update, group["polar"]), group["length"])


def _divided(update: Tensor, grad: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
    """Return the mean ``[m, n]`` divided by the root of the second moment, which is updated, in the eigenbases."""
    left, right = state["left_vectors"], state["right_vectors"]
    turned = left.T @ update @ right
    measured = turned if group["second_moment"] == "momentum" else left.T @ grad @ right
    state["square"].lerp_(measured.square(), 1 - group["beta2"])
    result: Tensor = left @ (turned / (state["square"].sqrt() + group["divisor_eps"])) @ right.T
    return result


def _follow(grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> None:
    """Fold a gradient into the factors; set up their eigenbases in step 1, and turn them once a period."""
    for axis, (side, rows) in enumerate((("left", grad), ("right", grad.T))):
        state[side].lerp_(rows @ rows.T, 1 - group["factor_decay"])
        if t == 1:
            state[f"{side}_vectors"] = eigenbasis(state[side])
        elif (t - 1) % group["update_period"] == 0:
            moved = state[side] @ state[f"{side}_vectors"]
            order = (state[f"{side}_vectors"] * moved).sum(0).argsort(descending=True)
            state["square"] = state["square"].index_select(axis, order)
            state[f"{side}_vectors"] = torch.linalg.qr(moved[:, order]).Q
