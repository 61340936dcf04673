"""AdaFisher's factors: running averages of the mean squares of layers' rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from baselines.first_order._squares import Squares, blank, find_norms, mean_squares
from baselines.parts.layered import LayeredModel
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.ranks import comm

EPS = 1e-6
SUMS = ("x", "g", "number", "calls")


class DiagonalFactors:
    """Running averages ``s`` ``[d_out]`` and ``h`` ``[d_in]`` of every layer and norm, which start at 1.

    Args:
        model: the model, whose layers are hooked.
        weights: those of the old and the new values.
        normalizes_first: whether values are scaled to [0, 1] before they are averaged, or the averages.
    """

    def __init__(self, model: LayeredModel, weights: tuple[float, float], *, normalizes_first: bool) -> None:
        taken = {id(parameter) for layer in model.layers.values() for parameter in layer.parameters}
        self.layers: dict[str, Layer] = {**model.layers, **find_norms(model.model, taken)}
        self.hooks = Squares(self.layers, micro_batches=model.accumulation_steps)
        self.hooks.shares = comm.world_size()
        self.averages = {
            name: {"left": _ones(layer.d_out, layer), "right": _ones(layer.d_in, layer)}
            for name, layer in self.layers.items()
        }
        self._weights, self._normalizes_first = weights, normalizes_first

    def update(self) -> None:
        """Fold the step's sums over all ranks into the averages; a layer that no rank used keeps what it had."""
        taken = self.hooks.take()
        parts = [taken.get(name) or blank(layer) for name, layer in self.layers.items()]
        sums = iter(comm.sum_across_ranks([part[key] for part in parts for key in SUMS]))
        old, new = self._weights
        for name, layer in self.layers.items():
            means = mean_squares(layer, {key: next(sums) for key in SUMS})
            usable = (means[0].sum() + means[1].sum()).isfinite()
            for side, mean in zip(("left", "right"), means, strict=True):
                average = self.averages[name][side]
                mean = min_max(mean) if self._normalizes_first else mean
                self.averages[name][side] = torch.where(usable, old * average + new * mean, average)

    def used(self, name: str) -> tuple[Tensor, Tensor]:
        """Return a layer's s and h as they enter the Fisher matrix."""
        s, h = self.averages[name]["left"], self.averages[name]["right"]
        return (s, h) if self._normalizes_first else (min_max(s), min_max(h))

    def load(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take copies of saved averages."""
        for name, sides in saved.items():
            for side, average in sides.items():
                self.averages[name][side] = torch.empty_like(self.averages[name][side]).copy_(average)
        self.hooks.drop()


def min_max(values: Tensor) -> Tensor:
    """Return values moved and scaled to [0, 1]."""
    low, high = values.aminmax()
    return (values - low) / (high - low + EPS)


def _ones(size: int, layer: Layer) -> Tensor:
    weight = layer.parameters[0]
    return torch.ones(size, dtype=wide_dtype(weight.dtype), device=weight.device)
