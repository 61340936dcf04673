"""The statistics of a layer's rows that a method may ask for, and the forms that they have on their way to it.

X ``[n, d_in (+1)]`` are a layer's input rows and G ``[n, d_out]`` its output-gradient rows (`mkor_core.capture.layer`).
Gradient rows are *raw*: autograd's rows of the global mean loss, so that ``G^T X``, summed over micro-batches and
ranks, is the gradient matrix D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import average_locations


class LayerShape(NamedTuple):
    """The shape of a layer's gradient matrix D."""

    d_out: int
    d_in: int
    """Columns of D, the bias included."""


class Captured(NamedTuple):
    """A layer's statistic of one step, over all micro-batches and ranks, as a method gets it.

    - MEAN: x is the sum of input rows / locations ``[d_in]``, g the sum of raw gradient rows / locations ``[d_out]``,
      number the multiplicity (Linear: rows; Conv2d: examples). So ``x / number`` is the mean input row, ``g`` the mean
      *scaled* gradient row and ``g / number`` the mean raw one.
    - MOMENT: x is ``X^T X / n`` ``[d_in, d_in]`` and g is ``G^T G / n`` ``[d_out, d_out]``, of rows divided by the
      number of locations, summed over micro-batches and ranks; number counts the summands.
    - ROWS: what the statistic's `condense` returned, joined or added up over ranks.

    Of a stack of L layers, each has a leading dimension ``[L]``.
    """

    # Of a Linear with 4 inputs and a bias, called with [2, 3, 4], MEAN is the sum of 6 rows of 5 numbers: x is [5] and
    # ends with 6, the sum of the ones for the bias, and number is 6.
    x: Tensor
    g: Tensor
    number: Tensor
    """Scalar."""
    norm: Tensor | None = None
    """``|D|``, a scalar, if the statistic has ``norms``."""


class Rows(NamedTuple):
    """The rows of one call of a layer; those of an example's locations are adjacent."""

    x: Tensor
    """Input rows X, ``[n, d_in (+1)]`` with n = examples * locations."""
    g: Tensor
    """Raw gradient rows G, ``[n, d_out]``."""
    locations: int
    """Output locations of one example; 1 for a Linear."""


Condense = Callable[[list[Rows], int], Captured]
"""Returns what a rank contributes for a layer, given the rows of its calls and the step (from 0)."""

Shapes = Callable[[LayerShape], tuple[tuple[int, ...], tuple[int, ...]]]
"""Returns the shapes of x and g."""


