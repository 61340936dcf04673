"""KAISA's distribution of a method's work: owners refresh, gradient workers precondition, receivers get the updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import LayerShape
from mkor_core.method import Distributed, LayerState
from mkor_core.ranks import comm
from mkor_core.ranks.assignment import assign, make_grid
from mkor_core.ranks.codec import Coder


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
        """Send the tensors that owners have refreshed to their layers' gradient workers, one broadcast per owner."""
        # The owner is its layer's only worker, so nobody else needs the tensors.
        if self._grid.rows == 1:
            return
        column = self._rank % self._grid.columns
        in_column = [name for name in names if self._assignments[name].column == column]
        # With columns (0, 2) and (1, 3): rank 0 sends to 2, then 2 to 0; at the same time 1 sends to 3, then 3 to 1.
        # The ranks of a column go through its owners in the same order. For an owner without layers the list is empty
        # on all of them, so that none calls broadcast.
        for owner in self._grid.column(column):
            layers = [name for name in in_column if self._assignments[name].owner == owner]
            keys = [(name, key) for name in layers for key in self._refreshed]
            bucket = [states[name][key] for name, key in keys]
            source, coding = comm.global_rank(owner, self._group), self._coder.coding("refreshed", owner)
            received = comm.broadcast(bucket, source, self._column_group, coding)
            for (name, key), tensor in zip(keys, received, strict=True):
                # On the owner too: if there is a codec, it must use the decoded tensors that the others have.
                states[name][key].copy_(tensor)

    def share_updates(self, updates: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the updates of all layers, those of gradient workers sent to the other ranks of their row.

        One broadcast per worker. updates: by layer; of a layer that this rank does not precondition, any of its shape.
        """
        shared = dict(updates)
        if self._grid.columns == 1:  # all ranks are workers of all layers
            return shared
        row = self._rank // self._grid.columns
        # With rows (0, 1) and (2, 3): rank 0 sends the updates of column 0's layers to 1, rank 2 sends the same ones to
        # 3; then 1 and 3 send those of column 1's layers to 0 and 2.
        for column, source in enumerate(self._grid.row(row)):
            # ``updates`` has the same layers in the same order on all ranks: a rank that left one out would pass a
            # shorter buffer.
            names = [name for name in updates if self._assignments[name].column == column]
            # The workers of a column send the same updates to different rows, which must receive the same numbers.
            coding = self._coder.coding("updates", column)
            received = comm.broadcast(
                [updates[name] for name in names], comm.global_rank(source, self._group), self._row_group, coding
            )
            shared.update(zip(names, received, strict=True))
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


def _make_group(ranks: Sequence[int], parent: ProcessGroup | None) -> ProcessGroup | None:
    """Return the group of some ranks of ``parent``, of which this rank is one; ``parent`` if they are all of it.

    A single rank, which needs no communication, gets no new group either.
    """
    if len(ranks) in (1, comm.world_size(parent)):
        return parent
    global_ranks = ranks if parent is None else [dist.get_global_rank(parent, rank) for rank in ranks]
    # Each group is created by its members alone. The columns are all ranks of the parent, and so are the rows: NCCL,
    # which splits a communicator with a device_id only if all its ranks call at the same time, gets these calls.
    created: ProcessGroup | None = dist.new_group(list(global_ranks), use_local_synchronization=True)
    return created
