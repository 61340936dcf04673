"""What a step makes of a layer's gradient: the direction and the length of V beside those of D."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mkor_core.capture.layer import Layer
from mkor_core.method import LayerState, Method


class Comparison(NamedTuple):
    """One layer's update V in a step, compared with its gradient D."""

    cosine: float
    """``<V, D> / (|V| |D|)``; 1: V only has another length."""
    ratio: float
    """``|V| / |D|``."""
    by_side: Mapping[str, float]
    """The cosine of the update that one side alone gives, ``left`` or ``right``, if the method has sides."""
    start_weight: float | None
    """The weight that the identity, from which the factors start, still has in them; None if they do not."""


class _Measured(NamedTuple):
    """The tensors of a `Comparison`."""

    cosine: Tensor
    ratio: Tensor
    by_side: dict[str, Tensor]
    start_weight: Tensor | float | None

    def read(self) -> Comparison:
        start = None if self.start_weight is None else float(self.start_weight)
        sides = {side: float(cosine) for side, cosine in self.by_side.items()}
        return Comparison(float(self.cosine), float(self.ratio), sides, start)


class Comparisons:
    """The comparison of V with D in the steps for which it is requested; sharded layers are left out."""

    def __init__(self) -> None:
        self.requested = False
        """Whether the next step is to be compared."""
        self._before: dict[str, Tensor] = {}
        self._measured: dict[str, _Measured] = {}

    def request(self) -> None:
        """Compare in the next step, and forget the last comparison."""
        self.requested, self._measured = True, {}

    def start(self, layers: Sequence[Layer]) -> None:
        """Keep copies of the gradients of layers, if a comparison is requested."""
        # A block's angle and length say nothing about those of all of D.
        chosen = [layer for layer in layers if layer.block is None] if self.requested else []
        # Without a bias, gradient() may share the memory of .grad, which the step overwrites with V.
        self._before = {layer.name: layer.gradient().clone() for layer in chosen}
        self.requested = False

    def finish(self, layers: Sequence[Layer], method: Method, state_of: Callable[[str], LayerState | None]) -> None:
        """Compare the updates of layers with the copies.

        state_of: returns a layer's state by its name; None if this rank has none. Sides and the identity's weight are
            left out unless the rank has all states.
        """
        before, self._before = self._before, {}
        states = {name: state_of(name) for name in before}
        # Otherwise by_side would cover only the layers that this rank preconditions (owners, KAISA's workers), but
        # cosine all of them.
        if None in states.values():
            states = dict.fromkeys(before)
        for layer in layers:
            if (grad := before.get(layer.name)) is not None:
                value, state = layer.gradient(), states[layer.name]
                sides = {} if state is None else method.one_sided(state, grad)
                # A loss scale is in D as well as in V, and cancels. The results stay on the device until `read`.
                self._measured[layer.name] = _Measured(
                    _cosine(grad, value),
                    torch.linalg.vector_norm(value) / torch.linalg.vector_norm(grad),
                    {side: _cosine(grad, one) for side, one in sides.items()},
                    None if state is None else method.start_weight(state),
                )

    def read(self) -> dict[str, Comparison]:
        """Return the last comparison by layer, which makes the host wait."""
        return {name: measured.read() for name, measured in self._measured.items()}


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of the angle between two matrices."""
    # The default, eps=1e-8, would make the cosine of very small gradients too small. With 0, a zero gradient gives NaN.
    return torch.cosine_similarity(a.flatten(), b.flatten(), dim=0, eps=0)
