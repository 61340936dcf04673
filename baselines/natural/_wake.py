"""The rule of KLD-WRM as a method: KFAC's factors, and a memory that carries the regularizer of all past steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from baselines.parts.eigenpairs import eigenpairs
from baselines.parts.matrices import shortened
from baselines.parts.means import CountsBatches, fold
from mkor_core.capture.reductions import average_locations
from mkor_core.capture.statistics import ROWS, Captured, LayerShape, Rows, Statistic
from mkor_core.devices import aligned
from mkor_core.maths import linalg
from mkor_core.maths.linalg import product
from mkor_core.method import KLClipping, LayerState, Method, put

LEAST_EIGENVALUE = 1e-6
"""Smaller eigenvalues count as 0, as in the released code."""


@dataclass(frozen=True, kw_only=True)
class WakeRegularized(CountsBatches, KLClipping, Method):
    """See `baselines.natural.kld_wrm.optimizer_for`, whose arguments the fields are."""

    fixed_in_state: ClassVar[tuple[str, ...]] = ("subproblem",)

    subproblem: str
    damping: float
    factor_decay: float
    kl_clip: float | None = None
    rms_clip: float | None
    factor_update_period: int
    inverse_update_period: int
    lr: Callable[[], float | Tensor]
    """Returns the learning rate of the step."""

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS.summed(_moments, _shapes)

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        state: LayerState = {
            "batches": torch.zeros((), dtype=torch.int64, device=device),
            "memory": aligned(shape, dtype, device),
            "lr": torch.zeros((), dtype=dtype, device=device),
        }
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            names = [side, f"{side}_vectors", *([] if self.subproblem == "SO" else [f"{side}_batch"])]
            state |= {name: linalg.identity(d, dtype, device) for name in names}
            state[f"{side}_values"] = torch.ones(d, dtype=dtype, device=device)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.factor_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        # Gradient rows are scaled by their number n: C = sum (n g)(n g)^T / n. The first moments enter unweighted.
        new = 1 - self.factor_decay * (state["batches"] > 0).to(captured.x.dtype)
        moments = {"left": captured.g * captured.number, "right": captured.x / captured.number}
        fold(state, accept, new, **moments)
        if self.subproblem != "SO":
            put(state, accept, **{f"{side}_batch": moment for side, moment in moments.items()})

    @override
    def refresh(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:
        new: LayerState = {}
        for side in ("left", "right"):
            if self.subproblem == "SO":
                values, vectors = eigenpairs(state[side])
                values = torch.where(values < LEAST_EIGENVALUE, 0, values)
            else:
                damped = state[side].clone()
                damped.diagonal().add_(self.damping**0.5)
                values, vectors = common_basis(damped, state[f"{side}_batch"])
                values = values.clamp(min=0)
            new |= {f"{side}_values": values, f"{side}_vectors": vectors}
        put(state, accept, **new)

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        rate = self.lr()
        lr = rate.to(grad) if isinstance(rate, Tensor) else grad.new_full((), rate)
        target = aligned(grad.shape, grad.dtype, grad.device, torch.empty)
        torch.add(grad, self.factor_decay * state["lr"] / lr * state["memory"], out=target)
        left, right = state["left_vectors"], state["right_vectors"]
        c, a = state["left_values"], state["right_values"]
        match self.subproblem:
            case "SO":
                weights = torch.outer(c, a) + self.damping
            case "Q":
                weights = 1 + lr * torch.outer(c, a)
            case _:
                weights = torch.outer(1 + lr * c, 1 + lr * a)
        value = product(product(left, product(product(left.T, target), right).div_(weights)), right.T)
        memory = -grad
        if self.subproblem != "SO":
            memory = target - grad - product(product(state["left"], value), state["right"])
        # A step that is not finite leaves the state alone.
        put(state, (value.sum() + memory.sum()).isfinite(), memory=memory, lr=lr)
        return value if self.subproblem == "SO" else shortened(value, self.rms_clip)


def common_basis(metric: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and P with ``P^T metric P = I`` and ``P^T matrix P = diag(a)``; the metric is positive definite."""
    root, status = torch.linalg.cholesky_ex(metric)
    half = torch.linalg.solve_triangular(root, matrix, upper=False)
    values, vectors = eigenpairs(torch.linalg.solve_triangular(root, half.T, upper=False))
    basis = torch.linalg.solve_triangular(root.T, vectors, upper=True)
    return torch.where(status == 0, values, torch.nan), basis


def _moments(rows: list[Rows], _: int) -> Captured:
    """Return the second moments of the rows, a Conv2d's averaged over its locations, and the number of rows."""
    x = linalg.joined_rows([average_locations(part.x, part.locations) for part in rows])
    g = linalg.joined_rows([average_locations(part.g, part.locations) for part in rows])
    return Captured(x.T @ x, g.T @ g, torch.full((), len(x), dtype=x.dtype, device=x.device))


def _shapes(shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (shape.d_in, shape.d_in), (shape.d_out, shape.d_out)
