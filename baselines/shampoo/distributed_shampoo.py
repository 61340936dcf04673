"""Distributed Shampoo (Shi et al., 2023) as its authors set it for AlgoPerf: blocks, with Adam's length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from baselines.parts.eigenpairs import eigenpairs
from baselines.parts.matrices import (
    MatrixOptimizer,
    State,
    adam_direction,
    adam_state,
    grafted,
    momentum,
    tensor_groups,
)
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, DECAY, "the weight of the old mean"] = 0.95,
    beta2: Annotated[float, DECAY, "the weight of the old factors and second moments"] = 0.98,
    eps: Annotated[float, POSITIVE, "the number added to the factors and to Adam's denominator"] = 1e-8,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.01,
    nesterov: bool = True,
    grafts_adam: bool = True,
    inverse_root: Literal["fourth", "square"] = "fourth",
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the roots"] = 100,
    first_inverse_update: Annotated[int, AT_LEAST_1, "the step (from 1) of the first roots"] = 100,
    block_size: Annotated[int, AT_LEAST_1, "the longest side of a block; each block has its factors"] = 1024,
) -> DistributedShampoo:
    """Return Distributed Shampoo with Adam grafting over all parameters; vectors take Adam's step and do not decay.

    A matrix (a convolution's weight as ``[d_out, C kh kw]``) is cut into blocks. A block has ``L <- beta2 L + (1 -
    beta2) D D^T`` and R likewise, updated in every step, and their roots ``(L / (1 - beta2^t) + eps I)^(-1/4)``, by
    eigendecompositions. Its update is ``L^(-1/4) M R^(-1/4)`` with the mean M of the gradients, at the length of Adam's
    update of the same block, so that the graft depends on the block size. Before the first roots, it is Adam's: a
    shorter run is Adam. With ``nesterov``, means are NAdam's. Without ``grafts_adam``, lengths stay as they are.

    The settings that won AlgoPerf's external tuning have these periods and block size, lr 1.2e-3 to 1.75e-3, beta1
    0.933 to 0.983, beta2 0.975 to 0.998, weight_decay 2e-4 to 0.16, warm-up and a cosine; one has inverse square roots.

    State of a ``[m, n]`` matrix in one block: two moments and ``2 (m^2 + n^2)`` numbers. Every rank does all the work,
    where the authors' code shards it.
    """
    shared: dict[str, Any] = {"betas": (beta1, beta2), "eps": eps, "nesterov": nesterov, "grafts": grafts_adam}
    shared |= {"root": 4 if inverse_root == "fourth" else 2, "block_size": block_size}
    shared |= {"period": inverse_update_period, "first": first_inverse_update}
    return DistributedShampoo(tensor_groups(parameters, weight_decay, **shared), lr=lr)


class DistributedShampoo(MatrixOptimizer):
    """See `optimizer`."""

    @override
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        state = adam_state(grad)
        for number, block in enumerate(blocks(grad, group["block_size"])):
            for side, d in zip(("left", "right"), block.shape, strict=True):
                state[f"{side}_{number}"] = grad.new_zeros(d, d)
                state[f"{side}_root_{number}"] = torch.eye(d, dtype=grad.dtype, device=grad.device)
        return state

    @override
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor | None:
        betas, nesterov, size = group["betas"], group["nesterov"], group["block_size"]
        mean = momentum(grad, state["mean"].clone(), betas[0], t, nesterov=nesterov)
        adam = adam_direction(grad, state, betas, group["eps"], t, nesterov=nesterov)
        is_due = t == group["first"] or (t > group["first"] and t % group["period"] == 0)
        update = adam.clone()
        every = zip(*(blocks(matrix, size) for matrix in (grad, mean, adam, update)), strict=True)
        for number, (of_grad, of_mean, of_adam, of_update) in enumerate(every):
            for side, rows in (("left", of_grad), ("right", of_grad.T)):
                factor = state[f"{side}_{number}"]
                factor.lerp_(rows @ rows.T, 1 - betas[1])
                if is_due:
                    corrected = factor / (1 - betas[1] ** t)
                    state[f"{side}_root_{number}"] = inverse_root_of(corrected, group["root"], group["eps"])
            if t >= group["first"]:
                value = state[f"left_root_{number}"] @ of_mean @ state[f"right_root_{number}"]
                if group["grafts"]:
                    value = grafted(value, of_adam)
                of_update.copy_(value)
        return update


def blocks(matrix: Tensor, size: int) -> list[Tensor]:
    """Return views of the blocks of a matrix of at most ``size`` rows and columns."""
    return [block for rows in matrix.split(size) for block in rows.split(size, 1)]


def inverse_root_of(factor: Tensor, root: int, eps: float) -> Tensor:
    """Return ``(factor + eps I)^(-1/root)``; negative eigenvalues, which are rounding, are lifted to 0 with all others.

    factor: ``[d, d]``, symmetric.
    """
    values, vectors = eigenpairs(factor)
    values = values - values.amin().clamp(max=0) + eps
    inverse: Tensor = (vectors * values ** (-1 / root)) @ vectors.T
    return inverse
