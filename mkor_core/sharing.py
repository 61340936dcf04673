"""The refresh of layers spread over ranks: owners refresh, gradient workers precondition, the others receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core import comm
from mkor_core.assignment import assign, make_grid
from mkor_core.layer import Layer
from mkor_core.method import LayerShape, LayerState, Method


class Sharing:
    """KAISA's distribution of a method's work; every rank makes one, with the same layers, at the same time.

    Raises:
        ValueError: a worker fraction that does not fit the number of ranks.
    """

    def __init__(self, layers: Sequence[Layer], method: Method, group: ProcessGroup | None) -> None:
        self._rank = comm.rank(group)
        self._refreshed = method.refreshed
        self._grid = make_grid(comm.world_size(group), method.worker_fraction)
        costs = {layer.name: method.refresh_cost(LayerShape(layer.d_out, layer.d_in)) for layer in layers}
        self._places = assign(costs, self._grid)
        columns = [self._grid.column(index) for index in range(self._grid.columns)]
        rows = [self._grid.row(index) for index in range(self._grid.rows)]
        self._column_groups = [_make_group(ranks, group) for ranks in columns]
        self._row_groups = [_make_group(ranks, group) for ranks in rows]
        self._group = group

    @property
    def is_whole(self) -> bool:
        """Whether every rank holds what every layer's refresh made."""
        return self._grid.columns == 1

    def owns(self, name: str) -> bool:
        """Tell whether this rank refreshes the layer."""
        return self._places[name].owner == self._rank

    def works_on(self, name: str) -> bool:
        """Tell whether this rank preconditions the layer."""
        return self._places[name].column == self._rank % self._grid.columns

    def forget_what_others_hold(self, name: str, state: LayerState) -> LayerState:
        """Return a layer's state without the refreshed tensors, if this rank does not precondition it."""
        return state if self.works_on(name) else {k: v for k, v in state.items() if k not in self._refreshed}

    def share_refreshed(self, states: Mapping[str, LayerState], names: Sequence[str]) -> None:
        """Send what the owners refreshed to their layers' gradient workers, one bucket an owner."""
        if self._grid.rows == 1:
            return
        column = self._rank % self._grid.columns
        mine = [name for name in names if self._places[name].column == column]
        for owner in self._grid.column(column):
            keys = [(name, key) for name in mine if self._places[name].owner == owner for key in self._refreshed]
            bucket = [states[name][key] for name, key in keys]
            sent = comm.broadcast(bucket, self._global(owner), self._column_groups[column])
            for (name, key), tensor in zip(keys, sent, strict=True):
                states[name][key] = tensor

    def share_updates(self, updates: dict[str, Tensor]) -> None:
        """Send updates from each row's gradient workers to the rest of their row, one bucket a worker."""
        if self._grid.columns == 1:
            return
        row = self._rank // self._grid.columns
        for column, source in enumerate(self._grid.row(row)):
            names = [name for name in updates if self._places[name].column == column]
            sent = comm.broadcast([updates[name] for name in names], self._global(source), self._row_groups[row])
            updates.update(zip(names, sent, strict=True))

    def gather(self, states: Mapping[str, LayerState], blank: Callable[[str], LayerState]) -> dict[str, LayerState]:
        """Return all layers' states with what the owners refreshed, on every rank; blank gives a state's shapes.

        A matrix that lies in memory by columns, as LAPACK leaves it, lies so on every rank: its products are rounded in
        another order otherwise, and a run that is resumed would not be the one that was interrupted.
        """
        whole: dict[str, LayerState] = {}
        for name, state in states.items():
            full = {**blank(name), **state}
            owner = self._global(self._places[name].owner)
            own = [full[key] for key in self._refreshed]
            flags = torch.tensor([_lies_by_columns(tensor) for tensor in own], dtype=torch.int32, device=own[0].device)
            by_columns = comm.broadcast([flags], owner, self._group)[0].tolist()
            turned = [tensor.T if turn else tensor for tensor, turn in zip(own, by_columns, strict=True)]
            sent = comm.broadcast(turned, owner, self._group)
            back = [tensor.T if turn else tensor for tensor, turn in zip(sent, by_columns, strict=True)]
            whole[name] = {**full, **dict(zip(self._refreshed, back, strict=True))}
        return whole

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)


def _lies_by_columns(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and not tensor.is_contiguous() and tensor.T.is_contiguous()


def _make_group(ranks: Sequence[int], parent: ProcessGroup | None) -> ProcessGroup | None:
    """Make the group of some ranks of ``parent``; None for one rank, which has nobody to talk to."""
    if len(ranks) == 1:
        return None
    whole = ranks if parent is None else [dist.get_global_rank(parent, rank) for rank in ranks]
    # Ranks outside the parent do not come here, so that a group inside one is its members' own affair.
    made: ProcessGroup | None = dist.new_group(list(whole), use_local_synchronization=parent is not None)
    return made
