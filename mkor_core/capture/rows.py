"""Hooks that keep a layer's rows themselves, for methods that reduce them on their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.capture.blocks import ActivationShard
from mkor_core.capture.hooks import Hooks
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.capture.reductions import GradScale, divisor
from mkor_core.capture.statistics import Rows


class RowCapture(Hooks[list[Rows]]):
    """The rows of every call of every layer in the step that is under way.

    Args:
        layers: the layers to hook, by name.
        micro_batches: backward passes per step that share the global batch.
        shares: number of equal parts that the global mean loss is split into over ranks; gradient rows are divided by
            it.
        grad_scale: returns the loss scale that gradient rows must be divided by, or None.
        phases: returns the context manager in which the hooks work, given its name, "capture".
    """

    traces: ClassVar[bool] = False

    def __init__(
        self,
        layers: Mapping[str, Layer],
        *,
        micro_batches: int = 1,
        shares: int = 1,
        grad_scale: GradScale = lambda: None,
        phases: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._shares = shares
        self._grad_scale = grad_scale
        super().__init__(layers, micro_batches=micro_batches, phases=phases)

    def take_rows(self) -> dict[str, list[Rows]]:
        """Return and forget the rows of every layer that took part in this step, by name and call."""
        taken = {name: rows for name, rows in self._pending.items() if rows}  # no rows: empty micro-batches
        self.drop()
        return taken

    @override
    def _take_input(
        self, layer: Layer, inputs: Tensor, locations: int, dtype: torch.dtype, shard: ActivationShard
    ) -> Callable[[Tensor, ActivationShard], None]:
        # Autograd keeps autocast's copy of the input, so the original may legally be changed in place before the
        # backward pass.
        kept = layer.with_batch_dimension(inputs.detach()).to(dtype)
        added: tuple[list[Rows], int] | None = None
        """The step's rows to which this call has added its own, and their index there."""

        def add(grad: Tensor, _: ActivationShard) -> None:
            nonlocal added
            rows = self._pending.setdefault(layer.name, [])
            if grad.numel() == 0:  # an empty micro-batch
                return
            # Under autocast the gradient is narrower than the parameters.
            wide = torch.promote_types(wide_dtype(grad.dtype), layer.parameters[0].dtype)
            g = layer.gradient_rows(grad.to(wide))
            scale = divisor(self._shares, self._grad_scale)
            g = g if scale is None else g / scale
            # Two backward passes may go through one forward pass: the second brings more gradient for the same rows.
            if added is not None and added[0] is rows:
                index = added[1]
                rows[index] = rows[index]._replace(g=rows[index].g + g)
                return
            added = rows, len(rows)
            rows.append(Rows(layer.input_rows(kept.to(g.dtype)), g, locations))

        return add

    @override
    def _close_micro_batch(self, pending: list[Rows]) -> None:
        pass  # rows of all micro-batches are kept alike
