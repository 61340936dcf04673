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
        dimensions = {(layer.name, side): d for layer in layers for side, d in zip(SIDES, _sides(layer), strict=True)}
        self._places = balanced(dimensions, comm.world_size(group), schedule.everywhere_below)
        self._refreshed = method.refreshed
        self._group = group
        self._coder = coder

    def computes(self, name: str, side: str) -> bool:
        """Return whether this rank decomposes a factor."""
        return self._places[name, side] in (None, comm.rank(self._group))

    def share(self, states: Mapping[str, LayerState]) -> None:
        """Send decompositions to the ranks that have not computed them, one broadcast from each that has."""
        for owner in range(comm.world_size(self._group)):
            keys = [
                (name, key)
                for (name, side), place in self._places.items()
                if place == owner and name in states
                for key in self._refreshed
                if key.startswith(side)
            ]
            bucket = [states[name][key] for name, key in keys]
            source, coding = comm.global_rank(owner, self._group), self._coder.coding("refreshed", owner)
            received = comm.broadcast(bucket, source, self._group, coding)
            for (name, key), tensor in zip(keys, received, strict=True):
                states[name][key].copy_(tensor)


def _sides(layer: Layer) -> tuple[int, int]:
    return layer.d_out, layer.d_in
