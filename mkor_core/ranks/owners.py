"""One owner for each layer: it alone has the layer's state, gets the whole gradient, and sends the update back.

A rank's share of the state and of the work falls with the number of ranks. Blocks of sharded gradients travel in one
all-to-all each way; a gradient that every rank has whole stays, and its update goes to all (`comm.broadcast_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.devices import upload
from mkor_core.method import LayerState
from mkor_core.ranks import comm
from mkor_core.ranks.assignment import Grid, assign
from mkor_core.ranks.codec import Coder


class _Region(NamedTuple):
    """The rows and columns of a parameter's gradient matrix that a rank has."""

    rows: slice
    columns: slice

    def of(self, matrix: Tensor) -> Tensor:
        return matrix[self.rows, self.columns]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.rows.start, self.rows.stop, self.columns.start, self.columns.stop


class _Piece(NamedTuple):
    """A parameter's gradient, as a matrix; a bias's has one column."""

    layer: Layer
    which: int
    """0 for the weight, 1 for the bias."""
    regions: list[_Region]
    """Of each rank."""
    owner: int
    incoming: list[tuple[int, _Region]]
    """The regions that the owner gets from other ranks, and from whom."""

    @classmethod
    def of(cls, layer: Layer, which: int, places: Sequence[Sequence[int]], owner: int) -> _Piece:
        """Return a layer's piece; places: the rows and columns of the layer on each rank."""
        regions = [_region(place, which) for place in places]
        # With 4 ranks in 2 replicas (HSDP), ranks 0 and 2 hold the upper half, 1 and 3 the lower. Owner 0 has the upper
        # half and gets the lower one from rank 1; owner 1 gets the upper half from rank 2, so that replicas share the
        # sending. Regions without rows occur where ranks outnumber the rows.
        holders: dict[tuple[int, int, int, int], list[int]] = {}
        for rank, region in enumerate(regions):
            holders.setdefault(region.key, []).append(rank)
        # An owner that has a region itself gets it from nobody; of several others that have it, one sends it.
        incoming = [
            (ranks[owner % len(ranks)], regions[ranks[0]])
            for ranks in holders.values()
            if owner not in ranks and 0 not in regions[ranks[0]].shape
        ]
        return cls(layer, which, regions, owner, incoming)


def assigned(layers: Sequence[Layer], group: ProcessGroup | None) -> dict[str, int]:
    """Return the owner of each layer: most costly first, each to the rank with the least work so far.

    The cost is that of ``V = J_L D J_R``, ``d_out d_in (d_out + d_in)``.
    """
    # From shapes alone, so that all ranks find the same owners.
    costs = {layer.name: float(layer.d_out * layer.d_in * (layer.d_out + layer.d_in)) for layer in layers}
    # In a grid of one row every rank is a column of its own, so the least loaded column is the least loaded rank.
    places = assign(costs, Grid(rows=1, columns=comm.world_size(group)))
    return {name: place.owner for name, place in places.items()}


