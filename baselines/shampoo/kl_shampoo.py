"""KL-Shampoo (Lin et al., ICLR 2026): Shampoo's factors as the minimizers of a Kullback-Leibler divergence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.parts.layered import LayeredModel
from baselines.parts.matrices import MatrixOptimizer, State, eigenbasis, layer_groups
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE

FIRST_EIGENVALUE = 0.1
"""With which all eigenvalues of both factors start in the released code."""
_ROUNDING = (
    "the factors of the first gradient are singular, so rounding chooses the basis of their null space, in which the "
    "eigenvalues are then estimated: summing gradients in another order changes the training"
)
LIMITS: Mapping[str, str] = {"micro_batches": _ROUNDING, "data_parallel": _ROUNDING}


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, DECAY, "the weight of the old mean"] = 0.9,
    beta2: Annotated[float, DECAY, "the weight of the old factors"] = 0.98,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-8,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.01,
    update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the eigenbases"] = 10,
    first_eigenvalues: Literal["released", "rms"] = "released",
) -> KLShampoo:
    """Return KL-Shampoo over the weights of the model's layers, with Adam for all other parameters.

    With the running mean M of the gradients, ``V = S_L^(-1/2) M S_R^(-1/2)``. ``S_L <- beta2 S_L + (1 - beta2) D S_R^-1
    D^T / n``, and ``S_R`` likewise. Their eigenvalues are estimated in every step in the current bases, which follow
    every ``update_period`` steps by a power iteration and a QR. V has entries of about 1, as Adam's have, so that one
    learning rate suits both.

    The first step sets up the factors and changes no weight. The released code then starts all eigenvalues from 0.1,
    which shortens the updates for hundreds of steps if gradients are small; ``rms`` starts them from the root mean
    square of the first gradient.

    State of a ``[m, n]`` matrix: one mean and ``2 (m^2 + n^2)`` numbers.
    """
    shared = {"betas": (beta1, beta2), "eps": eps, "update_period": update_period}
    groups = layer_groups(model, weight_decay, **shared, first_eigenvalues=first_eigenvalues)
    return KLShampoo(groups, lr=lr)


class KLShampoo(MatrixOptimizer):
    """See `optimizer_for`."""

    decays_last: ClassVar[bool] = True

    @override
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        new = 1 - group["betas"][1]
        first = grad.new_full((), FIRST_EIGENVALUE)
        if group["first_eigenvalues"] == "rms":
            rms = grad.square().mean().sqrt()
            first = torch.where(rms > 0, rms, first)
        state: State = {"mean": torch.zeros_like(grad)}
        for side, rows in (("left", grad), ("right", grad.T)):
            state[side] = new * (rows @ rows.T) / rows.shape[1]
            state[f"{side}_vectors"] = eigenbasis(state[side])
            state[f"{side}_values"] = first.repeat(len(rows))
        return state

    @override
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor | None:
        if t == 1:
            return None
        beta1, beta2 = group["betas"]
        left, right = state["left_vectors"], state["right_vectors"]
        inverse_roots = {side: inverse_root(state[f"{side}_values"]) for side in ("left", "right")}
        denominator = torch.outer(1 / inverse_roots["left"], 1 / inverse_roots["right"]) + group["eps"]
        state["mean"].lerp_(grad, 1 - beta1)
        update: Tensor = left @ ((left.T @ state["mean"] @ right) / denominator) @ right.T
        turned = left.T @ grad @ right
        for side, other, rows, basis in (("left", "right", turned, left), ("right", "left", turned.T, right)):
            # D S^-1 D^T = Q (T diag(1 / lambda) T^T) Q^T with the T of both old bases; T's rows are those of this side.
            scaled = rows * inverse_roots[other]
            moment = basis @ (scaled @ scaled.T) @ basis.T
            state[side].lerp_(moment / rows.shape[1], 1 - beta2)
            # They are kept as they are used, so that a clamped one grows from its bound.
            state[f"{side}_values"].lerp_(scaled.square().mean(1), 1 - beta2).clamp_(min=least(len(basis)))
        if (t - 1) % group["update_period"] == 0:  # the first step, which moves nothing, does not count
            for side in ("left", "right"):
                state[f"{side}_vectors"] = torch.linalg.qr(state[side] @ state[f"{side}_vectors"]).Q
        return update


def inverse_root(values: Tensor) -> Tensor:
    """Return ``lambda^(-1/2)`` ``[d]``, at most ``max(10, min(d, 4000))`` as in the released code."""
    return values.clamp(min=least(len(values))).rsqrt()


def least(dimension: int) -> float:
    """Return the eigenvalue whose inverse root is the largest that the released code takes."""
    return float(max(10, min(dimension, 4000)) ** -2)
