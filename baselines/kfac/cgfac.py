"""CG-FAC: KFAC's system, or the empirical Fisher's, solved by conjugate gradients without forming a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.statistics import ROWS, Captured, LayerShape, Statistic
from mkor_core.method import KLClipping, LayerState, Method, put
from mkor_core.ranges import AT_LEAST_1, NOT_NEGATIVE, POSITIVE

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class CGFAC(KLClipping, Method):
    """``(M + damping I) V = D`` by conjugate gradients from V = 0, in every step, on the rows of that step.

    The published abstract leaves product and stopping rule open; defaults are ours. Gradient rows are scaled by the
    number of rows: with raw ones, M is smaller by its square, and V is D / damping. A Conv2d has one row per example,
    averaged over its locations. Ranks gather the rows once; an exchange inside the iteration would cost one or two
    all-reduces of D in each. There is no running average. The state keeps the rows, and of the last solve the number
    of iterations and the relative residual ``|D - (M + damping I) V| / |D|``.
    """

    operator: Literal["kron", "block"] = "kron"
    """``kron`` is KFAC's ``M(V) = C V A``, ``block`` the layer's block of the empirical Fisher matrix."""
    damping: Annotated[float, POSITIVE, "the Tikhonov term"] = 1e-2
    tolerance: Annotated[float, NOT_NEGATIVE, "the relative residual at which the iteration stops"] = 1e-3
    iterations: Annotated[int, AT_LEAST_1, "the largest number of iterations"] = 10
    kl_clip: Annotated[float | None, POSITIVE, "the bound on all layers' updates together, as in KFAC"] = None
    """None leaves the update unchanged."""

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {
            "left": torch.zeros(0, shape.d_out, dtype=dtype, device=device),
            "right": torch.zeros(0, shape.d_in, dtype=dtype, device=device),
            "iterations": torch.zeros((), dtype=torch.int64, device=device),
            "residual": torch.zeros((), dtype=dtype, device=device),
        }

    @override
    def accumulates(self, step: int) -> bool:
        return True

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        put(state, accept, right=captured.x, left=captured.g * captured.x.shape[0])

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        multiply = kron_product if self.operator == "kron" else block_product
        product = partial(multiply, state["right"], state["left"])
        solution = conjugate_gradients(product, grad, self.damping, self.tolerance, self.iterations)
        # A step that is not finite leaves the state alone.
        put(state, solution.residual.isfinite(), iterations=solution.iterations, residual=solution.residual)
        return solution.value

    @override
    def has_statistics(self, state: LayerState) -> bool:
        return len(state["right"]) > 0


def kron_product(x: Tensor, g: Tensor, value: Tensor) -> Tensor:
    """Return ``C V A`` for ``C = G^T G / n``, ``A = X^T X / n``, with the cheaper order of products."""
    n, d_out = g.shape
    right = ((g @ value) @ x.T) @ x if n < d_out else g @ ((value @ x.T) @ x)
    return g.T @ right / n**2


def block_product(x: Tensor, g: Tensor, value: Tensor) -> Tensor:
    """Return ``sum_i <g_i x_i^T, V> g_i x_i^T / n``."""
    inner = ((g @ value) * x).sum(1)
    return (g.T * inner) @ x / len(x)


class Solution(NamedTuple):
    """What `conjugate_gradients` found."""

    value: Tensor
    """V; NaN for a D that is not finite."""
    iterations: Tensor
    """The number of iterations, an integer scalar."""
    residual: Tensor
    """``|D - (M + damping I) V| / |D|`` by the recurrence, a scalar; 0 if D is."""


def conjugate_gradients(
    product: Product, target: Tensor, damping: float, tolerance: float, iterations: int
) -> Solution:
    """Solve ``product(V) + damping V = D`` for a symmetric positive semi-definite ``product``, starting at V = 0.

    The host does not wait to see whether the residual has fallen to ``tolerance |D|``: further iterations are masked.
    """
    start = energy = target.square().sum()
    goal = tolerance**2 * start
    value, residual, direction = torch.zeros_like(target), target, target
    done = torch.zeros((), dtype=torch.int64, device=target.device)
    for _ in range(iterations):
        active = energy > goal
        if target.device.type == "cpu" and not active:
            break
        image = product(direction) + damping * direction
        length = torch.where(active, energy / (direction * image).sum(), 0)
        value, residual = value + length * direction, residual - length * image
        left = residual.square().sum()
        direction = residual + torch.where(active, left / energy, 0) * direction
        energy, done = left, done + active
    relative = torch.where(start == 0, start, (energy / start).sqrt())
    return Solution(torch.where(start.isfinite(), value, torch.nan), done, relative)
