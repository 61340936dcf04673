"""The base class of second-order methods, which do not depend on hooks, ranks or parameter groups.

A method declares which statistic of every layer it needs and when (`statistic`, `accumulates`). It folds the statistic
into the layer's state (`accumulate`), does its costly periodic work (`refresh`), turns a gradient into an update
(`precondition`), and finishes the updates of all layers together (`finish`). A `Preconditioner` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.blocks import Block
from mkor_core.capture.reductions import average_locations
from mkor_core.capture.statistics import Captured, Rows, Statistic
from mkor_core.maths.products import Gradient
from mkor_core.ranges import checked_values

LayerState = dict[str, Tensor]
"""A layer's named tensors. A `Method` replaces entries and never changes a tensor in place, so that a step can be
undone; a `StackedMethod` changes them in place."""

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
    refreshes_sides: ClassVar[bool] = False
    """Whether `refresh_side` refreshes each factor for itself, so that ranks may divide the two of a layer."""
    follows_loss: ClassVar[bool] = False
    """Whether the method needs the training loss, for `is_over`."""
    fixed_in_state: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters that give the state's tensors their meaning: a state saved with others is refused."""

    def __post_init__(self) -> None:
        checked_values(type(self), {field.name: getattr(self, field.name) for field in fields(self)})

    def plain_hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters by name, dtypes as text."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else v for k, v in values.items()}

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

    def refresh_side(self, state: LayerState, side: str, step: int) -> None:
        """Refresh the tensors of one side, ``left`` or ``right``, whose names begin with it; if `refreshes_sides`."""
        raise NotImplementedError(f"{type(self).__name__} refreshes its sides together.")

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

    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        """Return the updates ``left`` and ``right`` of D that one side alone gives; empty for a method without sides.

        Both are ``[d_out, d_in]``, of any length.
        """
        return {}

    def start_weight(self, state: LayerState) -> Tensor | float | None:
        """Return the weight that the identity, from which the factors start, still has in them; None if it has none."""
        return None

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


class BlockSums(NamedTuple):
    """What a block of D adds to sums over the blocks of a layer, which ranks hold."""

    over_rows: tuple[Tensor, ...] = ()
    """Summed over the blocks of the same columns."""
    over_columns: tuple[Tensor, ...] = ()
    """Summed over the blocks of the same rows."""
    over_all: tuple[Tensor, ...] = ()


def cut_to_block(state: LayerState, block: Block, *, has_bias: bool) -> LayerState:
    """Return a state with only a block's rows of ``left`` and columns of ``right``, which are their last dimension."""
    cut = dict(state)
    if "left" in state:
        cut["left"] = state["left"][..., slice(*block.rows)]
    right = state["right"]
    d_w = right.shape[-1] - has_bias
    if block.columns != (0, d_w):
        cut["right"] = torch.cat([right[..., slice(*block.columns)], right[..., d_w:]], -1)
    return cut


class Prepared(NamedTuple):
    """What a clipped `StackedMethod` computes of a stack before it changes any gradient."""

    inner: tuple[Tensor, Tensor]
    """``sum(V * D)`` ``[...]`` over the weight's columns and over the bias's."""
    keeps: Tensor
    """Whether a layer keeps D, ``[...]``: it has no statistics, or its V is not finite."""
    tensors: tuple[Tensor, ...]
    """What `StackedMethod.apply` uses again."""


