"""MKOR (Mozaffari, Li, Zhang and Mehri Dehnavi, NeurIPS 2023): Kronecker factors inverted by rank-1 updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from mkor_core import linalg
from mkor_core.capture import MEAN, ROWS, Captured, Rows, Statistic
from mkor_core.method import LayerShape, LayerState, Method, Update
from mkor_core.ranges import AT_LEAST_1, FRACTION, POSITIVE_DECAY, OneOf, Range

RELEASED_CLAMP = 100.0
"""Limit on the entries of rows before their mean in the released code (A4)."""
HALF = (torch.bfloat16, torch.float16)
OVERSAMPLING = 8
"""Columns of the randomized range finder beyond the rank asked for."""

_DENSE = {
    "published": linalg.published,
    "sherman_morrison": linalg.sherman_morrison,
    "released": linalg.released,
}
_WINDOWED = {
    "published": linalg.windowed_published,
    "sherman_morrison": linalg.windowed_sherman_morrison,
    "released": linalg.windowed_released,
}


@dataclass(frozen=True, kw_only=True)
class MKOR(Method):
    """MKOR: ``V = J_L D J_R``, its inverse factors J updated in place by one rank a period; no damping."""

    update_rule: Literal["sherman_morrison", "published", "released"] = "sherman_morrison"
    """``sherman_morrison`` is exact (A3), ``published`` is the paper's Algorithm 1 (A2), ``released`` is the released
    code's update (A4), with its clamp on rows and its first update, which only sets J = I."""
    factor_decay: Annotated[float | None, POSITIVE_DECAY, "the weight of the old factor"] = None
    """Gamma. None means 0.95 for the rule ``released``, otherwise 0.9."""
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the inverses"] = 10
    stabilizer_threshold: Annotated[
        float, Range(at_least=0, finite=False), "the largest entry at which a factor is stabilized"
    ] = 2.0
    """Epsilon of the stabilizer (A1), which is applied before an update; infinity turns it off."""
    stabilizer_blend: Annotated[float, FRACTION, "the weight of the factor against the identity"] = 0.8
    """Zeta of the stabilizer (A1)."""
    rescale: bool = True
    """Give V the norm of D (A5)."""
    factor_dtype: Annotated[torch.dtype, OneOf(("float64", "float32", "bfloat16", "float16"))] = torch.float32
    """Storage and exchange dtype of factors and vectors, which are accumulated in float32. float32 means float64 if
    the model's parameters are float64."""
    window: Annotated[int | None, AT_LEAST_1, "the number of last updates that a factor keeps"] = None
    """Keep the last update vectors in place of a dense factor (ALGORITHMS.md, "Windowed factors"); None: dense."""
    rank: Annotated[int, AT_LEAST_1, "the number of rank-1 updates in one factor update"] = 1
    """Above 1, the directions come from a randomized range finder on the rows; only for ``sherman_morrison``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank > 1 and self.update_rule != "sherman_morrison":
            raise ValueError(
                f"rank={self.rank} must be 1 unless update_rule is sherman_morrison: "
                "the other rules are defined for rank 1."
            )

    @property
    def decay(self) -> float:
        """The weight of the old factor that is in force."""
        if self.factor_decay is not None:
            return self.factor_decay
        return 0.95 if self.update_rule == "released" else 0.9

    @property
    def statistic(self) -> Statistic:
        """Mean vectors; the rows themselves for a higher rank."""
        if self.rank > 1:
            return ROWS
        return MEAN.clamped(RELEASED_CLAMP) if self.update_rule == "released" else MEAN

    @property
    def exchange_dtype(self) -> torch.dtype | None:
        """Vectors travel in the factors' dtype."""
        return self.factor_dtype if self.factor_dtype in HALF else None

    def sum_shapes(self, shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Mean vectors, or sketches of the second moments for a higher rank."""
        if self.rank == 1:
            return super().sum_shapes(shape)
        return (shape.d_in, self._sketch_width(shape.d_in)), (shape.d_out, self._sketch_width(shape.d_out))

    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        """J = I for both factors, and room for the vectors."""
        kept = dtype if self.factor_dtype == torch.float32 else self.factor_dtype
        state: LayerState = {"updates": torch.zeros((), dtype=torch.int64, device=device)}
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            if self.window is None:
                state[side] = torch.eye(d, dtype=kept, device=device)
            else:
                parts = linalg.windowed_identity(d, self.window, kept, device)
                state |= {f"{side}_{name}": part for name, part in parts._asdict().items()}
            state[f"{side}_vectors"] = torch.zeros(d, self.rank, dtype=kept, device=device)
        return state

    def accumulates(self, step: int) -> bool:
        """Every inverse_update_period steps."""
        return step % self.inverse_update_period == 0

    def refreshes(self, step: int) -> bool:
        """In the same steps."""
        return self.accumulates(step)

    def condense(self, rows: list[Rows], step: int) -> Captured:
        """Sketch the second moments of scaled rows: products with a random matrix that all ranks share."""
        parts = [self._sketch(kept, step) for kept in rows]
        return Captured(*(torch.stack(part).sum(0) for part in zip(*parts, strict=True)))

    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        """Keep the update vectors: the mean rows a and g, or the leading directions of their moments."""
        x, g, number = captured
        if self.rank == 1:
            state["left_vectors"] = g[:, None].to(state["left_vectors"].dtype)
            state["right_vectors"] = (x / number)[:, None].to(state["right_vectors"].dtype)
        else:
            # Gradient rows are scaled by their multiplicity, so their mean second moment is number times the raw sum.
            for side, sketch in (("left", g * number), ("right", x / number)):
                directions = linalg.leading_directions(sketch, self._test_matrix(sketch, step), self.rank)
                state[f"{side}_vectors"] = directions.to(state[f"{side}_vectors"].dtype)

    def refresh(self, state: LayerState, step: int) -> None:
        """Stabilise both inverse factors and update them with their vectors, in float32 at least."""
        first = state["updates"] == 0
        for side in ("right", "left"):
            vectors = state[f"{side}_vectors"]
            vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
            if self.window is None:
                old = state[side]
                new = self._update_dense(old.to(vectors.dtype), vectors).to(old.dtype)
                state[side] = torch.where(first, old, new) if self.update_rule == "released" else new
            else:
                kept = _windowed(state, side)
                new_parts = self._update_windowed(_widened(kept, vectors.dtype), vectors)
                for name, part, old in zip(kept._fields, new_parts, kept, strict=True):
                    part = part.to(old.dtype)
                    state[f"{side}_{name}"] = torch.where(first, old, part) if self.update_rule == "released" else part
        state["updates"] = state["updates"] + 1

    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        """Return ``J_L D J_R`` ``[d_out, d_in]``."""
        if self.window is None:
            return linalg.precondition(state["left"].to(grad.dtype), grad, state["right"].to(grad.dtype))
        left, right = (_widened(_windowed(state, side), grad.dtype) for side in ("left", "right"))
        return linalg.windowed_matmul(right, linalg.windowed_matmul(left, grad).T).T

    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        """Give every update the norm of its gradient (A5)."""
        if not self.rescale:
            return [update.value for update in updates]
        return [linalg.rescale(update.value, update.grad) for update in updates]

    def _update_dense(self, inverse: Tensor, vectors: Tensor) -> Tensor:
        inverse = linalg.stabilize(inverse, self.stabilizer_threshold, self.stabilizer_blend)
        inverse = _DENSE[self.update_rule](inverse, vectors[:, 0], self.decay)
        for k in range(1, self.rank):
            # The old factor has faded with the first vector; further ones are added to it as they are.
            inverse = linalg.sherman_morrison_add(inverse, vectors[:, k], 1 - self.decay)
        return inverse

    def _update_windowed(self, inverse: linalg.WindowedInverse, vectors: Tensor) -> linalg.WindowedInverse:
        inverse = linalg.windowed_stabilize(inverse, self.stabilizer_threshold, self.stabilizer_blend)
        inverse = _WINDOWED[self.update_rule](inverse, vectors[:, 0], self.decay)
        for k in range(1, self.rank):
            inverse = linalg.windowed_sherman_morrison_add(inverse, vectors[:, k], 1 - self.decay)
        return inverse

    def _sketch_width(self, dimension: int) -> int:
        return min(self.rank + OVERSAMPLING, dimension)

    def _sketch(self, rows: Rows, step: int) -> Captured:
        x, g, locations = rows
        x_sketch = x.T @ (x @ self._test_matrix(x.T, step)) / locations
        g_sketch = g.T @ (g @ self._test_matrix(g.T, step)) / locations
        return Captured(x_sketch, g_sketch, torch.full((), x.shape[0] / locations, dtype=x.dtype, device=x.device))

    def _test_matrix(self, like: Tensor, step: int) -> Tensor:
        """Return the range finder's random matrix for a moment of ``like``'s height; the same on every rank."""
        dimension = like.shape[0]
        generator = torch.Generator().manual_seed(step)
        matrix = torch.randn(dimension, self._sketch_width(dimension), generator=generator, dtype=torch.float64)
        orthonormal: Tensor = torch.linalg.qr(matrix).Q
        return orthonormal.to(like.device, like.dtype)


def _windowed(state: LayerState, side: str) -> linalg.WindowedInverse:
    return linalg.WindowedInverse(*(state[f"{side}_{name}"] for name in linalg.WindowedInverse._fields))


def _widened(inverse: linalg.WindowedInverse, dtype: torch.dtype) -> linalg.WindowedInverse:
    scale, columns, weights, position = inverse
    return linalg.WindowedInverse(scale.to(dtype), columns.to(dtype), weights.to(dtype), position)
