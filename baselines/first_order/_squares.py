"""Hooks that sum the squares of layers' rows, as AdaFisher needs them; norms count as layers of two columns."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from mkor_core.capture.blocks import ActivationShard
from mkor_core.capture.hooks import Hooks
from mkor_core.capture.layer import Layer, Supported, wide_dtype
from mkor_core.capture.reductions import Parts, add_parts

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)


def find_norms(model: nn.Module, taken: set[int]) -> dict[str, Layer]:
    """Return the norms with a weight and a bias, both vectors whose ids are not in ``taken``, by name."""
    found: dict[str, Layer] = {}
    for name, module in model.named_modules():
        own: list[Any] = [module._parameters.get("weight"), module._parameters.get("bias")]
        usable = isinstance(module, NORMS) and all(isinstance(p, nn.Parameter) and p.dim() == 1 for p in own)
        if usable and not {id(parameter) for parameter in own} & taken:
            taken |= {id(parameter) for parameter in own}
            found[name] = NormLayer(name, module)
    return found


class NormLayer(Layer):
    """A norm, whose gradient matrix has the columns dL/dweight and dL/dbias."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, cast("Supported", module))


class Squares(Hooks[Parts]):
    """Sums over a step's calls, of which `mean_squares` makes the diagonals of a layer's factors.

    Args of the constructor are those of `Hooks`; gradients are divided by ``shares``, the number of ranks.
    """

    traces: ClassVar[bool] = False
    shares = 1

    def take(self) -> dict[str, Parts]:
        """Return and forget the sums of the layers that took part in this step."""
        taken = {name: parts for name, parts in self._pending.items() if parts}
        self.drop()
        return taken

    @override
    def _take_input(
        self, layer: Layer, inputs: Tensor, locations: int, dtype: torch.dtype, shard: ActivationShard
    ) -> Callable[[Tensor, ActivationShard], None]:
        wide = inputs.detach().to(wide_dtype(dtype))
        right = _norm_inputs(wide) if isinstance(layer, NormLayer) else _row_squares(layer, wide)
        examples = inputs.shape[0]

        def add(grad: Tensor, _: ActivationShard) -> None:
            rows = grad.to(right.dtype) / self.shares
            if rows.numel() == 0:
                return
            if isinstance(layer, NormLayer):
                # The channels of a BatchNorm are dimension 1, those of a LayerNorm the last.
                module: Any = layer.module
                kept = rows.dim() - 1 if isinstance(module, nn.LayerNorm) else 1
                left, number = rows.sum([d for d in range(rows.dim()) if d != kept]), examples
            else:
                rows = layer.gradient_rows(rows)
                left, number = rows.square().sum(0), len(rows)
            parts = {"x": right, "g": left, "number": right.new_tensor(float(number)), "calls": right.new_ones(())}
            add_parts(self._pending.setdefault(layer.name, {}), parts)

        return add

    @override
    def _close_micro_batch(self, pending: Parts) -> None:
        pass  # all passes are added alike


def blank(layer: Layer) -> Parts:
    """Return the sums of a layer that took no part."""
    weight = layer.parameters[0]
    zero = torch.zeros((), dtype=wide_dtype(weight.dtype), device=weight.device)
    return {"x": zero.expand(layer.d_in), "g": zero.expand(layer.d_out), "number": zero, "calls": zero}


def mean_squares(layer: Layer, parts: Parts) -> tuple[Tensor, Tensor]:
    """Return ``s`` ``[d_out]`` and ``h`` ``[d_in]``; NaN without a call."""
    if isinstance(layer, NormLayer):
        return parts["g"].square() / parts["number"], parts["x"] / parts["calls"]
    return parts["g"] / parts["number"], parts["x"] / parts["number"]


def _row_squares(layer: Layer, inputs: Tensor) -> Tensor:
    """Return the sum of the squares of the input rows, the bias's 1 included, ``[d_in]``."""
    return layer.input_rows(layer.with_batch_dimension(inputs)).square().sum(0)


def _norm_inputs(inputs: Tensor) -> Tensor:
    """Return ``[sum_c (sum x / loc^2)^2, number of c] / n^2`` for inputs ``[n, c, loc...]``, summed but over c."""
    examples, channels, *locations = inputs.shape
    sums = inputs.sum([d for d in range(inputs.dim()) if d != 1]) / prod(locations) ** 2
    return torch.stack([sums.square().sum(), sums.new_tensor(float(channels))]) / examples**2
