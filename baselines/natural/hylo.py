"""HyLo (Mu et al., SC '22): natural gradient through a small kernel of sampled or interpolated rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.statistics import ROWS, Captured, LayerShape, Statistic
from mkor_core.devices import upload
from mkor_core.method import KLClipping, LayerState, Method, put
from mkor_core.ranges import AT_LEAST_1, FRACTION, POSITIVE

JITTER = 1e-10
"""Number that the original adds to the damping."""


@dataclass(frozen=True, kw_only=True)
class HyLo(KLClipping, Method):
    """HyLo: ``(U U^T / r + damping I)^-1`` by Sherman-Morrison-Woodbury.

    The columns of U are the gradients of r kept rows. Gradient rows are scaled by the number of rows. A Conv2d has one
    row per example, averaged over its locations.
    """

    fixed_in_state: ClassVar[tuple[str, ...]] = ("variant",)

    variant: Literal["KIS", "KID"] = "KIS"
    """``KIS`` samples rows by importance ``|x|^2 |g|^2``; ``KID`` keeps the most important and interpolates others."""
    sample_fraction: Annotated[float, FRACTION, "the share of rows that is kept"] = 0.1
    """At least one row is kept."""
    damping: Annotated[float, POSITIVE, "the Tikhonov term"] = 0.1
    update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the kept rows"] = 10
    kl_clip: Annotated[float | None, POSITIVE, "the bound on all layers' updates together, as in KFAC"] = None
    """None, the original's value, leaves the update unchanged."""

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
            "kernel_inverse": torch.zeros(0, 0, dtype=dtype, device=device),
        }

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return self.accumulates(step)

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        # The state keeps r = kept rows and the inverse of their small kernel matrix [r, r].
        x, g = captured.x, captured.g * captured.x.shape[0]
        kept = max(int(self.sample_fraction * len(x)), 1)
        importance = x.square().sum(1) * g.square().sum(1)
        if self.variant == "KIS":
            chosen = sample_without_replacement(importance, kept, seed=step)
            middle = (self.damping + JITTER) * torch.eye(kept, dtype=x.dtype, device=x.device)
        else:
            order = importance.argsort(descending=True, stable=True)
            chosen = order[:kept]
            middle = interpolated_middle(kernel(x[order], g[order]), kept, self.damping + JITTER)
        x, g = x[chosen], g[chosen]
        # torch.linalg.inv would make the host wait to see whether the matrix is singular.
        inverse, status = torch.linalg.inv_ex(kernel(x, g) / kept + middle)
        new = {"right": x, "left": g, "kernel_inverse": inverse}
        if inverse.shape == state["kernel_inverse"].shape:
            # A singular kernel leaves the layer what it had, except before the first update, or if r changes.
            new = {name: torch.where(status == 0, value, state[name]) for name, value in new.items()}
        put(state, accept, **new)

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        # V = (D - G^T diag(y) X / r) / damping with y = (K_r / r + M)^-1 diag(G D X^T); M is `middle` of `accumulate`.
        x, g = state["right"], state["left"]
        y = state["kernel_inverse"] @ ((g @ grad) * x).sum(1)
        return (grad - (g.T * y) @ x / len(x)) / self.damping

    @override
    def has_statistics(self, state: LayerState) -> bool:
        return len(state["right"]) > 0


def kernel(x: Tensor, g: Tensor) -> Tensor:
    """Return ``X X^T * G G^T`` ``[n, n]``, the inner products of the rows' gradients ``g_i x_i^T``."""
    return (x @ x.T) * (g @ g.T)


def interpolated_middle(matrix: Tensor, rank: int, damping: float) -> Tensor:
    """Return KID's ``M = (P (E + damping I)^-1 P^T)^-1`` ``[r, r]`` for a kernel K ``[n, n]``.

    The rows of K are sorted, the most important first. ``P = [I, R11^-1 R12]`` and ``E = [0, Q2 R22]`` with ``K = Q R``
    unpivoted. ``R11^-1 R12`` is the least-squares solution that expresses the other columns of K by its first r, and
    ``Q2 R22`` is the residual. Both are computed with a pseudo-inverse, since the kernel of a layer that learns nothing
    is rank-deficient.
    """
    number = len(matrix)
    kept, rest = matrix[:, :rank], matrix[:, rank:]
    weights = torch.linalg.pinv(kept, rtol=number * torch.finfo(matrix.dtype).eps) @ rest
    identity = torch.eye(number, dtype=matrix.dtype, device=matrix.device)
    interpolation = torch.cat([identity[:rank, :rank], weights], 1)
    residual = torch.cat([torch.zeros_like(kept), rest - kept @ weights], 1)
    inner = torch.linalg.solve(residual + damping * identity, interpolation.T)
    middle: Tensor = torch.linalg.inv(interpolation @ inner)
    return middle


def sample_without_replacement(weights: Tensor, number: int, seed: int) -> Tensor:
    """Return ``number`` indices drawn without replacement with probability proportional to ``weights`` ``[n]``.

    The Gumbel keys are drawn on the CPU, so that all ranks and devices draw the same indices.
    """
    keys = weights.to(torch.float64).log() + _gumbel(len(weights), seed, weights.device)
    return keys.topk(number).indices


@lru_cache(maxsize=4)  # most layers have the same number of rows in a step
def _gumbel(number: int, seed: int, device: torch.device) -> Tensor:
    noise = torch.rand(number, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return upload(-torch.log(-torch.log(noise.clamp(min=torch.finfo(torch.float64).tiny))), device)
