"""The choice, when a preconditioner is made, of the objects that carry out its steps.

On one process with whole parameters these are hooks, states, an engine and the preconditioning of its gradients. What
ranks, shards and owners need comes as objects around them, so that a step on one process runs none of their code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from mkor_core.capture.autograd import Precision
from mkor_core.capture.blocks import ranks_of_a_batch
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import GradScale
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.statistics import Sums
from mkor_core.capture.sums import Capture
from mkor_core.engines.by_value import ByValue
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.engine import Engine, InPlace, Phases, Preconditioning, Refreshing
from mkor_core.engines.in_kernels import InKernels, Kernels, form_of, refuse_kernels, takes_kernels
from mkor_core.engines.joint import JointInPlace
from mkor_core.engines.refreshing import PlacedRefreshing, SharedRefreshing
from mkor_core.engines.stacks import States
from mkor_core.method import Distributed, InPlaceMethod, LayerState, Method
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Codec, Coder
from mkor_core.ranks.exchange import exchange
from mkor_core.ranks.kaisa import Placement, Sharing
from mkor_core.ranks.owners import Owners, assigned
from mkor_core.ranks.schedule import Schedule

Exchange = Callable[..., tuple[dict[str, Sums], Tensor | None]]
"""Returns the layers' statistics and the loss over all ranks; see `mkor_core.ranks.exchange.exchange`."""

SumSquares = Callable[[Sequence[Layer], Sequence[Tensor]], list[Tensor]]

Consolidate = Callable[[int | None], dict[str, LayerState]]
"""Returns all layers' states on the given rank; on None, on all. A collective call."""


@dataclass(frozen=True)
class Setting:
    """What a preconditioner's methods have in common; see `mkor_core.Preconditioner`."""

    model: nn.Module
    phases: Phases
    lr: float | Callable[[], float | Tensor] | None
    accumulation_steps: int
    grad_scale: GradScale
    group: ProcessGroup | None
    precision: Precision | None
    owners: bool | None
    codec: Codec | None
    schedule: Schedule | None
    kernels: Kernels


class Work(NamedTuple):
    """What carries out the steps of a method on a model's layers."""

    states: States
    engine: Engine
    consolidate: Consolidate | None
    """None: every rank has all states."""
    state_of: Callable[[str], LayerState | None]
    """Returns the state of a layer that this rank preconditions; None of others."""
    needed: frozenset[str]
    """Layers of which this rank alone has the state."""
    in_kernels: InKernels | None
    """What preconditions with Triton kernels; None where there are none."""
    users: tuple[Any, ...]
    """The objects that carry the method in an attribute of this name."""

    def use(self, method: Method) -> None:
        """Go on with a method of the same class and other hyperparameters."""
        for user in self.users:
            user.method = method


def choose_capture(layers: Mapping[str, Layer], method: Method, setting: Setting) -> Capture | RowCapture:
    """Return the hooks that reduce the layers' rows to the statistic of a method.

    Raises:
        TypeError: the method needs whole rows, which tensor-parallel ranks do not have.
    """
    statistic, world = method.statistic, comm.world_size(setting.group)
    # 8 ranks, of which pairs share a batch by tensor parallelism: sharers = 2, and the global batch has 4 parts.
    sharers = ranks_of_a_batch(setting.model, world)
    # A tensor-parallel rank may have only some columns of X and G. Means are put together column by column, but an
    # entry of X^T X needs two columns of the same row, which may be on different ranks.
    if sharers > 1 and statistic.kind != "mean":
        raise TypeError(
            f"This {type(method).__name__} needs whole rows of inputs and gradients, which tensor-parallel ranks do "
            "not have: use MKOR with rank=1, or Eva."
        )
    make: Callable[..., Capture | RowCapture] = RowCapture
    if statistic.kind != "rows":
        # This rank's part of the global batch: with sharers = 2, ranks 2 and 3 both have part 1. With `of_rank`, the
        # batch of each rank counts as a global batch of its own, which has part 0 only.
        place = 0 if statistic.of_rank else comm.rank(setting.group) // sharers
        make = partial(Capture, statistic=statistic, place=place, sharers=sharers)
    return make(
        layers,
        micro_batches=setting.accumulation_steps,
        # A rank's loss is the mean over its own part. Divided by the number of parts, its gradient rows are those of
        # the global mean loss.
        shares=1 if statistic.of_rank else world // sharers,
        grad_scale=setting.grad_scale,
        phases=setting.phases,
    )


