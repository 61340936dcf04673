"""The base class of second-order methods, which do not depend on hooks, ranks or parameter groups.

A method declares which statistic of every layer it needs and when (`statistic`, `accumulates`). It folds the statistic
into the layer's state (`accumulate`), does its costly periodic work (`refresh`), turns a gradient into an update
(`precondition`), and finishes the updates of all layers together (`finish`). A `Preconditioner` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from mkor_core.capture import Captured, Rows, Statistic
from mkor_core.ranges import checked_values
from mkor_core.reductions import average_locations

LayerState = dict[str, Tensor]
"""A layer's named tensors. Methods replace entries and never change a tensor in place, so that a step can be undone."""

LearningRate = float | Tensor | None
"""A number or scalar tensor; a tensor ``[d_in]`` if weight and bias have different ones; None if unknown."""


class LayerShape(NamedTuple):
    """The shape of a layer's gradient matrix D."""

    d_out: int
    d_in: int
    """Columns of D, the bias included."""


class Update(NamedTuple):
    """One layer's update before `Method.finish`."""

    grad: Tensor
    """The gradient D, ``[d_out, d_in]``."""
    value: Tensor
    """The update V, ``[d_out, d_in]``."""
    lr: LearningRate
    has_statistics: Tensor | bool = True
    """Whether the layer has statistics, which only the device may know. Where not, `value` is `grad`, and stays so."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Base of every second-order method.

    The fields of a subclass are its hyperparameters. Their annotations declare types and ranges (`mkor_core.ranges`),
    which are checked at construction; a subclass that checks more calls ``super().__post_init__()`` first.

    Raises:
        ValueError: a value out of its range, by name.
    """

    refresh_needs_statistics: ClassVar[bool] = True
    """Whether `refresh` uses statistics of the same step, so that a layer without any is not refreshed."""
    gathers_rows: ClassVar[bool] = False
    """Whether ranks gather the rows that `condense` returns; otherwise they add up x, g and number."""
    follows_loss: ClassVar[bool] = False
    """Whether the method needs the training loss, for `is_over`."""

    def __post_init__(self) -> None:
        checked_values(type(self), {field.name: getattr(self, field.name) for field in fields(self)})

    @property
    @abstractmethod
    def statistic(self) -> Statistic:
        """The statistic to which the hooks reduce every layer's rows."""

    @property
    def rank_rows(self) -> bool:
        """Whether gradient rows belong to each rank's own mean loss, not to the global mean loss."""
        return False

    def condense(self, rows: list[Rows], step: int) -> Captured:
        """Return what ranks exchange for a layer in a step; only called if `statistic` is ROWS.

        The default joins the rows of all calls, a Conv2d's averaged over its locations.

        Args:
            rows: this rank's rows, one `Rows` for each call of the layer.
            step: the step (from 0), which is the same on every rank.
        """
        x = torch.cat([average_locations(part.x, part.locations) for part in rows])
        g = torch.cat([average_locations(part.g, part.locations) for part in rows])
        return Captured(x, g, torch.full((), len(x), dtype=x.dtype, device=x.device))

    def sum_shapes(self, shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of x and g that ranks add up for a layer; not called if `gathers_rows`."""
        match self.statistic.kind:
            case "mean":
                return (shape.d_in,), (shape.d_out,)
            case "moment":
                return (shape.d_in, shape.d_in), (shape.d_out, shape.d_out)
            case "rows":
                raise NotImplementedError(
                    f"{type(self).__name__} reduces rows: set gathers_rows = True, or define sum_shapes for what its "
                    "condense returns."
                )

    @property
    def needs_lr(self) -> bool:
        """Whether `finish` uses the learning rate."""
        return False

    @property
    def refreshed(self) -> tuple[str, ...]:
        """State tensors that `refresh` computes on one rank, and others receive; empty: every rank refreshes."""
        return ()

    @property
    def worker_fraction(self) -> float:
        """Fraction of the ranks that hold a layer's `refreshed` tensors and precondition it."""
        return 1.0

    @property
    def exchange_dtype(self) -> torch.dtype | None:
        """The dtype in which ranks exchange statistics; None: the one they are captured in."""
        return None

    @abstractmethod
    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        """Return a layer's state before the first step; dtype is that of the gradients given to `precondition`."""

    @abstractmethod
    def accumulates(self, step: int) -> bool:
        """Return whether statistics are captured and accumulated in a step (from 0)."""

    @abstractmethod
    def refreshes(self, step: int) -> bool:
        """Return whether the preconditioner is refreshed in a step (from 0)."""

    @abstractmethod
    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        """Fold a step's statistic, already summed over micro-batches and ranks, into the state."""

    @abstractmethod
    def refresh(self, state: LayerState, step: int) -> None:
        """Compute the tensors that `precondition` uses from those that `accumulate` left in the state."""

    @abstractmethod
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        """Return the update V for a gradient D, both ``[d_out, d_in]``."""

    def has_statistics(self, state: LayerState) -> Tensor | bool:
        """Return whether a layer has had statistics; where not, its gradient is left alone, whatever `precondition` is.

        A boolean device scalar if only the device knows. The default suits methods whose initial state returns D.
        """
        return True

    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        """Return the final updates of all layers; a V that is not finite should become D."""
        return [update.value for update in updates]

    def refresh_cost(self, shape: LayerShape) -> float:
        """Return the cost of one refresh of a layer, in arbitrary units; used to balance layers over ranks."""
        return float(shape.d_out**2 + shape.d_in**2)

    def loss_is_due(self, step: int) -> bool:
        """Return whether a method that follows the loss must have received one before a step (from 0)."""
        return False

    def is_over(self, losses: Sequence[tuple[int, float]], step: int) -> bool:
        """Return whether to leave the rest of the training to the base optimizer.

        Args:
            losses: (steps, mean loss over them), one pair for each step with statistics, since the start.
            step: the next step.
        """
        return False
