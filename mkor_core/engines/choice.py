"""The choice, when a preconditioner is made, of the objects that carry out its steps.

On one process with whole parameters these are hooks, states, an engine and the preconditioning of its gradients. What
ranks, shards and owners need comes as objects around them, so that no step asks whether there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from torch.distributed import ProcessGroup

from mkor_core.capture.blocks import ranks_of_a_batch
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import GradScale
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.sums import Capture
from mkor_core.engines.by_value import ByValue
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.engine import Engine, InPlace, Phases, Preconditioning, Refreshing
from mkor_core.engines.joint import JointInPlace
from mkor_core.engines.refreshing import PlacedRefreshing, SharedRefreshing
from mkor_core.engines.stacks import States
from mkor_core.method import Distributed, InPlaceMethod, LayerState, Method
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Coder
from mkor_core.ranks.kaisa import Sharing
from mkor_core.ranks.owners import Owners, assigned
from mkor_core.ranks.placement import Placement
from mkor_core.ranks.schedule import Schedule

Consolidate = Callable[[int | None], dict[str, LayerState]]
"""Returns all layers' states on the given rank; on None, on all. A collective call."""


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
    users: tuple[Any, ...]
    """The objects that carry the method in an attribute of this name."""

    def use(self, method: Method) -> None:
        """Go on with a method of the same class and other hyperparameters."""
        for user in self.users:
            user.method = method


def choose_capture(
    layers: Mapping[str, Layer],
    method: Method,
    model: nn.Module,
    micro_batches: int,
    grad_scale: GradScale,
    phases: Phases,
    group: ProcessGroup | None,
) -> Capture | RowCapture:
    """Return the hooks that reduce the layers' rows to the statistic of a method.

    Args:
        layers: the layers by name.
        method: the method.
        model: the model of the layers.
        micro_batches: backward passes per step.
        grad_scale: returns the loss scale that captured gradients are divided by; None for 1.
        phases: returns the context manager of a phase of the work.
        group: the ranks.

    Raises:
        TypeError: the method needs whole rows, which tensor-parallel ranks do not have.
    """
    statistic, world = method.statistic, comm.world_size(group)
    sharers = ranks_of_a_batch(model, world)
    if sharers > 1 and statistic.kind != "mean":
        raise TypeError(
            f"This {type(method).__name__} needs whole rows of inputs and gradients, which tensor-parallel ranks do "
            "not have: use MKOR with rank=1, or Eva."
        )
    make: Callable[..., Capture | RowCapture] = RowCapture
    if statistic.kind != "rows":
        place = 0 if statistic.of_rank else comm.rank(group) // sharers
        make = partial(Capture, statistic=statistic, place=place, sharers=sharers)
    return make(
        layers,
        micro_batches=micro_batches,
        shares=1 if statistic.of_rank else world // sharers,
        grad_scale=grad_scale,
        phases=phases,
    )


