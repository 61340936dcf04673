"""The base class of second-order methods, which do not depend on hooks, ranks or parameter groups.

A method declares which statistic of every layer it needs and when (`statistic`, `accumulates`). It folds the statistic
into the layer's state (`accumulate`), does its costly periodic work (`refresh`), and turns a gradient D into an update
V (`precondition`). A `Preconditioner` does the rest: it measures the statistic, over micro-batches and ranks; it
decides which layers a step changes; it clips all updates together; and it keeps D where V is of no use.

A state's tensors, the statistic, D and V may have leading dimensions, written as ``...``: none for one layer, ``[L]``
for a stack of L layers of one shape. What a method does to one layer of a stack must not depend on the others. It
changes states in place, and only those of the layers that it is told to (`put`).

The other classes are for what few methods need: `InPlaceMethod` works in the gradients' own memory and on blocks of
sharded ones, `Distributed` divides refreshes among ranks (KAISA), `HostAssisted` has the host compute something in the
meantime, and `FollowsLoss` hands over to the base optimizer (MKOR-H).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.statistics import Captured, LayerShape, Statistic
from mkor_core.maths.products import Cut, Gradient
from mkor_core.ranges import checked_values

LayerState = dict[str, Tensor]
"""A layer's named tensors, or those of a stack of layers."""

