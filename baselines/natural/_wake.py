"""The rule of KLD-WRM as a method: KFAC's factors, and a memory that carries the regularizer of all past steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.statistics import ROWS, Captured, Rows, Statistic
from mkor_core.engines.kl_clip import kl_clipped
from mkor_core.maths.linalg import finite_or_gradient
from mkor_core.method import LayerShape, LayerState, Method, Update

LEAST_EIGENVALUE = 1e-6
"""Smaller eigenvalues count as 0, as in the released code."""


@dataclass(frozen=True, kw_only=True)
class WakeRegularized(Method):
    """See `baselines.natural.kld_wrm.optimizer_for`, whose arguments the fields are."""

    refresh_needs_statistics: ClassVar[bool] = False
    fixed_in_state: ClassVar[tuple[str, ...]] = ("subproblem",)

    subproblem: str
    damping: float
    factor_decay: float
    kl_clip: float | None
    rms_clip: float | None
    factor_update_period: int
    inverse_update_period: int
    lr: Callable[[], float | Tensor]
    """Returns the learning rate of the step."""

    @override
    def plain_hyperparameters(self) -> dict[str, Any]:
        return {key: value for key, value in super().plain_hyperparameters().items() if key != "lr"}

    @property
    @override
    def statistic(self) -> Statistic:
        return ROWS

    @override
    def condense(self, rows: list[Rows], step: int) -> Captured:
        x, g, number = super().condense(rows, step)
        return Captured(x.T @ x, g.T @ g, number)

    @override
    def sum_shapes(self, shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (shape.d_in, shape.d_in), (shape.d_out, shape.d_out)

    @override
    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        state: LayerState = {
            "batches": torch.zeros((), dtype=torch.int64, device=device),
            "memory": torch.zeros(*shape, dtype=dtype, device=device),
            "lr": torch.zeros((), dtype=dtype, device=device),
        }
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            names = [side, f"{side}_vectors", *([] if self.subproblem == "SO" else [f"{side}_batch"])]
            state |= {name: torch.eye(d, dtype=dtype, device=device) for name in names}
            state[f"{side}_values"] = torch.ones(d, dtype=dtype, device=device)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.factor_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        # Gradient rows are scaled by their number n: C = sum (n g)(n g)^T / n. The first moments enter unweighted.
        old = self.factor_decay * (state["batches"] > 0).to(captured.x.dtype)
        moments = {"left": captured.g * captured.number, "right": captured.x / captured.number}
        for side, moment in moments.items():
            state[side] = old * state[side] + (1 - old) * moment
            if f"{side}_batch" in state:
                state[f"{side}_batch"] = moment
        state["batches"] = state["batches"] + 1

    @override
    def refresh(self, state: LayerState, step: int) -> None:
        for side in ("left", "right"):
            if self.subproblem == "SO":
                values, state[f"{side}_vectors"] = torch.linalg.eigh(state[side])
                state[f"{side}_values"] = torch.where(values < LEAST_EIGENVALUE, 0, values)
            else:
                damped = state[side].clone()
                damped.diagonal().add_(self.damping**0.5)
                values, vectors = common_basis(damped, state[f"{side}_batch"])
                state[f"{side}_values"], state[f"{side}_vectors"] = values.clamp(min=0), vectors

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        rate = self.lr()
        lr = rate.to(grad) if isinstance(rate, Tensor) else grad.new_full((), rate)
        target = grad + self.factor_decay * state["lr"] / lr * state["memory"]
        left, right = state["left_vectors"], state["right_vectors"]
        c, a = state["left_values"], state["right_values"]
        match self.subproblem:
            case "SO":
                weights = torch.outer(c, a) + self.damping
            case "Q":
                weights = 1 + lr * torch.outer(c, a)
            case _:
                weights = torch.outer(1 + lr * c, 1 + lr * a)
        value = left @ ((left.T @ target @ right) / weights) @ right.T
        memory = -grad if self.subproblem == "SO" else target - grad - state["left"] @ value @ state["right"]
        finite = (value.sum() + memory.sum()).isfinite()  # a step that is not finite leaves the state alone
        state["memory"] = torch.where(finite, memory, state["memory"])
        state["lr"] = torch.where(finite, lr, state["lr"])
        if self.subproblem != "SO" and self.rms_clip is not None:
            value = value * (self.rms_clip / value.square().mean().sqrt()).clamp(max=1)
        return value

    @override
    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        if self.kl_clip is None:
            return [finite_or_gradient(update.value, update.grad) for update in updates]
        return kl_clipped([update._replace(lr=self.lr()) for update in updates], self.kl_clip)

    @override
    def has_statistics(self, state: LayerState) -> Tensor:
        return state["batches"] > 0


def common_basis(metric: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and P with ``P^T metric P = I`` and ``P^T matrix P = diag(a)``; the metric is positive definite."""
    root, status = torch.linalg.cholesky_ex(metric)
    half = torch.linalg.solve_triangular(root, matrix, upper=False)
    values, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.T, upper=False))
    basis = torch.linalg.solve_triangular(root.T, vectors, upper=True)
    return torch.where(status == 0, values, torch.nan), basis