@dataclass(frozen=True)
class Statistic:
    """The quantity to which a layer's rows are reduced on their way to a method, and how ranks put theirs together."""

    kind: Literal["mean", "moment", "rows"]
    """``mean``: the mean rows; ``moment``: the rows' second moments; ``rows``: the rows themselves."""
    clamp: float | None = None
    """Limit on the magnitude of every entry of the rows before their mean; gradient rows are scaled first. The 1 that a
    bias appends to input rows is not clamped."""
    examples: int | None = None
    """Take only rows of the first ``examples`` examples of the global batch; None takes all."""
    sides: Literal["both", "input"] = "both"
    """``input`` takes the means or moments of input rows only."""
    # Over 4 data-parallel ranks, a row of a rank's own mean loss is 4 times the row of the global mean loss.
    of_rank: bool = False
    """Whether gradient rows belong to each rank's own mean loss, not to the global mean loss."""
    norms: bool = False
    """Whether the method also gets the norm of D."""
    message_dtype: torch.dtype | None = None
    """The dtype in which ranks exchange means; None: the one they are captured in."""
    condense: Condense | None = None
    """Of ROWS: what a rank makes of its rows; None: `join_rows`."""
    shapes: Shapes | None = None
    """Of ROWS: the shapes of what `condense` returns, which ranks add up; None: they join the rows that it returns."""

    def __post_init__(self) -> None:
        # What the other kinds do not use must have its default, so that it is not ignored silently.
        if self.kind != "mean" and (self.clamp, self.examples) != (None, None):
            raise ValueError(f"{self}: clamp and examples are for means.")
        if self.kind == "rows" and self.sides != "both":
            raise ValueError(f"{self}: sides are those of means and moments.")
        if self.kind != "rows" and (self.condense, self.shapes) != (None, None):
            raise ValueError(f"{self}: condense and shapes are for rows.")

    def of_inputs(self) -> Self:
        """Return the same statistic of input rows only."""
        return replace(self, sides="input")

    def summed(self, condense: Condense, shapes: Shapes) -> Self:
        """Return the statistic of rows that each rank condenses, and that ranks add up."""
        return replace(self, condense=condense, shapes=shapes)

    def gathered(self, condense: Condense) -> Self:
        """Return the statistic of rows that each rank condenses to fewer rows, and that ranks join."""
        return replace(self, condense=condense)

    def without_functions(self) -> Self:
        """Return the statistic without `condense` and `shapes`, to be compared with another."""
        # They are often bound methods of a Method, and those of two instances never compare equal.
        return replace(self, condense=None, shapes=None)

    @property
    def gathers_rows(self) -> bool:
        """Whether ranks join rows; otherwise they add up x, g and number."""
        return self.kind == "rows" and self.shapes is None

    @property
    def is_linear(self) -> bool:
        """Whether the statistic is linear in the gradients, so that passes through one forward pass add up."""
        # Gradients g1 and g2 of two passes for one row count as g1 + g2, but (g1 + g2)(g1 + g2)^T is not the sum of
        # g1 g1^T and g2 g2^T, nor is a clamped sum the sum of clamped ones.
        return self.kind != "moment" and self.clamp is None

    def sums_gradients(self, layer: Layer) -> bool:
        """Return whether the hooks sum a layer's gradient rows, or their moments.

        If not, no method needs them, or the bias's gradient is their sum.
        """
        if self.kind != "mean":
            return self.sides == "both"
        # db is the sum of all rows of G, and autograd has computed it. It is of no use if rows are changed or left out
        # before the sum.
        by_bias = self.clamp is None and self.examples is None and layer.bias_is_trained
        return self.sides == "both" and not by_bias

    def sum_shapes(self, shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of x and g that ranks add up for a layer; not of rows that they join."""
        match self.kind:
            case "mean":
                return (shape.d_in,), (shape.d_out,)  # sums of the rows of X and of G
            case "moment":
                return (shape.d_in, shape.d_in), (shape.d_out, shape.d_out)  # X^T X and G^T G
            case "rows":
                assert self.shapes is not None
                return self.shapes(shape)


MEAN = Statistic("mean")
MOMENT = Statistic("moment")
ROWS = Statistic("rows")


def join_rows(rows: list[Rows], _: int = 0) -> Captured:
    """Return the rows of all calls, a Conv2d's averaged over its locations, and their number."""
    # A Conv2d's [examples * locations, d] become [examples, d], so that len(x) is the multiplicity.
    x = torch.cat([average_locations(part.x, part.locations) for part in rows])
    g = torch.cat([average_locations(part.g, part.locations) for part in rows])
    return Captured(x, g, torch.full((), len(x), dtype=x.dtype, device=x.device))


class Sums(NamedTuple):
    """A layer's statistic of one step as the hooks take it: sums, so that micro-batches and ranks add up.

    See `Captured` for x, g and number.
    """

    x: Tensor
    g: Tensor | None
    """None for MEAN where the sum of the gradient rows is the gradient of the layer's bias, which micro-batches, ranks
    and loss scales have gone into already: then ``g = bias.grad / locations``. Also None if no method needs it."""
    number: Tensor
    """Scalar. For MEAN a view of the vector that x is a view of, whose last entry it is if the layer has a bias."""
    # On average, because a Conv2d may be called with images of different sizes in one step.
    locations: Tensor | float = 1.0
    """What g must still be divided by, output locations of an example on average: a scalar tensor for a Conv2d whose g
    is the gradient of its bias, otherwise 1.0."""

    def of_gradients(self, g: Tensor) -> Tensor:
        """Return what a method gets as g; g: that of these sums, or the unscaled gradient of the bias, ``[d_out]``."""
        # The gradient of a Conv2d's bias adds up all locations; the division turns their sum into their mean.
        return g / self.locations if isinstance(self.locations, Tensor) else g
