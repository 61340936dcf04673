"""Thermodynamic K-FAC: KFAC whose linear solves are equilibria of a simulated, noisy and coarse analog device.

For a damped factor R, ``dx = -(R x - b) dt + sqrt(2 / beta) dW`` has the stationary law ``N(R^-1 b, R^-1 / beta)``, so
that x's mean over time solves ``R x = b``. The time that the simulation takes says nothing about a device: compare
errors, simulated times and counted operations, never seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from baselines.kfac._analog import drawn_mean, rounded, simulated_mean
from baselines.parts.eigenpairs import eigenpairs
from baselines.parts.means import CountsBatches, fold
from mkor_core.capture.statistics import MOMENT, Captured, LayerShape, Statistic
from mkor_core.maths import linalg
from mkor_core.method import KLClipping, LayerState, Method, put
from mkor_core.ranges import AT_LEAST_1, DECAY, POSITIVE, Range


@dataclass(frozen=True, kw_only=True)
class ThermoKFAC(CountsBatches, KLClipping, Method):
    """``V = (C + damping I)^-1 D (A + damping I)^-1``, each solve a mean over time of an Ornstein-Uhlenbeck process.

    The device holds R, and reads b and writes x, rounded to ``bits``; the largest entry of b is scaled to 1. Where the
    rounded R is not definite enough, its diagonal is raised (``left_shift``, ``right_shift``) until the smallest
    eigenvalue is the damping. The state also has the time that the device would have taken, summed over the columns of
    all solves. Factors are KFAC's, of raw rows, and start from I.
    """

    damping: Annotated[float, POSITIVE, "the number added to the diagonals of both factors"] = 0.1
    """With 8 bits, a smaller one is lost in the rounding of the factors."""
    factor_decay: Annotated[float, DECAY, "the weight of the old factor"] = 0.95
    kl_clip: Annotated[float | None, POSITIVE, "the bound on all layers' updates together, as in KFAC"] = 1e-3
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 10
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two transfers of the factors to the device"] = 100
    inverse_temperature: Annotated[float, POSITIVE, "beta, the inverse of the noise's variance"] = 1e4
    duration: Annotated[float, POSITIVE, "the time of a mean, in the longest relaxation times 1 / lambda_min"] = 100.0
    bits: Annotated[int | None, Range(at_least=2, at_most=32), "bits of R, b and x"] = 8
    """None rounds nothing."""
    trajectory_steps: Annotated[int | None, Range(at_least=1, largest=1000), "steps of a simulation"] = None
    """Steps of ``0.1 / lambda_max`` to simulate, after as many to settle, in place of ``duration``; None draws the mean
    from its exact law, which costs two products with eigenvectors."""

    @property
    @override
    def statistic(self) -> Statistic:
        return MOMENT

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        zero = torch.zeros((), dtype=dtype, device=device)
        count = torch.zeros((), dtype=torch.int64, device=device)
        state: LayerState = {"batches": count, "solves": count.clone(), "simulated_time": zero}
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            state |= {side: linalg.identity(d, dtype, device), f"{side}_shift": zero.clone()}
            state[f"{side}_vectors"] = linalg.identity(d, dtype, device)
            state[f"{side}_values"] = torch.full((d,), 1 + self.damping, dtype=dtype, device=device)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.factor_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        left, right = captured.g / captured.number, captured.x / captured.number
        fold(state, accept, 1 - self.factor_decay, left=left, right=right)

    @override
    def refresh(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:
        new: LayerState = {}
        for side in ("left", "right"):
            damped = state[side].clone()
            damped.diagonal().add_(self.damping)
            values, vectors = eigenpairs(rounded(damped, self.bits))
            shift = (self.damping - values[0]).clamp(min=0)
            new |= {f"{side}_vectors": vectors, f"{side}_shift": shift, f"{side}_values": values + shift}
        put(state, accept, **new)

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        value, time = grad, torch.zeros_like(state["simulated_time"])
        for side in ("left", "right"):  # R of the rows, and then of the columns
            stream = (2 * state["solves"] + (side == "right")) << 32  # each step of a simulation adds 1
            time = time + value.shape[1] * self._duration(state[f"{side}_values"])
            value = self._solve(state, side, value, stream).T
        finite = value.isfinite().all()  # a step that is not finite leaves the state alone
        put(state, finite, solves=state["solves"] + 1, simulated_time=state["simulated_time"] + time)
        return value

    def _duration(self, values: Tensor) -> Tensor:
        if self.trajectory_steps is None:
            return self.duration / values[0]
        return 2 * self.trajectory_steps * 0.1 / values[-1]

    def _solve(self, state: LayerState, side: str, target: Tensor, stream: Tensor) -> Tensor:
        values, vectors = state[f"{side}_values"], state[f"{side}_vectors"]
        largest = target.abs().amax()
        given = linalg.joined_rows([rounded(target / torch.where(largest == 0, 1, largest), self.bits)])
        beta = self.inverse_temperature
        if self.trajectory_steps is None:
            mean = drawn_mean(values, vectors, given, beta, self._duration(values), stream)
        else:
            mean = simulated_mean(
                (vectors * values) @ vectors.T, values[-1], given, beta, self.trajectory_steps, stream
            )
        return rounded(mean, self.bits) * largest

    @override
    def start_weight(self, state: LayerState) -> Tensor:
        return torch.as_tensor(self.factor_decay, device=state["batches"].device) ** state["batches"]
