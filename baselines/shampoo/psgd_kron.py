"""PSGD with Kronecker factors (Li, 2018 and 2024), whose triangular factors are fitted without an inverse."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from baselines.parts import matrices
from baselines.parts.matrices import MatrixOptimizer, State, shortened, tensor_groups
from mkor_core.devices import upload
from mkor_core.ranges import AT_LEAST_1, DECAY, FRACTION, NOT_NEGATIVE, POSITIVE

ALWAYS, LEAST, FALL = 500, 0.03, 0.001
"""Steps in which factors are always updated; then the probability falls as ``e^(-FALL t)`` to ``LEAST``."""
BALANCED = 0.01
"""The probability that a step balances the norms of both factors."""


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old mean"] = 0.9,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.0,
    factor_lr: Annotated[float, FRACTION, "the step size of the factors"] = 0.1,
    update_clip: Annotated[float | None, POSITIVE, "the largest root mean square of an update"] = 1.1,
    update_probability: Annotated[float | None, FRACTION, "the probability of an update of the factors"] = None,
    max_dimension: Annotated[int, AT_LEAST_1, "the longest axis that has a factor"] = 8192,
) -> PSGDKron:
    """Return PSGD-Kron over all parameters, with the rule that the libraries use (``EQ``).

    ``V = P_L M P_R`` with the corrected mean M of the gradients and ``P = Q^T Q``. The upper triangles Q start from I.
    With noise v from a normal distribution, ``A = Q_L M Q_R^T`` and ``B = Q_L^-T v Q_R^-1`` they follow ``Q_L <- Q_L -
    factor_lr triu(A A^T - B B^T) Q_L / |A A^T + B B^T|``, with a lower bound of the spectral norm. Factors are updated
    in the first 500 steps, then with a probability that falls to 0.03; or always with ``update_probability``. A vector,
    or an axis longer than ``max_dimension``, has a diagonal factor. Entries of V have a root mean square of about 1.

    The noise depends on the step and the parameter's place alone: all ranks draw the same, and the global generators
    stay as they are. The author's newer rule (``Q0.5EQ1.5``) is left out. State of a ``[m, n]`` matrix: one mean and
    ``m^2 + n^2`` numbers.
    """
    shared: dict[str, Any] = {"momentum": momentum, "factor_lr": factor_lr, "update_clip": update_clip}
    shared |= {"update_probability": update_probability, "max_dimension": max_dimension}
    groups = tensor_groups(parameters, weight_decay, **shared)
    # A vector is a matrix of one column.
    return PSGDKron([{**group, "is_matrix": True} for group in groups], lr=lr)


class PSGDKron(MatrixOptimizer):
    """See `optimizer`."""

    @override
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        state: State = {"mean": torch.zeros_like(grad)}
        for side, d in zip(("left", "right"), grad.shape, strict=True):
            is_diagonal = d > group["max_dimension"] or 1 in grad.shape
            state[side] = grad.new_ones(d) if is_diagonal else torch.eye(d, dtype=grad.dtype, device=grad.device)
        return state

    @override
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor | None:
        mean = matrices.momentum(grad, state["mean"], group["momentum"], t)
        left, right = state["left"], state["right"]
        chance = random.Random(t)  # one for each step, so that all ranks and resumed runs draw alike
        if chance.random() < (group["update_probability"] or probability(t)):
            if chance.random() < BALANCED:
                ratio = (right.abs().amax() / left.abs().amax()).sqrt()
                left, right = left * ratio, right / ratio
            left, right = updated(left, right, mean, noise(grad, t), group["factor_lr"])
            state["left"], state["right"] = left, right
        update = times(left.mT if left.dim() > 1 else left, times(left, mean)).T
        update = times(right.mT if right.dim() > 1 else right, times(right, update)).T
        return shortened(update, group["update_clip"])


def probability(t: int) -> float:
    """Return the libraries' probability of an update of the factors in step t (from 1)."""
    return 1.0 if t <= ALWAYS else max(LEAST, math.exp(-FALL * (t - ALWAYS)))


def noise(like: Tensor, t: int) -> Tensor:
    """Return numbers from a normal distribution in the shape of a matrix; they depend on the shape and t alone."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
    return upload(drawn.to(like.dtype), like.device)


def times(factor: Tensor, matrix: Tensor) -> Tensor:
    """Return ``Q M`` for a triangular Q ``[d, d]``, or a diagonal one ``[d]``."""
    return factor[:, None] * matrix if factor.dim() == 1 else factor @ matrix


def solved(factor: Tensor, matrix: Tensor) -> Tensor:
    """Return ``Q^-T M`` for an upper triangular Q ``[d, d]``, or a diagonal one ``[d]``."""
    if factor.dim() == 1:
        return matrix / factor[:, None]
    solution: Tensor = torch.linalg.solve_triangular(factor.T, matrix, upper=False)
    return solution


def terms(left: Tensor, right: Tensor, mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``A = Q_L M Q_R^T`` and ``B = Q_L^-T v Q_R^-1``, both ``[m, n]``."""
    return times(right, times(left, mean).T).T, solved(right, solved(left, noise).T).T


def updated(left: Tensor, right: Tensor, mean: Tensor, noise: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Return both factors after a step of their rule; an axis of one entry has none."""
    a, b = terms(left, right, mean, noise)
    return _followed(left, a, b, step), _followed(right, a.T, b.T, step)


def _followed(factor: Tensor, a: Tensor, b: Tensor, step: float) -> Tensor:
    if len(factor) == 1:
        return factor
    if factor.dim() == 1:
        of_a, of_b = a.square().sum(1), b.square().sum(1)
        return factor - step * (of_a - of_b) / (of_a + of_b).amax() * factor
    of_a, of_b = a @ a.T, b @ b.T
    return factor - step / norm_bound(of_a + of_b) * ((of_a - of_b).triu() @ factor)


def norm_bound(matrix: Tensor) -> Tensor:
    """Return a lower bound of the spectral norm of a symmetric matrix: that of a power step from its longest column."""
    largest = matrix.abs().amax()
    scaled = matrix / largest
    column = scaled.index_select(1, scaled.square().sum(0).argmax()[None])
    once = scaled @ column
    bound: Tensor = largest * torch.linalg.vector_norm(scaled @ (once / torch.linalg.vector_norm(once)))
    return bound
