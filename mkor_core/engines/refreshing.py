"""The division of a `Distributed` method's refreshes among ranks: by layers (KAISA), or by factors (SPD-KFAC)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from mkor_core.capture.layer import Layer
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.engine import Phases
from mkor_core.engines.stacks import States
from mkor_core.method import Distributed, Method
from mkor_core.ranks.kaisa import SIDES, Placement, Sharing


class SharedRefreshing:
    """Each layer is refreshed by its owner, which sends the tensors to the layer's gradient workers."""

    def __init__(self, method: Method, sharing: Sharing, diagnostics: Diagnostics, phases: Phases) -> None:
        self.method = method
        self._sharing = sharing
        self._diagnostics = diagnostics
        self._phases = phases

    def refresh(self, states: States, layers: Sequence[Layer], step: int, accept: Tensor | None) -> None:
        """See `mkor_core.engines.engine.Refreshing`."""
        by_layer = states.by_layer()
        with self._phases("factor"):
            for layer in layers:
                if self._sharing.owns(layer.name):
                    state = by_layer[layer.name]
                    # Should it fail, the owner sends what the layer had. An error here would leave the other ranks
                    # waiting in the broadcast.
                    self._diagnostics.guard(layer.name, partial(self.method.refresh, state, step, accept))
        with self._phases("communication"):
            self._sharing.share_refreshed(by_layer, [layer.name for layer in layers])


class PlacedRefreshing:
    """Each factor is refreshed where a `Placement` says, and sent to all other ranks."""

    def __init__(self, method: Distributed, placement: Placement, diagnostics: Diagnostics, phases: Phases) -> None:
        self.method = method
        self._placement = placement
        self._diagnostics = diagnostics
        self._phases = phases

    def refresh(self, states: States, layers: Sequence[Layer], step: int, accept: Tensor | None) -> None:
        """See `mkor_core.engines.engine.Refreshing`."""
        by_layer = {layer.name: state for layer in layers if (state := states.get(layer.name)) is not None}
        with self._phases("factor"):
            for name, state in by_layer.items():
                # The two factors of a layer may be on different ranks. Small ones are decomposed on every rank, which
                # takes less time than a message.
                for side in SIDES:
                    if self._placement.computes(name, side):
                        work = partial(self.method.refresh_side, state, side, step, accept)
                        self._diagnostics.guard(name, work)
        with self._phases("communication"):
            self._placement.share(by_layer)