LearningRate = float | Tensor | None
"""A number or scalar tensor; a tensor ``[d_in]`` if weight and bias have different ones; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Base of every second-order method.

    The fields of a subclass are its hyperparameters. Their annotations declare types and ranges (`mkor_core.ranges`),
    which are checked at construction; a subclass that checks more calls ``super().__post_init__()`` first.

    ``accept`` is a boolean device tensor ``[...]``: a layer for which it is false keeps its state to the last bit. None
    is true everywhere. Where a decomposition may fail, it must raise LinAlgError before the state is changed.

    Raises:
        ValueError: a value out of its range, by name.
    """

    # Of MKOR, for example, ("update_rule", "window", ...): under another rule, the same J would mean something else.
    fixed_in_state: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters that give the state's tensors their meaning: a state saved with others is refused."""

    def __post_init__(self) -> None:
        # An annotation such as Annotated[float, POSITIVE, "the Tikhonov term"] is a check, and a line in the docs.
        checked_values(type(self), {field.name: getattr(self, field.name) for field in fields(self)})

    # What is measured, and when

    @property
    @abstractmethod
    def statistic(self) -> Statistic:
        """What the method needs to know of a layer's rows."""

    # What is kept, and how it changes

    @abstractmethod
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        """Return the state before the first step.

        Args:
            shape: that of D.
            dtype: that of the gradients given to `precondition`.
            device: that of the gradients.
            leading: the leading dimensions; only those of an `InPlaceMethod` are ever other than none.
        """

    @abstractmethod
    def accumulates(self, step: int) -> bool:
        """Return whether statistics are captured and accumulated in a step (from 0)."""

    def refreshes(self, step: int) -> bool:
        """Return whether a step (from 0) does costly periodic work, in `accumulate` or, after it, in `refresh`."""
        return False

    @abstractmethod
    def accumulate(
        self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None
    ) -> Tensor | None:
        """Fold a step's statistic, already put together over micro-batches and ranks, into the state.

        Returns:
            For which layers a part of it was left out as rounding noise, ``[...]``; None for none.
        """

    def refresh(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:  # noqa: B027 - optional
        """Do the periodic work that is due in all layers alike, whether or not they have statistics in this step.

        It computes what `precondition` uses from what `accumulate` has left in the state; by default, nothing.
        """

    # What is done with a gradient

    @abstractmethod
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        """Return the update V for a gradient D, both ``[..., d_out, d_in]``. One that is not finite becomes D later."""

    def has_statistics(self, state: LayerState) -> Tensor | bool:
        """Return whether a layer has had statistics, ``[...]``; where not, it keeps D, whatever `precondition` is.

        A boolean device tensor if only the device knows. The default suits methods whose initial state returns D.
        """
        return True

    @property
    def clip(self) -> float | None:
        """The bound on ``|sum(V * D) lr^2|`` over all layers, by which all updates are shortened; None: no bound."""
        return None

    # What can be said of the method while it trains (`Preconditioner.compare_next_step`)

    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        """Return the updates ``left`` and ``right`` of D that one side alone gives; empty for a method without sides.

        Both are ``[d_out, d_in]``, of any length.
        """
        return {}

    def start_weight(self, state: LayerState) -> Tensor | float | None:
        """Return the weight that the identity, from which the factors start, still has in them; None if it has none."""
        return None


def put(state: LayerState, accept: Tensor | None, **new: Tensor) -> None:
    """Copy new values into a state's tensors of these names, in the layers of ``accept`` (see `Method`).

    A value of another shape takes the tensor's place; the host then waits for ``accept``.
    """
    for name, value in new.items():
        old = state[name]
        if value.shape != old.shape:  # HyLo keeps a share of a batch's rows, and the last batch of an epoch has fewer
            if accept is None or accept.is_meta or accept:  # a meta tensor has no value; count the likely case
                state[name] = value
        elif accept is None:
            old.copy_(value)
        else:
            torch.where(
                accept.view(accept.shape + (1,) * (old.dim() - accept.dim())), value.to(old.dtype), old, out=old
            )


def plain_hyperparameters(method: Method) -> dict[str, Any]:
    """Return a method's hyperparameters by name, dtypes as text; without functions."""
    values = {field.name: getattr(method, field.name) for field in fields(method)}
    return {
        name: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
        for name, value in values.items()
        if not callable(value)  # a function cannot be saved, nor compared
    }


# Mixins, for what few methods need. List them before `Method`, so that their members come first.


class KLClipping:
    """Mixin of a `Method` with a hyperparameter ``kl_clip``, which is its clip; list it before `Method`."""

    # A field of the method, which is a dataclass; this class is none, so that the field keeps its place and default.
    kl_clip: float | None
    """The bound on all layers' updates together; None leaves them as they are."""

    @property
    def clip(self) -> float | None:
        """See `Method.clip`."""
        return self.kl_clip


class Distributed(ABC):
    """Mixin of a `Method` whose refreshes are divided among ranks, as in KAISA: a rank refreshes for others."""

    refreshes_sides: ClassVar[bool] = False
    """Whether `refresh_side` refreshes each factor for itself, so that ranks may divide the two of a layer."""

    @property
    @abstractmethod
    def refreshed(self) -> tuple[str, ...]:
        """State tensors that `refresh` computes on one rank, and others receive."""

    @property
    def worker_fraction(self) -> float | None:
        """Fraction of the ranks that hold a layer's `refreshed` tensors and precondition it.

        None: all do, but only one rank does where layers have owners.
        """
        return None

    @abstractmethod
    def refresh_cost(self, shape: LayerShape) -> float:
        """Return the cost of one refresh of a layer, in arbitrary units; used to balance layers over ranks."""

    def refresh_side(self, state: LayerState, side: str, step: int, accept: Tensor | None = None) -> None:
        """Refresh the tensors of one side, ``left`` or ``right``, whose names begin with it; if `refreshes_sides`."""
        raise NotImplementedError(f"{type(self).__name__} refreshes its sides together.")


class HostAssisted(ABC):
    """Mixin of a `Method` that has small tensors decomposed on the host, because a GPU would make it wait.

    The tensors are copied to the host while the device works on the steps in between.
    """

    @abstractmethod
    def needs_host(self, state: LayerState) -> bool:
        """Return whether a state ever has such tensors; if not, nothing else here is called for it."""

    @abstractmethod
    def host_inputs(self, state: LayerState, step: int) -> dict[str, Tensor]:
        """Return the tensors that `make_room` will want on the host in the next step that accumulates after ``step``.

        Args:
            state: the state after the last step that accumulates.
            step: that step; -1 for none.
        """

    @abstractmethod
    def make_room(
        self, state: LayerState, step: int, accept: Tensor | None = None, host: Mapping[str, Tensor] | None = None
    ) -> None:
        """Prepare a state for `accumulate`, in all layers of a step that accumulates.

        Args:
            state: the state, which is changed.
            step: the step (from 0).
            accept: see `Method`.
            host: what `host_inputs` returned after the last step that accumulates, on the host; None: compute it here.
        """


class FollowsLoss(ABC):
    """Mixin of a `Method` that watches the training loss, and may leave the rest to the base optimizer."""

    @abstractmethod
    def loss_is_due(self, step: int) -> bool:
        """Return whether the method must have received a loss before a step (from 0)."""

    @abstractmethod
    def is_over(self, losses: Sequence[tuple[int, float]], step: int) -> bool:
        """Return whether to leave the rest of the training to the base optimizer.

        Args:
            losses: (steps, mean loss over them), one pair for each step with statistics, since the start.
            step: the next step.
        """


class Windowed(NamedTuple):
    """``V = J_L D J_R`` with windows (`mkor_core.maths.inverses.WindowedInverse`) under ``left`` and ``right``."""

    rescale: bool
    """Whether V gets the norm of D."""


class RankOne(NamedTuple):
    """``V = nu (g g^T (x) a a^T + damping I)^-1 D``, with g under ``left``, a under ``right``, and ``batches``.

    nu is the clip's factor (`Method.clip`).
    """

    damping: float


class LowRank(ABC):
    """Mixin of an `InPlaceMethod` whose update is D times a number less a matrix of low rank.

    Triton kernels compute it without a copy of D (`mkor_core.kernels`), with the same result as `InPlaceMethod.apply`.
    """

    @property
    @abstractmethod
    def form(self) -> Windowed | RankOne | None:
        """The form of the update; None: not of low rank with these hyperparameters."""


class OfRankOne(LowRank):
    """Mixin of a method like Eva, with a hyperparameter ``damping``, whose update is `RankOne`."""

    damping: float

    @property
    def form(self) -> RankOne:
        """See `LowRank.form`."""
        return RankOne(self.damping)


class Products(NamedTuple):
    """What an `InPlaceMethod` must know of all of D: of a block of D, what the block adds to sums over the blocks."""

    # D of 6 x 4 on 2 x 2 ranks: rank 0 has D[:3, :2]. Blocks 0 and 2 have the same columns, 0 and 1 the same rows.
    over_rows: tuple[Tensor, ...] = ()
    """Summed over the blocks of the same columns."""
    over_columns: tuple[Tensor, ...] = ()
    """Summed over the blocks of the same rows."""
    over_all: tuple[Tensor, ...] = ()


class Proposal(NamedTuple):
    """What a clipped `InPlaceMethod` says of its updates before any gradient is changed."""

    inner: tuple[Tensor, Tensor]
    """``sum(V * D)`` ``[...]`` over the weight's columns and over the bias's."""
    keeps: Tensor
    """Whether a layer keeps D, ``[...]``: it has no statistics, or its V is not finite."""
    tensors: tuple[Tensor, ...]
    """What `InPlaceMethod.apply` uses again."""


class Known(NamedTuple):
    """What is known of all of D when it, or a block of it, is replaced by V."""

    products: Products
    """What `InPlaceMethod.products` returned; of blocks, their sums."""
    proposal: Proposal | None = None
    """What `InPlaceMethod.propose` returned, if there is a clip."""
    nu: Tensor | None = None
    """The factor by which the clip shortens all updates; None for 1."""
    cut: Cut | None = None
    """The place of the block; None: all of D."""


class InPlaceMethod(Method):
    """A method that replaces D by V in the gradient's own memory, for all layers of one shape at once.

    D may be cut into blocks, which lie on different ranks: `products` of the blocks are then summed. The state is that
    of all of D; `cut_state` returns what concerns a block.
    """

    @property
    def works_on_blocks(self) -> bool:
        """Whether blocks of D can be preconditioned where they are."""
        return False

    @property
    def keeps_norm(self) -> bool:
        """Whether V is to have the norm of D, which `apply` does not see to for a block of D."""
        return False

    def products(self, state: LayerState, grad: Gradient, cut: Cut | None = None) -> Products:
        """Return what `propose` and `apply` need to know of all of D; nothing unless a subclass says so.

        Args:
            state: the state.
            grad: D, or a block of it.
            cut: the place of the block; None: all of D.
        """
        return Products()

    def propose(self, state: LayerState, products: Products) -> Proposal:
        """Return what the clip must know of all of D; only called if `clip` is not None."""
        raise NotImplementedError(f"{type(self).__name__} has a clip, so it must define propose.")

    @abstractmethod
    def apply(self, state: LayerState, grad: Gradient, known: Known) -> None:
        """Replace D by the update V; by D where V is not finite, or the layer has no statistics.

        Args:
            state: the state.
            grad: D, or a block of it, which is overwritten.
            known: what is known of all of D.
        """

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        update = Gradient(grad.clone(), None)  # with the bias's column inside, as `precondition` gets it
        self.apply(state, update, Known(self.products(state, update)))
        return update.weight


def cut_state(state: LayerState, cut: Cut | None, *, has_bias: bool) -> LayerState:
    """Return a state with only a block's rows of ``left`` and columns of ``right``, which are their last dimension."""
    if cut is None:
        return state
    part = dict(state)
    if "left" in state:
        part["left"] = state["left"][..., slice(*cut.rows)]
    right = state["right"]
    d_w = right.shape[-1] - has_bias
    if cut.columns != (0, d_w):  # the bias's column has this block's rows, whatever the weight's columns are
        part["right"] = torch.cat([right[..., slice(*cut.columns)], right[..., d_w:]], -1)
    return part
