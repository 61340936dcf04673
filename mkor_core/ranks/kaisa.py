"""KAISA's distribution of a method's work: owners refresh, gradient workers precondition, receivers get the updates.

With SPD-KFAC's `Schedule`, the ranks that refresh are chosen factor by factor, and all precondition (`Placement`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import LayerShape
from mkor_core.method import Distributed, LayerState
from mkor_core.ranks import comm
from mkor_core.ranks.assignment import assign, make_grid
from mkor_core.ranks.codec import Coder
from mkor_core.ranks.schedule import Schedule, balanced

SIDES = ("left", "right")


class Sharing:
    """The assignment of layers to ranks, and the broadcasts that it requires.

    All ranks must construct it together, with the same layers, because it creates process groups.

    Args:
        layers: the layers.
        method: the method.
        group: the ranks.
        coder: gives the messages their codings; None: they travel as they are.
        fraction: that of the ranks that precondition a layer; None: the method's, or else 1.

    Raises:
        ValueError: the method's worker fraction does not fit the number of ranks.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        method: Distributed,
        group: ProcessGroup | None,
        coder: Coder | None = None,
        fraction: float | None = None,
    ) -> None:
        self._rank = comm.rank(group)
        self._refreshed = method.refreshed
        self._grid = make_grid(comm.world_size(group), fraction or method.worker_fraction or 1.0)
        # From shapes alone, so that every rank computes the same assignment without a message.
        costs = {layer.name: method.refresh_cost(LayerShape(layer.d_out, layer.d_in)) for layer in layers}
        self._assignments = assign(costs, self._grid)
        self._group = group
        self._coder = coder or Coder()
        # Only the groups of this rank: on 64 ranks with half of them as workers, 2 of 34.
        # On every rank the column first: creation waits for all members. With 4 ranks, were ranks 0 and 3 to begin with
        # their rows (0, 1) and (2, 3), and 1 and 2 with their columns (1, 3) and (0, 2), each would wait for another.
        self._column_group = _make_group(self._grid.column(self._rank % self._grid.columns), group)
        self._row_group = _make_group(self._grid.row(self._rank // self._grid.columns), group)

    @property
    def is_whole(self) -> bool:
        """Whether every rank holds the refreshed tensors of every layer."""
        return self._grid.columns == 1

    def owns(self, name: str) -> bool:
        """Return whether this rank refreshes the layer."""
        return self._assignments[name].owner == self._rank

    def owner(self, name: str) -> int:
        """Return the rank that refreshes the layer."""
        return self._assignments[name].owner

    def works_on(self, name: str) -> bool:
        """Return whether this rank preconditions the layer."""
        return self._assignments[name].column == self._rank % self._grid.columns

    def local_part(self, name: str, state: LayerState) -> LayerState:
        """Return a layer's state without the refreshed tensors if this rank does not precondition the layer."""
        # Every rank accumulates all factors, since the statistics reach all ranks; it only lacks decompositions.
        return state if self.works_on(name) else {k: v for k, v in state.items() if k not in self._refreshed}

    def share_refreshed(self, states: Mapping[str, LayerState], names: Sequence[str]) -> None:
        """Send the tensors that owners have refreshed to their layers' gradient workers."""
        # The owner is its layer's only worker, so nobody else needs the tensors.
        if self._grid.rows == 1:
            return
        # With columns (0, 2) and (1, 3), ranks 0 and 2 send each other what they have refreshed; at the same time so do
        # 1 and 3.
        column = self._grid.column(self._rank % self._grid.columns)
        tensors = [
            [states[name][key] for name in names if self._assignments[name].owner == owner for key in self._refreshed]
            for owner in column
        ]
        own = tensors[column.index(self._rank)]
        comm.broadcast_all(own, tensors, self._column_group, self._coder.coding("refreshed", self._rank))

    def share_updates(self, updates: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the updates of all layers, those of gradient workers sent to the other ranks of their row.

        updates: by layer; of a layer that this rank does not precondition, any of its shape.
        """
        if self._grid.columns == 1:  # all ranks are workers of all layers
            return dict(updates)
        shared = {name: torch.empty_like(update) for name, update in updates.items()}
        # With rows (0, 1) and (2, 3): rank 0 sends the updates of column 0's layers to 1, rank 2 sends the same ones to
        # 3; and 1 and 3 send those of column 1's layers to 0 and 2. ``updates`` has the same layers in the same order
        # on all ranks: a rank that left one out would pass a shorter buffer.
        by_column = [
            [name for name in updates if self._assignments[name].column == column]
            for column in range(self._grid.columns)
        ]
        column = self._rank % self._grid.columns
        # The workers of a column send the same updates to different rows, which must receive the same numbers.
        coding = self._coder.coding("updates", column)
        own = [updates[name] for name in by_column[column]]
        comm.broadcast_all(own, [[shared[name] for name in names] for names in by_column], self._row_group, coding)
        return shared

    def gather(
        self, states: Mapping[str, LayerState], blank: Callable[[str], LayerState], rank: int | None
    ) -> dict[str, LayerState]:
        """Return all layers' states with the refreshed tensors of their owners, which are in host memory.

        The device holds the tensors of one layer at a time besides the states themselves.

        Args:
            states: this rank's states.
            blank: returns a layer's initial state, for the shapes of the tensors to receive.
            rank: the rank of the group that gets the states, the others nothing; None: every rank gets them.
        """
        whole: dict[str, LayerState] = {}
        for name, state in states.items():
            # A rank that does not work on the layer lacks its refreshed tensors, and receives into initial ones.
            full = {**blank(name), **state}
            owner = comm.global_rank(self._assignments[name].owner, self._group)
            tensors = [full[key] for key in self._refreshed]
            # Without a code, since a checkpoint must resume the run exactly.
            received = comm.broadcast(tensors, owner, self._group)
            # The other ranks take part in the broadcasts but keep nothing, and so hold no copy of all states.
            if rank in (None, self._rank):
                on_host = [tensor.to("cpu", copy=True) for tensor in received]
                whole[name] = {**full, **dict(zip(self._refreshed, on_host, strict=True))}
        return whole


class Placement:
    """The ranks that decompose factors, for a method whose sides are refreshed one by one; all ranks have the results.

    Args:
        layers: the layers.
        method: the method.
        group: the ranks.
        schedule: says which factors are decomposed everywhere.
        coder: gives the messages their codings.
    """

    def __init__(
        self, layers: Sequence[Layer], method: Distributed, group: ProcessGroup | None, schedule: Schedule, coder: Coder
    ) -> None:
        # The left factor is [d_out, d_out], the right one [d_in, d_in]; the two of a layer may go to different ranks.
        dimensions = {
            (layer.name, side): d for layer in layers for side, d in zip(SIDES, (layer.d_out, layer.d_in), strict=True)
        }
        self._places = balanced(dimensions, comm.world_size(group), schedule.everywhere_below)
        self._refreshed = method.refreshed
        self._group = group
        self._coder = coder

    def computes(self, name: str, side: str) -> bool:
        """Return whether this rank decomposes a factor."""
        return self._places[name, side] in (None, comm.rank(self._group))  # None: every rank does

    def share(self, states: Mapping[str, LayerState]) -> None:
        """Send decompositions to the ranks that have not computed them."""
        # If ranks 0 and 2 of 4 decompose factors, rank 0 sends to 1, 2 and 3, and rank 2 to 0, 1 and 3.
        tensors = [
            [
                states[name][key]
                for (name, side), place in self._places.items()
                if place == owner and name in states
                for key in self._refreshed
                if key.startswith(side)  # the tensors that come of this side's factor
            ]
            for owner in range(comm.world_size(self._group))
        ]
        here = comm.rank(self._group)
        comm.broadcast_all(tensors[here], tensors, self._group, self._coder.coding("refreshed", here))


def _make_group(ranks: Sequence[int], parent: ProcessGroup | None) -> ProcessGroup | None:
    """Return the group of some ranks of ``parent``, of which this rank is one; ``parent`` if they are all of it.

    A single rank, which needs no communication, gets no new group either.
    """
    if len(ranks) in (1, comm.world_size(parent)):
        return parent
    global_ranks = ranks if parent is None else [dist.get_global_rank(parent, rank) for rank in ranks]
    # Each group is created by its members alone. The columns are all ranks of the parent, and so are the rows. So if
    # the parent has all ranks, all of them make these calls at the same time, as NCCL wants it if the default group is
    # bound to a device: then the default group's communicator is split, which is a collective of all ranks.
    with nullcontext() if comm.world_size(parent) == comm.world_size() else _unbound():
        created: ProcessGroup | None = dist.new_group(list(global_ranks), use_local_synchronization=True)
    return created


@contextmanager
def _unbound() -> Iterator[None]:
    """Let ``new_group`` make a communicator of its own, among its members, where it would split that of all ranks.

    Of a parent with only some of the ranks, the others do not call ``new_group``, and a split would wait for them.
    """
    default = dist.group.WORLD
    assert default is not None
    device, default.bound_device_id = default.bound_device_id, None  # `new_group` has no argument for it
    try:
        yield
    finally:
        default.bound_device_id = device
