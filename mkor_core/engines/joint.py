"""The preconditioning of an `InPlaceMethod` that must know more than one layer's whole gradient.

With a clip, the method proposes all updates before any gradient is changed. Of blocks of D, which lie on several ranks,
it gets sums over the blocks, and each rank changes its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

import torch
from torch import Tensor

from mkor_core.capture.blocks import Groups
from mkor_core.capture.layer import Layer
from mkor_core.engines.clipping import TermsOfAll, clip_factor, split_rates
from mkor_core.engines.engine import GradientParts, Phases, Unit, units
from mkor_core.engines.stacks import States
from mkor_core.maths.block_products import counted_part
from mkor_core.maths.products import rescale_
from mkor_core.method import InPlaceMethod, Known, LearningRate, Products, Proposal
from mkor_core.ranks import comm


class JointInPlace:
    """In-place updates that depend on other layers, through the clip, or on other ranks, through blocks of D.

    Args:
        method: the method.
        phases: returns the context manager of a phase of the work.
        cuts: whether gradients may be blocks; they are not where layers have owners.
        terms_of_all: returns scalars with the sum of the clip's terms of all ranks; None: this rank has all layers.
    """

    def __init__(
        self, method: InPlaceMethod, phases: Phases, *, cuts: bool, terms_of_all: TermsOfAll | None = None
    ) -> None:
        self.method = method
        self._phases = phases
        self._cuts = cuts
        self._terms_of_all = terms_of_all

    def precondition(
        self, states: States, gradients: GradientParts, rates: Mapping[str, LearningRate], scale: Tensor | None
    ) -> None:
        """See `mkor_core.engines.engine.Preconditioning`; a collective call if gradients are blocks."""
        method = self.method
        with self._phases("precondition"):
            # Of all stacks at once, since the clip and the sums concern all layers. On a GPU these are copies of all
            # gradients; `InPlace` has those of one stack at a time.
            found = [
                unit
                for stack in states.stacks
                for unit in units(stack, gradients, stack.kind.block if self._cuts else None)
            ]
            # MKOR's for a block [rows, columns] and windows of w columns: Q = D U_R [rows, w], among others. For a
            # whole D it needs none.
            products = [method.products(unit.state, unit.grad, unit.block) for unit in found]
        products = self._summed_products(found, products)
        nu, proposals = None, None
        if method.clip is not None:
            nu, proposals = self._clip(found, products, rates, scale, method.clip)
        squares: list[tuple[Tensor, Groups]] = []
        with self._phases("precondition"):
            for unit, product, proposal in zip(found, products, proposals or repeat(None, len(found)), strict=True):
                # The length of all of V is known only once every rank has changed its block and the squares are summed.
                # So V gets the length of D in a second pass, by `rescale_`.
                before = self._square_norm(unit)
                factor = None if nu is None else nu.to(unit.grad.weight.device)
                method.apply(unit.state, unit.grad, Known(product, proposal, factor, unit.block))
                if (after := self._square_norm(unit)) is not None and before is not None:
                    assert unit.block is not None
                    groups = unit.block.row_groups + unit.block.column_groups
                    squares += [(before, groups), (after, groups)]
        totals = self._summed(squares)
        with self._phases("precondition"):
            # The totals are |D|^2 and |V|^2 of the first block, then of the second, ... There are none if the method
            # does not keep the norm: then nothing is rescaled.
            blocks = [unit for unit in found if unit.block is not None]
            for unit, whole, square in zip(blocks, totals[::2], totals[1::2], strict=False):
                rescale_(unit.grad, whole, square)
            for unit in found:
                unit.write_back()

    def sum_squares(self, layers: Sequence[Layer], squares: Sequence[Tensor]) -> list[Tensor]:
        """Return ``|D|^2`` of layers, given those of this rank's blocks; a collective call."""
        blocks = [layer.block for layer in layers]
        groups = [() if block is None else block.row_groups + block.column_groups for block in blocks]
        return self._summed([*zip(squares, groups, strict=True)])

    def _clip(
        self,
        found: Sequence[Unit],
        products: Sequence[Products],
        rates: Mapping[str, LearningRate],
        scale: Tensor | None,
        bound: float,
    ) -> tuple[Tensor, list[Proposal]]:
        """Return the factor by which all updates are shortened, and the proposals from which it follows."""
        with self._phases("precondition"):
            proposals = [self.method.propose(unit.state, one) for unit, one in zip(found, products, strict=True)]
            terms = [_term(unit, one, rates, scale) for unit, one in zip(found, proposals, strict=True)]
        # With owners each rank has the terms of its own layers. Without, all ranks have all terms, since the products
        # of blocks are sums over ranks already.
        if self._terms_of_all is not None:
            with self._phases("communication"):
                terms = self._terms_of_all(terms)
        return clip_factor(terms, bound), proposals

    def _square_norm(self, unit: Unit) -> Tensor | None:
        """Return the square norm of a block, if V is to have that of D; None of a whole D, which `apply` sees to."""
        if unit.block is None or not self.method.keeps_norm:
            return None
        return counted_part(unit.grad, unit.block).square_norm()

    def _summed_products(self, found: Sequence[Unit], products: Sequence[Products]) -> list[Products]:
        """Return what the method needs to know of all of D, given what it has of each block."""
        requests: list[tuple[Tensor, Groups]] = []
        for unit, one in zip(found, products, strict=True):
            rows, columns = ((), ()) if unit.block is None else (unit.block.row_groups, unit.block.column_groups)
            # In the order of the fields of `Products`: over_rows, over_columns, over_all. A whole D has no groups.
            for tensors, groups in zip(one, (rows, columns, rows + columns), strict=True):
                requests += [(tensor, groups) for tensor in tensors]
        totals = iter(self._summed(requests))
        return [Products(*(tuple(next(totals) for _ in tensors) for tensors in one)) for one in products]

    def _summed(self, parts: Sequence[tuple[Tensor, Groups]]) -> list[Tensor]:
        """Return tensors summed over their groups; a collective call, unless there is nothing to sum."""
        if not any(groups for _, groups in parts):
            return [tensor for tensor, _ in parts]
        with self._phases("communication"):
            return comm.sum_over_groups(parts)


def _term(unit: Unit, proposal: Proposal, rates: Mapping[str, LearningRate], scale: Tensor | None) -> Tensor:
    """Return ``sum(V * D) lr^2`` over a unit's layers, of unscaled gradients, without those that keep D."""
    # [L], or scalars for a layer alone. Weight and bias may be in parameter groups with different learning rates.
    of_weight, of_bias = proposal.inner
    weight_rates, bias_rates = split_rates([rates[layer.name] for layer in unit.layers], of_weight)
    total = of_weight * weight_rates**2 + of_bias * bias_rates**2
    if scale is not None:
        total = total / scale**2  # V and D are both multiplied by it
    return torch.where(proposal.keeps, 0, total).sum()  # not a product: 0 times NaN is NaN
