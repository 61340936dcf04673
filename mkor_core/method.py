"""What a second-order method is: a frozen dataclass and a few verbs, blind to hooks, ranks and parameter groups.

A method says which statistic it wants of every layer and when (`statistic`, `accumulates`), folds it into the layer's
state (`accumulate`), does its costly periodic part (`refresh`), turns a gradient into an update (`precondition`), and
finishes what spans layers (`finish`). A `Preconditioner` does the rest.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, cast, get_args, get_type_hints

import torch
from torch import Tensor

from mkor_core.capture import Captured, Rows, Statistic, average_locations

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
    """Base of every second-order method."""

    refresh_needs_statistics: ClassVar[bool] = True
    """Whether `refresh` consumes the same step's statistics, so that a layer without any is not refreshed."""
    gathers_rows: ClassVar[bool] = False
    """Whether ranks gather the rows that `condense` returns; otherwise they add up x, g and number."""
    follows_loss: ClassVar[bool] = False
    """Whether the method decides by the loss (see `is_over`)."""

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


def require(holds: bool, field: str, value: object, must: str) -> None:
    """Raise the one-line ValueError of a bad hyperparameter."""
    if not holds:
        raise ValueError(f"{field}={value!r} must {must}.")


def require_choices(method: Method) -> None:
    """Raise ValueError for a field with Literal choices that holds none of them."""
    hints = get_type_hints(type(method))
    for field in fields(method):
        choices = get_args(hints[field.name])
        if choices and all(isinstance(choice, str) for choice in choices):
            value = getattr(method, field.name)
            require(value in choices, field.name, value, f"be one of {', '.join(choices)}")


def require_period(field: str, value: object, least: int = 1) -> None:
    """Raise ValueError unless the value is a whole number, at least ``least``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and cast("int", value) >= least, field, value, f"be a whole number, at least {least}")


def require_positive(field: str, value: float) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    require(_is_number(value) and 0 < value < math.inf, field, value, "be a finite number above 0")


def require_decay(field: str, value: float, *, zero: bool = False) -> None:
    """Raise ValueError unless the value is a weight between 0 (itself only if ``zero``) and 1 (excluded)."""
    fits = _is_number(value) and (0 <= value < 1 if zero else 0 < value < 1)
    require(fits, field, value, f"lie in {'[' if zero else '('}0, 1): the weight kept by the old value")


def require_fraction(field: str, value: float) -> None:
    """Raise ValueError unless the value is a part of a whole: above 0, at most 1."""
    require(_is_number(value) and 0 < value <= 1, field, value, "lie in (0, 1]")


def require_at_least(field: str, value: float, least: float) -> None:
    """Raise ValueError unless the value is a number of at least ``least``."""
    require(_is_number(value) and value >= least, field, value, f"be a number, at least {least}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