def choose_exchange(method: Method, setting: Setting, coder: Coder) -> Exchange | None:
    """Return what puts the statistics of all ranks together; None on one process."""
    if comm.world_size(setting.group) == 1:
        return None
    return partial(exchange, statistic=method.statistic, group=setting.group, coder=coder, schedule=setting.schedule)


def choose_work(
    layers: Mapping[str, Layer], method: Method, diagnostics: Diagnostics, setting: Setting, coder: Coder
) -> Work:
    """Return what carries out a method's steps.

    Args:
        layers: the layers by name.
        method: the method.
        diagnostics: gets the reports.
        setting: among others, ``owners``: whether layers have owners; None: if gradients are sharded and the method
            cannot work on their blocks.
        coder: gives the messages between ranks their codings.

    Raises:
        ValueError: ``owners`` is false, and the method cannot work on the blocks; the method's worker fraction does not
            fit the number of ranks, or not the owners; or there is nothing to code, or to schedule.
    """
    # By fully_shard or tensor parallelism. MKOR with a window and Eva work on blocks of D; KAISA and MKOR with dense
    # factors need all of D in one place.
    is_sharded = any(layer.block is not None for layer in layers.values())
    needs_owners = is_sharded and not (isinstance(method, InPlaceMethod) and method.works_on_blocks)
    if setting.owners is False and needs_owners:
        raise ValueError(
            f"owners=False: this {type(method).__name__} needs whole gradients, and the parameters are sharded."
        )
    by_owners = needs_owners if setting.owners is None else setting.owners
    _refuse_unfit(method, coder, setting.schedule, is_sharded=is_sharded, by_owners=by_owners)
    sharing, refreshing = _division(layers, method, diagnostics, setting, coder, by_owners=by_owners)
    owners = _owners(layers, sharing, setting.group, coder) if by_owners else None
    # Methods that return V keep their states on all ranks, since statistics are there anyway.
    keepers = owners if isinstance(method, InPlaceMethod) else None
    # A checkpoint that lacks one of these is refused: no other rank has the state.
    alone = frozenset(name for name in layers if keepers is not None and keepers.owns(name))
    # KAISA with grad_worker_fraction below 1: of a layer that other ranks precondition, this one has the factors, but
    # no decompositions.
    part = None if sharing is None else sharing.local_part
    # None means all layers; a rank that owns none has an empty set, and keeps no state.
    states = States(layers, method, None if keepers is None else alone, part)
    inner, sum_squares = _preconditioning(layers, method, setting, sharing, owners, is_sharded=is_sharded)
    engine = Engine(states, method, diagnostics, setting.phases, inner, refreshing, owners, sum_squares)
    return Work(
        states,
        engine,
        _consolidation(states, sharing, keepers, layers),
        partial(_state_of, states, sharing, owners),
        alone,
        inner if isinstance(inner, InKernels) else None,
        # Methods are frozen: `set` makes a new one, which all of these must get.
        tuple(user for user in (states, engine, inner, refreshing) if user is not None),
    )


def _preconditioning(
    layers: Mapping[str, Layer],
    method: Method,
    setting: Setting,
    sharing: Sharing | None,
    owners: Owners | None,
    *,
    is_sharded: bool,
) -> tuple[Preconditioning, SumSquares | None]:
    """Return how gradients become updates, and what sums ``|D|^2`` over blocks; None: there are no blocks.

    Raises:
        ValueError: Triton's kernels are asked for, and there are none.
    """
    phases, terms = setting.phases, None if owners is None else owners.terms_of_all
    form = None if is_sharded or owners is not None else form_of(method)
    refuse_kernels(setting.kernels, method, form)
    if not isinstance(method, InPlaceMethod):
        # With owners the updates go back by `Owners.scatter`; without, KAISA's gradient workers send them on.
        return ByValue(method, layers, phases, sharing if owners is None else None, terms), None
    # Owners get D whole, even if the parameters are sharded.
    joint = JointInPlace(method, phases, cuts=owners is None, terms_of_all=terms)
    simple = method.clip is None and (owners is not None or not is_sharded)
    inner: Preconditioning = InPlace(method, phases) if simple else joint
    if form is not None and takes_kernels(setting.kernels):
        inner = InKernels(method, phases, inner, only_cuda=setting.kernels == "auto")
    # |D|, for MKOR's gradient_norm, is measured on .grad before owners gather it: of sharded parameters it is always a
    # sum over blocks.
    return inner, joint.sum_squares if is_sharded else None