def choose_work(
    layers: Mapping[str, Layer],
    method: Method,
    diagnostics: Diagnostics,
    phases: Phases,
    group: ProcessGroup | None,
    owners: bool | None,
    coder: Coder,
    schedule: Schedule | None,
) -> Work:
    """Return what carries out a method's steps.

    Args:
        layers: the layers by name.
        method: the method.
        diagnostics: gets the reports.
        phases: returns the context manager of a phase of the work.
        group: the ranks.
        owners: whether layers have owners; None: if gradients are sharded and the method cannot work on their blocks.
        coder: gives the messages between ranks their codings.
        schedule: of factors and decompositions; None: each layer's owner refreshes it.

    Raises:
        ValueError: ``owners`` is false, and the method cannot work on the blocks; the method's worker fraction does not
            fit the number of ranks, or not the owners; or there is nothing to code, or to schedule.
    """
    is_sharded = any(layer.block is not None for layer in layers.values())
    in_place = isinstance(method, InPlaceMethod)
    needs_owners = is_sharded and not (isinstance(method, InPlaceMethod) and method.works_on_blocks)
    if owners is False and needs_owners:
        raise ValueError(
            f"owners=False: this {type(method).__name__} needs whole gradients, and the parameters are sharded."
        )
    by_owners = needs_owners if owners is None else owners
    _refuse_unfit(method, coder, schedule, is_sharded=is_sharded, by_owners=by_owners)
    sharing, refreshing = _division(layers, method, diagnostics, phases, group, coder, schedule, by_owners=by_owners)
    chosen = _owners(layers, sharing, group, coder) if by_owners else None
    terms = None if chosen is None else chosen.terms_of_all
    alone = frozenset(name for name in layers if chosen is not None and in_place and chosen.owns(name))
    states = States(
        layers,
        method,
        holds=alone if chosen is not None and in_place else None,
        part=None if sharing is None else sharing.local_part,
    )
    inner: Preconditioning
    sum_squares = None
    if not isinstance(method, InPlaceMethod):
        inner = ByValue(method, layers, phases, None if by_owners else sharing, terms)
    elif method.clip is None and (chosen is not None or not is_sharded):
        inner = InPlace(method, phases)
    else:
        inner = JointInPlace(method, phases, cuts=chosen is None, terms_of_all=terms)
    if isinstance(method, InPlaceMethod) and is_sharded:
        sum_squares = JointInPlace(method, phases, cuts=True).sum_squares
    engine = Engine(states, method, diagnostics, phases, inner, refreshing, chosen, sum_squares)
    return Work(
        states,
        engine,
        _consolidation(states, sharing, chosen if in_place else None, layers),
        partial(_state_of, states, sharing, chosen),
        alone,
        tuple(user for user in (states, engine, inner, refreshing) if user is not None),
    )


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
    if schedule is not None and (not by_sides or (fraction or 1) < 1 or by_owners):
        raise ValueError(
            f"{schedule!r} is for KAISA with grad_worker_fraction=1 and without owners: there all ranks add up the "
            "factors and receive the decompositions. Leave the schedule out."
        )


def _division(
    layers: Mapping[str, Layer],
    method: Method,
    diagnostics: Diagnostics,
    phases: Phases,
    group: ProcessGroup | None,
    coder: Coder,
    schedule: Schedule | None,
    *,
    by_owners: bool,
) -> tuple[Sharing | None, Refreshing | None]:
    """Return how ranks divide refreshes and preconditioning; None where each does all.

    Raises:
        ValueError: the method's worker fraction does not fit the number of ranks, or not the owners.
    """
    world = comm.world_size(group)
    if not isinstance(method, Distributed) or world == 1:
        return None, None
    in_order = list(layers.values())
    if schedule is not None:
        placement = Placement(in_order, method, group, schedule, coder)
        return None, PlacedRefreshing(method, placement, diagnostics, phases)
    fraction = method.worker_fraction
    if by_owners and fraction is None:
        fraction = 1 / world
    elif by_owners and fraction is not None and fraction * world > 1:
        raise ValueError(
            f"{type(method).__name__} has {fraction * world:g} gradient workers for each layer, which need its whole "
            f"gradient: pass grad_worker_fraction=1/{world}, one worker for each layer."
        )
    sharing = Sharing(in_order, method, group, coder, fraction)
    return sharing, SharedRefreshing(method, sharing, diagnostics, phases)


def _owners(layers: Mapping[str, Layer], sharing: Sharing | None, group: ProcessGroup | None, coder: Coder) -> Owners:
    in_order = list(layers.values())
    places = assigned(in_order, group) if sharing is None else {name: sharing.owner(name) for name in layers}
    return Owners(in_order, places, group, coder)


def _consolidation(
    states: States, sharing: Sharing | None, owners: Owners | None, layers: Mapping[str, Layer]
) -> Consolidate | None:
    """Return what gathers the states that ranks hold parts of; None if every rank has them all."""
    if owners is not None:
        return lambda rank: owners.gather_states(states.by_layer(), states.initial, rank)
    if sharing is not None and not sharing.is_whole:
        return lambda rank: sharing.gather(states.by_layer(), lambda name: states.initial(layers[name]), rank)
    return None


def _state_of(states: States, sharing: Sharing | None, owners: Owners | None, name: str) -> LayerState | None:
    works = (sharing is None or sharing.works_on(name)) and (owners is None or owners.owns(name))
    return states.get(name) if works else None
