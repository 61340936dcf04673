"""What a second-order method is: a frozen dataclass and a few verbs, blind to hooks, ranks and parameter groups.

A method says which statistic it wants of every layer and when (`statistic`, `accumulates`), folds it into the layer's
state (`accumulate`), does its costly periodic part (`refresh`), turns a gradient into an update (`precondition`), and
finishes what spans layers (`finish`). A `Preconditioner` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from mkor_core.capture import Captured, Rows, Statistic, average_locations
from mkor_core.ranges import checked_values

LayerState = dict[str, Tensor]
"""A layer's named tensors. A method replaces entries and never changes a tensor in place, so a step can be undone."""


class LayerShape(NamedTuple):
    """The shape of a layer's gradient matrix; d_in counts the bias."""

    d_out: int
    d_in: int


class Update(NamedTuple):
    """One layer's gradient D and update V, ``[d_out, d_in]``, and its learning rate.

    lr: a number or a scalar tensor; a tensor ``[d_in]`` if weight and bias have different ones; None if unknown.
    """

    grad: Tensor
    value: Tensor
    lr: float | Tensor | None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Base of every second-order method.

    The fields of a subclass are its hyperparameters. Their annotations declare types and ranges (`mkor_core.ranges`),
    which are checked at construction; a subclass that checks more calls ``super().__post_init__()`` first.

    Raises:
        ValueError: a value out of its range, by name.
    """

    refresh_needs_statistics: ClassVar[bool] = True
    """Whether `refresh` consumes the same step's statistics, so that a layer without any is not refreshed."""
    gathers_rows: ClassVar[bool] = False
    """Whether ranks gather the rows that `condense` returns; otherwise they add up x, g and number."""
    follows_loss: ClassVar[bool] = False
    """Whether the method decides by the loss (see `is_over`)."""

    def __post_init__(self) -> None:
        checked_values(type(self), {field.name: getattr(self, field.name) for field in fields(self)})

    @property
    @abstractmethod
    def statistic(self) -> Statistic:
        """What the hooks keep of every layer's rows."""

    @property
    def rank_rows(self) -> bool:
        """Whether gradient rows are those of each rank's own mean loss, not of the global one."""
        return False

    def condense(self, rows: list[Rows], step: int) -> Captured:
        """Return what ranks exchange of a layer's rows in a step; only called if `statistic` is ROWS.

        rows: one `Rows` a call of the layer on this rank. The default joins them, a Conv2d's averaged over its
        locations.
        """
        x = torch.cat([average_locations(part.x, part.locations) for part in rows])
        g = torch.cat([average_locations(part.g, part.locations) for part in rows])
        return Captured(x, g, x.new_tensor(len(x)))

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
        """Whether `finish` reads the learning rate."""
        return False

    @property
    def refreshed(self) -> tuple[str, ...]:
        """State tensors that `refresh` makes on one owning rank and others receive; empty: every rank refreshes."""
        return ()

    @property
    def worker_fraction(self) -> float:
        """Part of the ranks that hold what a layer's refresh made, and precondition it."""
        return 1.0

    @property
    def exchange_dtype(self) -> torch.dtype | None:
        """The dtype that statistics are exchanged in; None: as captured."""
        return None

    @abstractmethod
    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        """Return a layer's state before the first step; dtype is the one that gradients are computed with."""

    @abstractmethod
    def accumulates(self, step: int) -> bool:
        """Tell whether step ``step`` (from 0) captures and accumulates statistics."""

    @abstractmethod
    def refreshes(self, step: int) -> bool:
        """Tell whether step ``step`` (from 0) refreshes the preconditioner."""

    @abstractmethod
    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        """Fold a step's statistics, already summed over micro-batches and ranks, into the state."""

    @abstractmethod
    def refresh(self, state: LayerState, step: int) -> None:
        """Do the periodic part: from what `accumulate` left to what `precondition` reads."""

    @abstractmethod
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        """Return the update V for a gradient D, both ``[d_out, d_in]``."""

    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        """Return every layer's final update, given those of all layers."""
        return [update.value for update in updates]

    def refresh_cost(self, shape: LayerShape) -> float:
        """Return the work of one refresh of a layer, in arbitrary units; for balancing it over ranks."""
        return float(shape.d_out**2 + shape.d_in**2)

    def loss_is_due(self, step: int) -> bool:
        """Tell whether a method that follows the loss cannot go on at ``step`` without ever having heard one."""
        return False

    def is_over(self, losses: Sequence[tuple[int, float]], step: int) -> bool:
        """Tell whether second-order steps should stop; losses: (steps, mean loss over them) since the start."""
        return False
