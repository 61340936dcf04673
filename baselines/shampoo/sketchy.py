"""Sketchy (Feinberg et al., NeurIPS 2023): Shampoo with its factors kept as sketches of few directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from baselines.parts.matrices import MatrixOptimizer, State, grafted, tensor_groups
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE, POSITIVE_DECAY


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old velocity"] = 0.9,
    nesterov: bool = True,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.0,
    rank: Annotated[int, AT_LEAST_1, "the number of directions in a sketch"] = 128,
    factor_decay: Annotated[float, POSITIVE_DECAY, "the weight of the old factors and second moments"] = 0.999,
    eps: Annotated[float, POSITIVE, "the share of its largest eigenvalue that is added to a factor"] = 1e-7,
    tail_decay: Literal["exact", "released"] = "exact",
    max_dimension: Annotated[int, AT_LEAST_1, "the longest axis of a matrix that is preconditioned"] = 4096,
) -> Sketchy:
    """Return Sketchy over all parameters; vectors, and matrices with longer axes, take the graft's step, RMSprop's.

    Each axis of a matrix (a convolution's weight is ``[d_out, C kh kw]``) has the leading directions U ``[d, rank]`` of
    ``sum_i factor_decay^i D D^T`` with singular values s, and the tail t that bounds the rest: the factor ``U s^2 U^T +
    t I``. Its update, in every step, is a singular value decomposition of ``[sqrt(factor_decay) U s, D]``. The largest
    dropped value c is taken from all: ``s^2 <- s'^2 - c^2``, ``t <- decay t + c^2``. The update is ``L^(-1/4) D
    R^(-1/4)`` at the length of RMSprop's. As released, that has no bias correction: the first updates are ``1 / sqrt(1
    - factor_decay)`` times as long as later ones, so that a warm-up helps. The momentum is a sum. Like the sum above, t
    decays by factor_decay; the released code decays it by the root, and its t is twice as large.

    State of a ``[m, n]`` matrix: two moments and ``(m + n) rank`` numbers. Less than Shampoo only for a small rank.
    """
    shared: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "rank": rank, "factor_decay": factor_decay}
    shared |= {"eps": eps, "tail_decay": tail_decay, "max_dimension": max_dimension}
    groups = tensor_groups(parameters, weight_decay, **shared)
    return Sketchy([{**group, "is_matrix": True} for group in groups], lr=lr)


class Sketchy(MatrixOptimizer):
    """See `optimizer`."""

    @override
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        state: State = {"velocity": torch.zeros_like(grad), "square": torch.zeros_like(grad)}
        if _has_factors(grad, group):
            for side, d in zip(("left", "right"), grad.shape, strict=True):
                kept = min(group["rank"], d)
                state |= {side: grad.new_zeros(d, kept), f"{side}_values": grad.new_zeros(kept)}
                state[f"{side}_tail"] = grad.new_zeros(())
        return state

    @override
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor | None:
        decay, eps = group["factor_decay"], group["eps"]
        state["square"].lerp_(grad.square(), 1 - decay)
        graft = grad / state["square"].sqrt().add(torch.finfo(grad.dtype).tiny)
        update = graft
        if _has_factors(grad, group):
            update = grad
            of_tail = decay if group["tail_decay"] == "exact" else decay**0.5
            for side, rows in (("left", grad), ("right", grad.T)):
                names = side, f"{side}_values", f"{side}_tail"
                new = sketched(state[names[0]], state[names[1]], state[names[2]], rows, decay, of_tail)
                state.update(zip(names, new, strict=True))
                update = divided(update, *new, eps) if side == "left" else divided(update.T, *new, eps).T
            update = grafted(update, graft)
        state["velocity"].mul_(group["momentum"]).add_(update)
        return update + group["momentum"] * state["velocity"] if group["nesterov"] else state["velocity"]


def _has_factors(grad: Tensor, group: Mapping[str, Any]) -> bool:
    return 1 not in grad.shape and max(grad.shape) <= int(group["max_dimension"])


def sketched(
    basis: Tensor, values: Tensor, tail: Tensor, rows: Tensor, decay: float, of_tail: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return U ``[d, k]``, s ``[k]`` and the tail of a sketch to which ``D D^T`` has been added.

    Args:
        basis: U.
        values: s.
        tail: the tail.
        rows: D ``[d, n]``.
        decay: the weight of the old sum.
        of_tail: the weight of the old tail.
    """
    kept = len(values)
    joined = torch.cat([decay**0.5 * basis * values, rows], 1)
    new_basis, new_values, _ = torch.linalg.svd(joined, full_matrices=False)
    dropped = new_values[kept].square() if len(new_values) > kept else torch.zeros_like(tail)
    return new_basis[:, :kept], (new_values[:kept].square() - dropped).clamp(min=0).sqrt(), of_tail * tail + dropped


def divided(matrix: Tensor, basis: Tensor, values: Tensor, tail: Tensor, eps: float) -> Tensor:
    """Return ``L^(-1/4) M`` for ``L = U s^2 U^T + (tail + eps largest) I``; without a tail, U's part alone."""
    squares = values.square() + tail
    damping = eps * squares.amax()
    along = basis.T @ matrix
    rest = torch.where(tail > 0, (tail + damping) ** -0.25, 0)
    of_basis = torch.where(squares + damping > 0, squares + damping, torch.inf) ** -0.25
    return rest * (matrix - basis @ along) + basis @ (of_basis[:, None] * along)
