"""A `StackedMethod` on blocks of D, which ranks precondition where they are, given sums over the blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from mkor_core.capture.blocks import Groups
from mkor_core.engines.stacks import Unit
from mkor_core.maths.products import counted_part, rescale_
from mkor_core.method import BlockSums, StackedMethod
from mkor_core.ranks import comm


class Blockwise:
    """The work on the blocks that a rank has.

    Args:
        method: the method; it is given no blocks unless it works on them.
        phases: returns the context manager of a phase of the work.
    """

    def __init__(self, method: StackedMethod, phases: Callable[[str], AbstractContextManager[object]]) -> None:
        self._method = method
        self._phases = phases

    def sums(self, units: Sequence[Unit]) -> list[BlockSums]:
        """Return what the method needs to know of all of D, for each block; a collective call."""
        requests: list[tuple[Tensor, Groups]] = []
        lengths: list[list[int]] = []
        with self._phases("precondition"):
            for unit in units:
                assert unit.block is not None
                sums = self._method.block_sums(unit.state, unit.grad, unit.block)
                rows, columns = unit.block.row_groups, unit.block.column_groups
                for tensors, groups in zip(sums, (rows, columns, rows + columns), strict=True):
                    requests += [(tensor, groups) for tensor in tensors]
                lengths.append([len(tensors) for tensors in sums])
        totals = iter(self.summed(requests))
        return [BlockSums(*(tuple(next(totals) for _ in range(number)) for number in numbers)) for numbers in lengths]

    def apply(self, units: Sequence[Unit], sums: Sequence[BlockSums], nu: Tensor | None) -> None:
        """Replace blocks of D by those of V, in the gradients; a collective call.

        Args:
            units: the blocks.
            sums: what `sums` returned.
            nu: the factor by which all updates are shortened; None for 1.
        """
        squares: list[tuple[Tensor, Groups]] = []
        with self._phases("precondition"):
            for unit, one in zip(units, sums, strict=True):
                assert unit.block is not None
                groups = unit.block.row_groups + unit.block.column_groups
                before = counted_part(unit.grad, unit.block).square_norm() if self._method.keeps_norm else None
                factor = None if nu is None else nu.to(unit.grad.weight.device)
                self._method.apply_to_block(unit.state, unit.grad, unit.block, one, factor)
                if before is not None:
                    squares += [(before, groups), (counted_part(unit.grad, unit.block).square_norm(), groups)]
        totals = self.summed(squares)
        with self._phases("precondition"):
            for unit, whole, square in zip(units, totals[::2], totals[1::2], strict=False):
                rescale_(unit.grad, whole, square)
            for unit in units:
                unit.write_back()

    def summed(self, parts: Sequence[tuple[Tensor, Groups]]) -> list[Tensor]:
        """Return tensors summed over their groups; a collective call, unless there is nothing to sum."""
        if not any(groups for _, groups in parts):
            return [tensor for tensor, _ in parts]
        with self._phases("communication"):
            return comm.sum_over_groups(parts)