class Owners:
    """The owners of layers, and the exchange of gradients with them.

    Args:
        layers: the layers.
        owners: the owner of each, as a rank of ``group``.
        group: the ranks.
        coder: gives the updates that are broadcast their codings; None: they travel as they are.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        owners: Mapping[str, int],
        group: ProcessGroup | None,
        coder: Coder | None = None,
    ) -> None:
        self._layers = layers
        self._owners = dict(owners)
        self._group = group
        self._coder = coder or Coder()
        self._rank, self._world = comm.rank(group), comm.world_size(group)
        self._all_pieces: dict[str, list[_Piece]] = {}
        """Those of the weight and the bias of each sharded layer, once the ranks have told each other their blocks."""

    def owns(self, name: str) -> bool:
        """Return whether this rank owns a layer."""
        return self._owners[name] == self._rank

    def owner(self, name: str) -> int:
        """Return the owner of a layer."""
        return self._owners[name]

    def gather_states(
        self, states: Mapping[str, LayerState], initial: Callable[[Layer], LayerState], rank: int | None
    ) -> dict[str, LayerState]:
        """Return all layers' states in host memory, each from its owner; a collective call.

        Args:
            states: those of the layers that this rank owns; of one that is missing, the initial one is sent.
            initial: returns a layer's initial state.
            rank: the rank of the group that gets the states, the others nothing; None: every rank gets them.
        """
        whole: dict[str, LayerState] = {}
        # All ranks go through all layers in the same order. A rank that does not own one passes initial tensors, of the
        # shapes that it will receive.
        for layer in self._layers:
            state = states.get(layer.name) or initial(layer)
            source = comm.global_rank(self._owners[layer.name], self._group)
            received: LayerState = {}
            for dtype in sorted({tensor.dtype for tensor in state.values()}, key=str):  # one flat broadcast for each
                keys = [key for key, tensor in state.items() if tensor.dtype == dtype]
                sent = comm.broadcast([state[key] for key in keys], source, self._group)
                received.update(zip(keys, sent, strict=True))
            if rank in (None, self._rank):  # the others only take part in the broadcasts
                whole[layer.name] = {key: received[key].to("cpu", copy=True) for key in state}
        return whole

    def terms_of_all(self, terms: Sequence[Tensor]) -> list[Tensor]:
        """Return scalars whose sum is that of the terms of all ranks; a collective call."""
        weight = self._layers[0].module.weight
        # A rank that owns no layer has no terms, and takes part in the sum with 0.
        total = torch.zeros((), dtype=wide_dtype(weight.dtype), device=weight.device)
        for term in terms:
            total = total + term.to(total.device)
        return comm.sum_across_ranks([total], self._group)

    def gather(self, layers: Sequence[Layer]) -> dict[str, list[Tensor]]:
        """Return the gradients of the weight and the bias of each layer that this rank owns, whole.

        A collective call: all ranks pass the same layers. Gradients that every rank has whole are those themselves, not
        copies.
        """
        local = {layer.name: layer.gradient_parts() for layer in layers}
        whole = {layer.name: local[layer.name] for layer in layers if layer.block is None and self.owns(layer.name)}
        for pieces in self._pieces(layers, local):
            sent: list[list[Tensor]] = [[] for _ in range(self._world)]
            expected: list[list[tuple[int, int]]] = [[] for _ in range(self._world)]
            places: list[list[tuple[_Piece, _Region]]] = [[] for _ in range(self._world)]
            for piece in pieces:
                own = piece.regions[self._rank]  # perhaps without rows
                mine = local[piece.layer.name][piece.which]
                if piece.owner == self._rank:
                    # The owner lays out the whole matrix and fills in its own region; the others' regions arrive below.
                    matrix = mine.new_empty(piece.layer.d_out, 1 if piece.which else piece.layer.d_w)
                    own.of(matrix).copy_(mine.reshape(own.shape))
                    shape = piece.layer.parameters[piece.which].shape
                    # By place, since the pieces come by dtype: a bfloat16 bias before a float32 weight.
                    parts = whole.setdefault(piece.layer.name, list(local[piece.layer.name]))
                    parts[piece.which] = matrix.view(shape)
                # Sender and owner go through the pieces in the same order, and a sender has one region of a piece. So
                # the n-th tensor that rank 2 sends to rank 0 is the n-th that rank 0 expects from it.
                for sender, region in piece.incoming:
                    if piece.owner == self._rank:
                        expected[sender].append(region.shape)
                        places[sender].append((piece, region))
                    elif sender == self._rank and region.key == own.key:
                        sent[piece.owner].append(mine)
            like = local[pieces[0].layer.name][pieces[0].which]
            # Every rank makes this call once for each dtype, also if it has nothing to send or to receive.
            received = comm.all_to_all(sent, expected, like, self._group)
            for tensors, targets in zip(received, places, strict=True):
                for tensor, (piece, region) in zip(tensors, targets, strict=True):
                    matrix = whole[piece.layer.name][piece.which].view(piece.layer.d_out, -1)
                    region.of(matrix).copy_(tensor)
        return whole

    def scatter(self, layers: Sequence[Layer], updates: Mapping[str, Sequence[Tensor]]) -> None:
        """Write the updates of all layers into this rank's gradients; a collective call.

        Args:
            layers: the same on all ranks, as for `gather`.
            updates: of the weight and the bias of each layer that this rank owns, whole.
        """
        local = {layer.name: layer.gradient_parts() for layer in layers}
        self._broadcast([layer for layer in layers if layer.block is None], local, updates)
        for pieces in self._pieces(layers, local):
            sent: list[list[Tensor]] = [[] for _ in range(self._world)]
            expected: list[list[tuple[int, int]]] = [[] for _ in range(self._world)]
            targets: list[list[Tensor]] = [[] for _ in range(self._world)]
            for piece in pieces:
                own, mine = piece.regions[self._rank], local[piece.layer.name][piece.which]
                if piece.owner == self._rank:
                    # The way back, but to every rank that has a part, replicas included: of a weight cut into quarters
                    # on 4 ranks, owner 0 keeps its own quarter and sends the other three to ranks 1, 2 and 3.
                    matrix = updates[piece.layer.name][piece.which].view(piece.layer.d_out, -1)
                    mine.copy_(own.of(matrix).reshape(mine.shape))
                    for rank, region in enumerate(piece.regions):
                        if rank != self._rank and 0 not in region.shape:
                            sent[rank].append(region.of(matrix))
                elif 0 not in own.shape:  # the owner sends nothing to a rank without rows
                    expected[piece.owner].append(own.shape)
                    targets[piece.owner].append(mine)
            like = local[pieces[0].layer.name][pieces[0].which]
            for tensors, places in zip(comm.all_to_all(sent, expected, like, self._group), targets, strict=True):
                for tensor, target in zip(tensors, places, strict=True):
                    target.copy_(tensor.reshape(target.shape))

    def _broadcast(
        self,
        layers: Sequence[Layer],
        local: Mapping[str, Sequence[Tensor]],
        updates: Mapping[str, Sequence[Tensor]],
    ) -> None:
        """Write the updates of layers of which every rank has the whole gradient."""
        names = [[layer.name for layer in layers if self._owners[layer.name] == owner] for owner in range(self._world)]
        # Each update beside the place for it: of a mixed model, a dtype's updates travel after another's.
        own = [pair for name in names[self._rank] for pair in zip(local[name], updates[name], strict=True)]
        places = [[part for name in of_owner for part in local[name]] for of_owner in names]
        for dtype in sorted({place.dtype for of_owner in places for place in of_owner}, key=str):
            # The dtype is part of the message's name, since a sender may send one message of a name in a step.
            coding = self._coder.coding(f"updates {dtype}", self._rank)
            comm.broadcast_all(
                [update.to(dtype) for place, update in own if place.dtype == dtype],
                [[place for place in of_owner if place.dtype == dtype] for of_owner in places],
                self._group,
                coding,
            )

    def _pieces(self, layers: Sequence[Layer], local: Mapping[str, Sequence[Tensor]]) -> list[list[_Piece]]:
        """Return the sharded gradients, those of one dtype together, in the same order on all ranks."""
        sharded = [layer for layer in layers if layer.block is not None]
        if not sharded:
            return []
        # The plan needs a message, which all ranks send at this point: they pass the same layers.
        if not self._all_pieces:
            self._all_pieces = self._plan()
        by_dtype: dict[str, list[_Piece]] = {}
        for layer in sharded:
            for piece, part in zip(self._all_pieces[layer.name], local[layer.name], strict=True):
                by_dtype.setdefault(str(part.dtype), []).append(piece)
        return [by_dtype[key] for key in sorted(by_dtype)]  # one all-to-all each, in one order

    def _plan(self) -> dict[str, list[_Piece]]:
        """Return the pieces of all sharded layers, whose blocks the ranks exchange."""
        sharded = [layer for layer in self._layers if layer.block is not None]
        own = torch.tensor([[*layer.block.rows, *layer.block.columns] for layer in sharded if layer.block])
        # [ranks, layers, 4]: for each rank and layer the first row, the row after the last, and the same for columns.
        everywhere = comm.gather_numbers(upload(own, sharded[0].parameters[0].device), self._group).tolist()
        return {
            layer.name: [
                _Piece.of(layer, which, [of_rank[index] for of_rank in everywhere], self._owners[layer.name])
                for which in range(len(layer.parameters))
            ]
            for index, layer in enumerate(sharded)
        }


def _region(place: Sequence[int], index: int) -> _Region:
    # A bias has its rows' one column on all ranks that share the rows, however they divide the weight's columns:
    # `_Piece.of` sees these ranks as replicas.
    rows, columns = slice(place[0], place[1]), slice(place[2], place[3])
    return _Region(rows, slice(0, 1) if index else columns)