def _refuse_unfit(
    method: Method, coder: Coder, schedule: Schedule | None, *, is_sharded: bool, by_owners: bool
) -> None:
    """Raise a ValueError for a codec or a schedule that would do nothing."""
    fraction = method.worker_fraction if isinstance(method, Distributed) else None
    broadcasts = isinstance(method, Distributed) or by_owners
    if coder.codec is not None and not method.statistic.gathers_rows and (is_sharded or not broadcasts):
        raise ValueError(
            f"codec={coder.codec!r}: this {type(method).__name__} sends nothing that is coded, which are gathered rows "
            "and broadcasts of decompositions and of whole updates; leave the codec out."
        )
    by_sides = isinstance(method, Distributed) and method.refreshes_sides
    if schedule is not None and (not by_sides or (fraction or 1) < 1 or by_owners):  # no fraction counts as 1
        raise ValueError(
            f"{schedule!r} is for KAISA with grad_worker_fraction=1 and without owners: there all ranks add up the "
            "factors and receive the decompositions. Leave the schedule out."
        )


def _division(
    layers: Mapping[str, Layer],
    method: Method,
    diagnostics: Diagnostics,
    setting: Setting,
    coder: Coder,
    *,
    by_owners: bool,
) -> tuple[Sharing | None, Refreshing | None]:
    """Return how ranks divide refreshes and preconditioning; None where each does all.

    Raises:
        ValueError: the method's worker fraction does not fit the number of ranks, or not the owners.
    """
    world = comm.world_size(setting.group)
    if not isinstance(method, Distributed) or world == 1:
        return None, None
    in_order = list(layers.values())
    if setting.schedule is not None:
        placement = Placement(in_order, method, setting.group, setting.schedule, coder)
        # Every rank receives all decompositions and preconditions all layers, so no updates need be sent.
        return None, PlacedRefreshing(method, placement, diagnostics, setting.phases)
    fraction = method.worker_fraction
    # The owner alone has the whole D, so it must be the only gradient worker: a grid with one rank in each column.
    if by_owners and fraction is None:
        fraction = 1 / world
    elif by_owners and fraction is not None and fraction * world > 1:
        raise ValueError(
            f"{type(method).__name__} has {fraction * world:g} gradient workers for each layer, which need its whole "
            f"gradient: pass grad_worker_fraction=1/{world}, one worker for each layer."
        )
    sharing = Sharing(in_order, method, setting.group, coder, fraction)
    return sharing, SharedRefreshing(method, sharing, diagnostics, setting.phases)


def _owners(layers: Mapping[str, Layer], sharing: Sharing | None, group: ProcessGroup | None, coder: Coder) -> Owners:
    in_order = list(layers.values())
    # KAISA refreshes a layer on one rank: that rank must also be the one that gets the layer's gradient.
    places = assigned(in_order, group) if sharing is None else {name: sharing.owner(name) for name in layers}
    return Owners(in_order, places, group, coder)


def _consolidation(
    states: States, sharing: Sharing | None, owners: Owners | None, layers: Mapping[str, Layer]
) -> Consolidate | None:
    """Return what gathers the states that ranks hold parts of; None if every rank has them all."""
    if owners is not None:
        return lambda rank: owners.gather_states(states.by_layer(), states.initial, rank)
    # All ranks accumulate all factors. Only the decompositions must come from the layers' owners.
    if sharing is not None and not sharing.is_whole:
        return lambda rank: sharing.gather(states.by_layer(), lambda name: states.initial(layers[name]), rank)
    return None


def _state_of(states: States, sharing: Sharing | None, owners: Owners | None, name: str) -> LayerState | None:
    # A rank that only receives a layer's updates has a part of its state: the factors without the decompositions.
    works = (sharing is None or sharing.works_on(name)) and (owners is None or owners.owns(name))
    return states.get(name) if works else None
