"""MKOR (Mozaffari, Li, Zhang and Mehri Dehnavi, NeurIPS 2023): Kronecker factors inverted by rank-1 updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.statistics import ROWS, Captured, LayerShape, Rows, Statistic
from mkor_core.devices import upload
from mkor_core.maths import inverses, linalg
from mkor_core.maths.block_products import BlockProducts, block_products, precondition_block_
from mkor_core.maths.inverses import DenseInverse, Rule, WindowedInverse
from mkor_core.maths.products import Cut, Gradient, precondition_
from mkor_core.method import HostAssisted, InPlaceMethod, Known, LayerState, LowRank, Products, Windowed, cut_state
from mkor_core.ranges import AT_LEAST_1, FRACTION, POSITIVE, POSITIVE_DECAY, OneOf, Range

RELEASED_CLAMP = 100.0
"""Limit on the magnitude of row entries before their mean, in the released code (A4)."""
HALF = (torch.bfloat16, torch.float16)
OVERSAMPLING = 8
"""Columns of the randomized range finder beyond the requested rank."""
WIDE_WINDOW = 16
"""The columns of the windows of a layer that is too wide for dense factors."""
NOISE = 1e-5
"""A vector g is rounding noise if ``|g| |a|``, the norm of the mean rows' part of D, is below this share of ``|D|``."""


