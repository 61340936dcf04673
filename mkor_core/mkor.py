"""MKOR (Mozaffari, Li, Zhang and Mehri Dehnavi, NeurIPS 2023): Kronecker factors inverted by rank-1 updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core import inverses, linalg
from mkor_core.capture import MEAN, ROWS, Captured, Rows, Statistic
from mkor_core.method import LayerShape, LayerState, Method, Update
from mkor_core.ranges import AT_LEAST_1, FRACTION, POSITIVE_DECAY, OneOf, Range

RELEASED_CLAMP = 100.0
"""Limit on the magnitude of row entries before their mean, in the released code (A4)."""
HALF = (torch.bfloat16, torch.float16)
OVERSAMPLING = 8
"""Columns of the randomized range finder beyond the requested rank."""


@dataclass(frozen=True, kw_only=True)
class MKOR(Method):
    """MKOR: ``V = J_L D J_R``, whose inverse factors J get a rank-1 update once per period; without damping."""

    update_rule: Literal["sherman_morrison", "published", "released"] = "sherman_morrison"
    """``sherman_morrison`` is exact (A3), ``published`` is the paper's Algorithm 1 (A2), ``released`` is the released
    code's update (A4), with its clamp on rows and its first update, which only sets J = I."""
    factor_decay: Annotated[float | None, POSITIVE_DECAY, "the weight of the old factor"] = None
    """Gamma. None means 0.95 for the rule ``released``, otherwise 0.9."""
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the inverses"] = 10
    stabilizer_threshold: Annotated[
        float, Range(at_least=0, finite=False), "the largest entry of a factor that is not stabilized"
    ] = 2.0
    """Epsilon of the stabilizer (A1), which is applied before an update; infinity turns it off."""
    stabilizer_blend: Annotated[float, FRACTION, "the weight of the factor against the identity"] = 0.8
    """Zeta of the stabilizer (A1)."""
    rescale: bool = True
    """Give V the norm of D (A5)."""
    factor_dtype: Annotated[torch.dtype, OneOf(("float64", "float32", "bfloat16", "float16"))] = torch.float32
    """Storage and exchange dtype of factors and vectors, which are accumulated in float32. float32 means float64 if
    the model's parameters are float64."""
    window: Annotated[
        int | None, Range(at_least=1, largest=65536), "the number of last updates that a factor keeps"
    ] = None
    """Keep the last update vectors in place of a dense factor (ALGORITHMS.md, "Windowed factors"); None: dense."""
    rank: Annotated[int, Range(at_least=1, largest=1024), "the number of rank-1 updates in one factor update"] = 1
    """Above 1, the directions come from a randomized range finder on the rows; only for ``sherman_morrison`` and
    dense factors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank > 1 and self.update_rule != "sherman_morrison":
            raise ValueError(
                f"rank={self.rank} must be 1 unless update_rule is sherman_morrison: "
                "the other rules are defined for rank 1."
            )
        if self.rank > 1 and self.window is not None:
            raise ValueError(f"rank={self.rank} must be 1 with window={self.window}: a window keeps rank-1 updates.")

    @property
    def decay(self) -> float:
        """The weight of the old factor, `factor_decay` or its default."""
        if self.factor_decay is not None:
            return self.factor_decay
        return 0.95 if self.update_rule == "released" else 0.9

    @property
    @override
    def statistic(self) -> Statistic:
        if self.rank > 1:
            return ROWS
        return MEAN.clamped(RELEASED_CLAMP) if self.update_rule == "released" else MEAN

    @property
    @override
    def exchange_dtype(self) -> torch.dtype | None:
        return self.factor_dtype if self.factor_dtype in HALF else None

    @override
    def sum_shapes(self, shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.rank == 1:
            return super().sum_shapes(shape)
        return (shape.d_in, self._sketch_width(shape.d_in)), (shape.d_out, self._sketch_width(shape.d_out))

    @override
    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        # The default, float32, means the dtype of the gradients, which is float64 for a float64 model.
        stored = dtype if self.factor_dtype == torch.float32 else self.factor_dtype
        state: LayerState = {"updates": torch.zeros((), dtype=torch.int64, device=device)}
        for side, dimension in (("left", shape.d_out), ("right", shape.d_in)):
            state |= inverses.identity(dimension, self.window, stored, device).state(side)
            state[f"{side}_vectors"] = torch.zeros(dimension, self.rank, dtype=stored, device=device)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return self.accumulates(step)

    @override
    def condense(self, rows: list[Rows], step: int) -> Captured:
        """Return sketches of the second moments: their products with a random matrix that all ranks share."""
        sketches = [self._sketch(call, step) for call in rows]
        return Captured(*(torch.stack(part).sum(0) for part in zip(*sketches, strict=True)))

    @override
    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        """Store the update vectors: the mean rows g and a, or the leading directions of their moments."""
        x, g, number = captured
        if self.rank == 1:
            state["left_vectors"] = g[:, None].to(state["left_vectors"].dtype)
            state["right_vectors"] = (x / number)[:, None].to(state["right_vectors"].dtype)
            return
        # A scaled gradient row is the raw one times number, the multiplicity. With n = number * locations rows,
        # sum((number g)(number g)^T) / n = number * sum(g g^T) / locations, and g holds the sum / locations.
        for side, sketch in (("left", g * number), ("right", x / number)):
            directions = linalg.leading_directions(sketch, self._test_matrix(sketch, step), self.rank)
            state[f"{side}_vectors"] = directions.to(state[f"{side}_vectors"].dtype)

    @override
    def refresh(self, state: LayerState, step: int) -> None:
        """Stabilize both inverse factors and update them with their vectors."""
        first = state["updates"] == 0
        for side in ("right", "left"):  # the order of the released code
            vectors = state[f"{side}_vectors"]
            # Factors stored in half precision are updated in float32, and rounded once at the end.
            vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
            inverse = inverses.from_state(state, side).to(vectors.dtype)
            for key, tensor in self._updated(inverse, vectors).state(side).items():
                stored = tensor.to(state[key].dtype)
                # The released code's first update only sets J = I. "first" is on the device: no branch on the host.
                state[key] = torch.where(first, state[key], stored) if self.update_rule == "released" else stored
        state["updates"] = state["updates"] + 1

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        """Return ``V = J_L D J_R`` ``[d_out, d_in]``."""
        left, right = (inverses.from_state(state, side).to(grad.dtype) for side in ("left", "right"))
        return inverses.precondition(left, grad, right)

    @override
    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        """Return the updates, each with the norm of its gradient if `rescale` is set (A5); D for one not finite."""
        finished = linalg.rescale if self.rescale else linalg.finite_or_gradient
        return [finished(update.value, update.grad) for update in updates]

    def _updated(self, inverse: inverses.Inverse, vectors: Tensor) -> inverses.Inverse:
        """Return J stabilized (A1) and updated with the columns of ``vectors`` ``[d, rank]``."""
        inverse = inverse.stabilize(self.stabilizer_threshold, self.stabilizer_blend)
        inverse = inverse.update(self.update_rule, vectors[:, 0], self.decay)
        for k in range(1, self.rank):
            # The first vector has faded the old factor; the others are only added, or it would fade rank times.
            inverse = inverse.add(vectors[:, k], 1 - self.decay)
        return inverse

    def _sketch_width(self, dimension: int) -> int:
        return min(self.rank + OVERSAMPLING, dimension)

    def _sketch(self, rows: Rows, step: int) -> Captured:
        """Return ``X^T X Omega / locations`` ``[d, k]`` of one call, the same for G, and the multiplicity."""
        x, g, locations = rows
        x_sketch = x.T @ (x @ self._test_matrix(x.T, step)) / locations
        g_sketch = g.T @ (g @ self._test_matrix(g.T, step)) / locations
        return Captured(x_sketch, g_sketch, torch.full((), x.shape[0] / locations, dtype=x.dtype, device=x.device))

    def _test_matrix(self, like: Tensor, step: int) -> Tensor:
        """Return the range finder's orthonormal random matrix Omega ``[d, k]`` for a tensor ``[d, ...]``.

        It depends only on d and the step, so that the sketches of all ranks and micro-batches add up.
        """
        dimension = like.shape[0]
        generator = torch.Generator().manual_seed(step)
        matrix = torch.randn(dimension, self._sketch_width(dimension), generator=generator, dtype=torch.float64)
        # Drawn on the CPU in float64: the same numbers on every device.
        orthonormal: Tensor = torch.linalg.qr(matrix).Q
        return orthonormal.to(like.device, like.dtype)