class StackedMethod(Method):
    """Base of a method that treats all layers of one shape at once, and changes states and gradients in place.

    Its tensors may have leading dimensions, written as ``...``: ``[L]`` for a stack of L layers, none for one layer.
    What it does to one layer of a stack must not depend on the others. ``accept`` ``[...]`` is a boolean device tensor;
    a layer for which it is false keeps its state to the last bit. None is true everywhere.

    `has_statistics` and `finish` are not called: `apply` does their work. Every rank updates all states.
    """

    @property
    def decomposes(self) -> bool:
        """Whether `accumulate` may raise LinAlgError; it then gets one layer at a time, so that one fails alone."""
        return False

    @property
    def needs_gradient_norms(self) -> bool:
        """Whether `accumulate` uses the norms of D."""
        return False

    @property
    def works_on_blocks(self) -> bool:
        """Whether blocks of D on different ranks can be preconditioned where they are (`block_sums`)."""
        return False

    @property
    def keeps_norm(self) -> bool:
        """Whether V is to have the norm of D, which `apply` does not see to for a block of D."""
        return False

    @property
    def clip(self) -> float | None:
        """The bound of `mkor_core.engines.kl_clip` on all layers' updates together, if there is one."""
        return None

    @abstractmethod
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        """Return the state before the first step, with the leading dimensions."""

    @abstractmethod
    def accumulate(
        self,
        state: LayerState,
        captured: Captured,
        step: int,
        accept: Tensor | None = None,
        gradient_norm: Tensor | None = None,
    ) -> None:
        """Fold a step's statistics into the state.

        Args:
            state: the state, which is changed.
            captured: the statistics, with the leading dimensions.
            step: the step (from 0).
            accept: see the class.
            gradient_norm: ``|D|`` ``[...]``, if `needs_gradient_norms`.
        """

    @abstractmethod
    def refresh(
        self,
        state: LayerState,
        step: int,
        accept: Tensor | None = None,
        will_step: Tensor | None = None,
        host: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Compute what `apply` uses from what `accumulate` left in the state.

        Args:
            state: the state, which is changed.
            step: the step (from 0).
            accept: see the class.
            will_step: whether the optimizer takes this step, as a boolean device scalar; None for yes.
            host: what `host_inputs` returned after the last refresh, on the host; None to compute it here.
        """

    def noise(self, state: LayerState) -> Tensor | None:
        """Return for which layers the last update left out a vector as rounding noise, ``[...]``; None for none."""
        return None

    def host_inputs(self, state: LayerState, step: int) -> dict[str, Tensor]:
        """Return the tensors that the refresh after that of a step wants on the host.

        They are copied there while the device works on the steps in between, so that the host need not wait.
        """
        return {}

    @property
    @override
    def needs_lr(self) -> bool:
        return self.clip is not None

    def prepare(self, state: LayerState, grad: Gradient) -> Prepared:
        """Return what `apply` needs if it must know all layers first; only called if `clip` is not None."""
        raise NotImplementedError(f"{type(self).__name__} has a clip, so it must define prepare.")

    def block_sums(self, state: LayerState, grad: Gradient, block: Block) -> BlockSums:
        """Return what a block of D adds to the sums that `apply_to_block` needs; only if `works_on_blocks`."""
        raise NotImplementedError(f"{type(self).__name__} works on blocks, so it must define block_sums.")

    def prepare_block(self, state: LayerState, sums: BlockSums) -> Prepared:
        """Return what `prepare` returns for all of D, given the sums over its blocks; only if `clip` is not None."""
        raise NotImplementedError(f"{type(self).__name__} works on blocks, so it must define prepare_block.")

    def apply_to_block(
        self, state: LayerState, grad: Gradient, block: Block, sums: BlockSums, nu: Tensor | None = None
    ) -> None:
        """Replace a block of D by that of V, which gets D's norm afterwards if `keeps_norm`.

        Args:
            state: the state.
            grad: the block, which is overwritten.
            block: its place in D.
            sums: over the blocks of the layer.
            nu: see `apply`.
        """
        raise NotImplementedError(f"{type(self).__name__} works on blocks, so it must define apply_to_block.")

    @abstractmethod
    def apply(
        self, state: LayerState, grad: Gradient, prepared: Prepared | None = None, nu: Tensor | None = None
    ) -> None:
        """Replace D by the update V; by D where V is not finite, or the layer has no statistics.

        Args:
            state: the state.
            grad: D, which is overwritten.
            prepared: what `prepare` returned.
            nu: the factor by which `clip` shortens all updates; None for 1.
        """

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        """Return the update V for a gradient D, both ``[..., d_out, d_in]``."""
        update = Gradient(grad.clone(), None)
        self.apply(state, update)
        return update.weight
