"""The decompositions of factors on the ranks that a `Schedule` chooses, factor by factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.distributed import ProcessGroup

from mkor_core.capture.layer import Layer
from mkor_core.method import Distributed, LayerState
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Coder
from mkor_core.ranks.schedule import Schedule, balanced

SIDES = ("left", "right")


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
        dimensions = {(layer.name, side): d for layer in layers for side, d in zip(SIDES, _sides(layer), strict=True)}
        self._places = balanced(dimensions, comm.world_size(group), schedule.everywhere_below)
        self._refreshed = method.refreshed
        self._group = group
        self._coder = coder

    def computes(self, name: str, side: str) -> bool:
        """Return whether this rank decomposes a factor."""
        return self._places[name, side] in (None, comm.rank(self._group))  # None: every rank does

    def share(self, states: Mapping[str, LayerState]) -> None:
        """Send decompositions to the ranks that have not computed them, one broadcast from each that has."""
        # In the same order on all ranks. If ranks 0 and 2 of 4 decompose factors, rank 0 sends to 1, 2 and 3, then rank
        # 2 to 0, 1 and 3; for ranks 1 and 3 the list is empty everywhere, so that no rank makes a call.
        for owner in range(comm.world_size(self._group)):
            keys = [
                (name, key)
                for (name, side), place in self._places.items()
                if place == owner and name in states
                for key in self._refreshed
                if key.startswith(side)  # the tensors that come of this side's factor
            ]
            bucket = [states[name][key] for name, key in keys]
            source, coding = comm.global_rank(owner, self._group), self._coder.coding("refreshed", owner)
            received = comm.broadcast(bucket, source, self._group, coding)
            for (name, key), tensor in zip(keys, received, strict=True):
                states[name][key].copy_(tensor)  # on the sender too: with a codec, the decoded ones


def _sides(layer: Layer) -> tuple[int, int]:
    return layer.d_out, layer.d_in
