"""``V = J_L D J_R`` for windowed factors and a block of D, given sums over the blocks of the same rows and columns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mkor_core.maths.inverses import WindowedInverse
from mkor_core.maths.products import Cut, Gradient, combine_on_device_, removed_factors


class BlockProducts(NamedTuple):
    """What a block of D contributes to the products of all of D with windows, or their sums over the blocks."""

    outer: Tensor
    """``Q = D U_R`` ``[..., rows, w]``; a sum over the blocks of the same rows."""
    across: Gradient | None
    """``P = U_L^T D`` ``[..., w, columns]``; a sum over the blocks of the same columns. None without J_L."""
    inner: Tensor | None
    """``R = U_L^T D U_R`` ``[..., w, w]``; a sum over all blocks. None if P or Q gives it."""


def block_products(left: WindowedInverse | None, grad: Gradient, right: WindowedInverse, block: Cut) -> BlockProducts:
    """Return the products of a block of D; the columns of U_L and U_R are those of the block."""
    counted = counted_part(grad, block)
    # D U_R is the weight's columns times U_R's first rows, plus the bias's column times its last. A rank that does not
    # count the bias leaves that last row out.
    outer = counted.right_product(right.rows if counted.bias is not None or grad.bias is None else right.rows[..., :-1])
    if left is None:
        return BlockProducts(outer, None, None)
    # With rows or columns alone divided, R follows from the sum of Q or of P: see `precondition_block_`.
    inner = left.rows @ outer if block.row_groups and block.column_groups else None
    return BlockProducts(outer, grad.left_product(left.rows), inner)


def precondition_block_(
    left: WindowedInverse | None,
    grad: Gradient,
    right: WindowedInverse,
    sums: BlockProducts,
    block: Cut,
    *,
    rescale: bool,
) -> None:
    """Replace a block of D by that of V, divided by ``c_L c_R`` if it is rescaled; keep D where V is not finite.

    Args:
        left: J_L; of its columns U_L those of the block's rows. None for the identity.
        grad: the block, which is overwritten.
        right: J_R; of its columns U_R those of the block's columns.
        sums: the sums of `block_products` over the blocks.
        block: the place of the block in D.
        rescale: whether V gets the norm of D afterwards (`rescale_`).
    """
    inner, scale, total = sums.inner, right.scale, sums.outer.sum((-2, -1))
    if left is not None:
        assert sums.across is not None
        if inner is None:
            # Columns are divided: this rank has all rows of Q, and R = U_L^T Q. Rows are divided: R = P U_R.
            inner = left.rows @ sums.outer if block.column_groups else sums.across.right_product(right.rows)
        # What is not finite in D, U_L or U_R is not finite in R, which all ranks have: they decide alike.
        scale, total = left.scale * scale, inner.sum((-2, -1)) + left.weights.sum(-1)
    # One sum for all: it is finite only if every term is.
    usable = (total + right.weights.sum(-1) + scale).isfinite()
    columns, rows = removed_factors(left, right, grad.bias is not None, sums.outer, sums.across, inner)
    # A block that stays as it is gets the scale 1: its own may be infinite or NaN.
    scale = torch.where(usable, scale, 1)
    combine_on_device_(grad, columns, rows, scale, usable)
    if not rescale:
        grad.multiply_(scale)


def counted_part(grad: Gradient, block: Cut) -> Gradient:
    """Return the part of a block that counts as this rank's in sums over all blocks."""
    return grad if block.counts_bias else Gradient(grad.weight, None)