@dataclass(frozen=True, kw_only=True)
class MKOR(HostAssisted, LowRank, InPlaceMethod):
    """MKOR: ``V = J_L D J_R``, whose inverse factors J get a rank-1 update once per period; without damping.

    D ``[d_out, d_in (+1)]`` is a layer's gradient, with a column for the bias. J_L and J_R start as the identity. In
    every ``inverse_update_period``-th step each is stabilized and updated with a vector v: J_R with the mean input row
    a, J_L with the mean row g of the gradients with respect to the output. In every step the base optimizer gets V in
    place of D. `mkor_core.reference` has the equations that docstrings cite: A1, the stabilizer; the rules A2
    ``published``, A3 ``sherman_morrison`` and A4 ``released``; and A5, the norm. Their gamma is ``factor_decay``, zeta
    ``stabilizer_blend``, epsilon ``stabilizer_threshold``.
    """

    fixed_in_state: ClassVar[tuple[str, ...]] = ("update_rule", "factor_dtype", "window", "rank", "sides")

    largest_factor: ClassVar[int | None] = 16384
    """The largest dimension of a dense factor. A layer with a larger one keeps windows of 16 columns: the dense factor
    of 50,000 classes would take 10 GB. ``MKOR.largest_factor = None`` turns that off; it has no effect with a
    ``window``, or a ``rank`` above 1. It is the class's, since it says what fits into memory, not how a run trains."""

    update_rule: Literal["sherman_morrison", "published", "released"] = "sherman_morrison"
    """``sherman_morrison`` is exact (A3), ``published`` is the paper's Algorithm 1 (A2), ``released`` is the released
    code's update (A4), with its clamp on rows and its first update, which only sets J = I."""
    factor_decay: Annotated[float | None, POSITIVE_DECAY, "the weight of the old factor"] = None
    """Gamma. None means 0.95 for the rule ``released``, otherwise 0.9. At or below zeta (``stabilizer_blend``) J has no
    bound: directions that no vector meets grow by zeta / gamma at each update of ``sherman_morrison``."""
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the inverses"] = 10
    stabilizer_threshold: Annotated[
        float, Range(at_least=0, finite=False), "the largest entry of a factor that is not stabilized"
    ] = 2.1
    """Epsilon of the stabilizer (A1), which is applied before an update; infinity turns it off. With the default decay
    and blend the scale of J has its fixed point at exactly 2.0: a threshold of 2.0 would let rounding decide when the
    stabilizer acts."""
    stabilizer_blend: Annotated[float, FRACTION, "the weight of the factor against the identity"] = 0.8
    """Zeta of the stabilizer (A1)."""
    rescale: bool = True
    """Give V the norm of D (A5)."""
    factor_dtype: Annotated[torch.dtype, OneOf(("float64", "float32", "bfloat16", "float16"))] = torch.float32
    """Storage and exchange dtype of factors and vectors, which are accumulated in float32. float32 means float64 if
    the model's parameters are float64."""
    window: Annotated[int | None, Range(at_least=2, largest=1024), "the number of columns that a factor keeps"] = None
    """Keep weighted columns in place of a dense factor, and of a full window the leading half
    (`mkor_core.maths.inverses.WindowedInverse`). None: dense; with ``rank=1``, 16 columns in a layer with a side above
    `MKOR.largest_factor`, 16,384."""
    rank: Annotated[int, Range(at_least=1, largest=1024), "the number of rank-1 updates in one factor update"] = 1
    """Above 1, the directions come from a randomized range finder on the rows; only for ``sherman_morrison`` and
    dense factors."""
    sides: Literal["both", "input"] = "both"
    """``input`` leaves J_L out, as the identity: half the memory, and no gradient rows."""
    gradient_norm: Annotated[float | None, POSITIVE, "the norm that g is given before it updates J_L"] = None
    """None leaves g as it is, as the paper does. A g that is zero, or rounding noise, updates nothing."""
    gradient_scale: Annotated[float, POSITIVE, "the factor on g before it updates J_L"] = 1.0
    """65,536 is the first loss scale of float16 training. It stays in g if a caller of the released code does not pass
    it on, as its ResNet script does not; its BERT pre-training does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank > 1 and self.update_rule != "sherman_morrison":
            raise ValueError(
                f"rank={self.rank} must be 1 unless update_rule is sherman_morrison: "
                "the other rules are defined for rank 1."
            )
        if self.rank > 1 and self.window is not None:
            raise ValueError(f"rank={self.rank} must be 1 with window={self.window}: a window keeps rank-1 updates.")
        if self.gradient_norm is not None and (self.rank > 1 or self.sides == "input"):
            unfit = f"rank={self.rank}" if self.rank > 1 else "sides='input'"
            raise ValueError(f"gradient_norm={self.gradient_norm} must be None with {unfit}: it scales the mean row g.")
        if self.gradient_scale != 1 and (self.rank > 1 or self.sides == "input" or self.gradient_norm is not None):
            raise ValueError(
                f"gradient_scale={self.gradient_scale} must be 1 with rank above 1, sides='input' or a gradient_norm: "
                "it scales the mean row g."
            )

    @cached_property
    def decay(self) -> float:
        """The weight of the old factor, `factor_decay` or its default."""
        if self.factor_decay is not None:
            return self.factor_decay
        return 0.95 if self.update_rule == "released" else 0.9

    @cached_property
    def rule(self) -> Rule:
        """How its factors are updated."""
        return Rule(self.update_rule, self.decay, self.stabilizer_threshold, self.stabilizer_blend)

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """The names of its factors: ``left`` for J_L, ``right`` for J_R."""
        return ("left", "right") if self.sides == "both" else ("right",)

    @property
    @override
    def statistic(self) -> Statistic:
        if self.rank > 1:
            # One vector is not enough for the range finder, which multiplies all rows by a random matrix.
            return ROWS.summed(self._sketches, self._sketch_shapes)
        return Statistic(
            "mean",
            clamp=RELEASED_CLAMP if self.update_rule == "released" else None,
            sides=self.sides,
            norms=self.gradient_norm is not None,
            message_dtype=self.factor_dtype if self.factor_dtype in HALF else None,
        )

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        # The default, float32, means the dtype of the gradients, which is float64 for a float64 model.
        stored = dtype if self.factor_dtype == torch.float32 else self.factor_dtype
        window = self.window
        # The ends of a layer are of one kind, so that one formula applies both.
        if window is None and self.rank == 1 and self.largest_factor is not None and max(shape) > self.largest_factor:
            window = WIDE_WINDOW
        # The number of updates lies on the device, too: only the device knows which steps counted.
        state: LayerState = {"updates": torch.zeros(leading, dtype=torch.int64, device=device)}
        # J_L has d_out rows, J_R has d_in; with one factor, the shape's last number is J_R's.
        for side, d in zip(self.factors, (shape.d_out, shape.d_in)[-len(self.factors) :], strict=True):
            state |= inverses.state_of(inverses.identity(leading, d, window, stored, device), side)
            state[f"{side}_vectors"] = torch.zeros(*leading, d, self.rank, dtype=stored, device=device)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.inverse_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        return self.accumulates(step)

    @override
    def accumulate(
        self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None
    ) -> Tensor | None:
        """Update both inverse factors with the mean rows g and a, or with the leading directions of their moments."""
        # [..., d, 1], or [d, rank]: the columns v that both factors are updated with, one after the other
        vectors = self._mean_vectors(captured) if self.rank == 1 else self._directions(captured, step)
        for side, new in vectors.items():
            stored = state[f"{side}_vectors"]  # in the factors' dtype, as they travel between ranks
            stored.copy_(new if accept is None else torch.where(accept[..., None, None], new, stored))
        self.update_factors(state, step, accept)
        # A g that is 0 here was rounding noise, and has changed nothing.
        return None if self.gradient_norm is None else ~state["left_vectors"][..., 0].any(-1)

    def update_factors(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:
        """Stabilize the factors (A1) and update them with the vectors of the state (A2, A3 or A4)."""
        # Skipped steps come again with the same number, so that a window's rows are used in turn.
        number, wide = step // self.inverse_update_period, _wide(state)
        changes = accept
        if self.update_rule == "released":
            # The released code's first update only sets J = I. The host does not know which update is the first.
            later = state["updates"] > 0
            changes = later if accept is None else accept & later
        for side in self.factors:
            inverse, vectors = inverses.from_state(state, side, wide), state[f"{side}_vectors"].to(wide)
            inverse.update_(self.rule, vectors[..., 0], number, changes)
            for k in range(1, self.rank):
                # The first vector has faded the old factor; the others are only added, or it would fade rank times.
                assert isinstance(inverse, DenseInverse)
                inverse.add_(vectors[..., k], 1 - self.decay, changes)
            if inverse[0] is not state[side]:  # round the copy of a factor that is stored in half precision
                state[side].copy_(inverse[0])
        state["updates"].add_(1 if accept is None else accept)

    @override
    def needs_host(self, state: LayerState) -> bool:
        return "right_weights" in state

    @override
    def host_inputs(self, state: LayerState, step: int) -> dict[str, Tensor]:
        """Return the gram matrices of the windows that are full before the next update; the host decomposes them."""
        if not self.needs_host(state):
            return {}
        number, wide = step // self.inverse_update_period + 1, _wide(state)  # of the next update
        return {side: window.gram() for side in self.factors if (window := _window(state, side, wide)).is_full(number)}

    @override
    def make_room(
        self, state: LayerState, step: int, accept: Tensor | None = None, host: Mapping[str, Tensor] | None = None
    ) -> None:
        """Truncate full windows, also of layers without statistics: the layers of a stack use their rows in turn."""
        # Without the host's copies, those of the update before are computed now, and a GPU waits for them.
        grams = self.host_inputs(state, step - self.inverse_update_period) if host is None else host
        # All decompositions come before the first change: one that fails leaves both windows what they had.
        pairs = {side: inverses.eigenpairs(gram, state[side].device) for side, gram in grams.items()}
        for side, own in pairs.items():
            window = _window(state, side, _wide(state))
            window.truncate_(own, accept)
            if window.rows is not state[side]:  # as in `update_factors`
                state[side].copy_(window.rows)

    @override
    def apply(self, state: LayerState, grad: Gradient, known: Known) -> None:
        """Replace D by ``V = J_L D J_R``, with D's norm if `rescale` is set (A5); by D where V is not finite."""
        if known.cut is not None:  # this rank has a part of D, and knows the products of all of it with the windows
            left, right = self._windows(state, grad, known.cut)
            precondition_block_(left, grad, right, _joined(known.products), known.cut, rescale=self.rescale)
            return
        weight = grad.weight
        # A CPU multiplies bfloat16 slowly, and float16 has too few exponents for gradients.
        is_dense = "right_weights" not in state
        narrow = state["right"].dtype == torch.bfloat16 and is_dense and weight.device.type != "cpu"
        dtype = torch.bfloat16 if narrow else weight.dtype
        J_L = inverses.from_state(state, "left", dtype) if self.sides == "both" else None
        J_R = inverses.from_state(state, "right", dtype)
        precondition_(J_L, grad, J_R, rescale=self.rescale, grows=self.update_rule == "published")

    @override
    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        dtype = _wide(state)
        sides = {"right": inverses.from_state(state, "right", dtype).times(grad.mT.to(dtype)).mT}
        if self.sides == "both":
            sides["left"] = inverses.from_state(state, "left", dtype).times(grad.to(dtype))
        return sides

    @override
    def start_weight(self, state: LayerState) -> Tensor:
        """Return ``gamma^t`` after t updates; the stabilizer, which blends J with the identity, is left out."""
        return torch.as_tensor(self.decay, device=state["updates"].device) ** state["updates"]

    @property
    @override
    def works_on_blocks(self) -> bool:
        return self.window is not None

    @property
    @override
    def form(self) -> Windowed | None:
        # Wide layers have windows in any case; they are too wide for the kernels, and so few that it does not matter.
        return None if self.window is None else Windowed(self.rescale)

    @property
    @override
    def keeps_norm(self) -> bool:
        return self.rescale

    @override
    def products(self, state: LayerState, grad: Gradient, cut: Cut | None = None) -> Products:
        if cut is None:
            return Products()
        left, right = self._windows(state, grad, cut)
        outer, across, inner = block_products(left, grad, right, cut)
        return Products(() if across is None else tuple(across.parts()), (outer,), () if inner is None else (inner,))

    def _windows(self, state: LayerState, grad: Gradient, cut: Cut) -> tuple[WindowedInverse | None, WindowedInverse]:
        """Return J_L and J_R, of whose columns those that concern a block."""
        part = cut_state(state, cut, has_bias=grad.bias is not None)
        dtype = grad.weight.dtype
        return _window(part, "left", dtype) if self.sides == "both" else None, _window(part, "right", dtype)

    def _mean_vectors(self, captured: Captured) -> dict[str, Tensor]:
        """Return the mean rows a ``[..., d_in, 1]`` and g ``[..., d_out, 1]`` by their factors' names."""
        a = captured.x / captured.number[..., None]
        vectors = {"right": a[..., None]}
        if self.sides == "both":
            vectors["left"] = self._scaled(captured.g, a, captured.norm)[..., None]
        return vectors

    def _scaled(self, g: Tensor, a: Tensor, gradient_norm: Tensor | None) -> Tensor:
        """Return g ``[..., d_out]`` times `gradient_scale`, or with the norm `gradient_norm`.

        With a norm, a g that is zero or rounding noise becomes 0.
        """
        if self.gradient_norm is None:
            return g if self.gradient_scale == 1 else g * self.gradient_scale
        # The mean rows' part of D is g a^T, whose norm is |g| |a|.
        norm = torch.linalg.vector_norm(g, dim=-1)
        least = 0 if gradient_norm is None else NOISE * gradient_norm / torch.linalg.vector_norm(a, dim=-1)
        factor = torch.where(norm > least, self.gradient_norm / norm, 0)
        return g * factor[..., None]

    def _directions(self, captured: Captured, step: int) -> dict[str, Tensor]:
        """Return the leading directions ``[d, rank]`` of the moments whose sketches were captured."""
        # A scaled gradient row is the raw one times number, the multiplicity. With n = number * locations rows,
        # sum((number g)(number g)^T) / n = number * sum(g g^T) / locations, and g holds the sum / locations.
        sketches = {"right": captured.x / captured.number, "left": captured.g * captured.number}
        return {
            side: linalg.leading_directions(sketches[side], self._test_matrix(sketches[side], step), self.rank)
            for side in self.factors
        }

    def _sketches(self, rows: list[Rows], step: int) -> Captured:
        """Return sketches of the second moments: their products with a random matrix that all ranks share."""
        sketches = [self._sketch(call, step) for call in rows]
        x, g, number = (torch.stack(part).sum(0) for part in zip(*sketches, strict=True))
        return Captured(x, g, number)

    def _sketch(self, rows: Rows, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``X^T X Omega / locations`` ``[d, k]`` of one call, the same for G, and the multiplicity."""
        x, g, locations = rows
        # Omega is [d, k] with k a little above the rank: no [d, d] moment is formed.
        x_sketch = x.T @ (x @ self._test_matrix(x.T, step)) / locations
        g_sketch = g.T @ (g @ self._test_matrix(g.T, step)) / locations
        return x_sketch, g_sketch, torch.full((), x.shape[0] / locations, dtype=x.dtype, device=x.device)

    def _sketch_shapes(self, shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (shape.d_in, self._sketch_width(shape.d_in)), (shape.d_out, self._sketch_width(shape.d_out))

    def _sketch_width(self, dimension: int) -> int:
        return min(self.rank + OVERSAMPLING, dimension)

    def _test_matrix(self, like: Tensor, step: int) -> Tensor:
        """Return the range finder's orthonormal random matrix Omega ``[d, k]`` for a tensor ``[d, ...]``."""
        dimension = like.shape[0]
        matrix = linalg.test_matrix(dimension, self._sketch_width(dimension), step)
        return upload(matrix.to(like.dtype), like.device)


def _wide(state: LayerState) -> torch.dtype:
    """Return the dtype in which factors are updated: at least float32."""
    return torch.promote_types(state["right"].dtype, torch.float32)


def _window(state: LayerState, side: str, dtype: torch.dtype | None = None) -> WindowedInverse:
    """Return a factor that is kept as a window."""
    inverse = inverses.from_state(state, side, dtype)
    assert isinstance(inverse, WindowedInverse)
    return inverse


def _joined(products: Products) -> BlockProducts:
    """Return the sums of a block's products as `precondition_block_` takes them."""
    across = Gradient(*products.over_rows, *[None] * (2 - len(products.over_rows))) if products.over_rows else None
    return BlockProducts(products.over_columns[0], across, next(iter(products.over_all), None))
