"""``V = J_L D J_R`` in place, for one layer or a stack of layers, with the norm of D if asked for (A5).

D is kept in two tensors, as autograd has it: the weight's gradient and the bias's, which is D's last column. So nothing
of the size of D is copied to join them. Leading dimensions, written as ``...``, number the layers of a stack.

On a CPU the scalars of a product are read by the host, which costs nothing there and lets one call do the work of two.
Elsewhere they stay on the device.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mkor_core.maths.inverses import DenseInverse, Inverse, WindowedInverse, dot, matvec


class Cut(Protocol):
    """The place of a block in a matrix that is cut into blocks, as far as products with it must know."""

    @property
    def rows(self) -> tuple[int, int]:
        """The first row, and the one after the last."""

    @property
    def columns(self) -> tuple[int, int]:
        """The same for the weight's columns."""

    @property
    def row_groups(self) -> tuple[object, ...]:
        """Not empty if there are blocks of other rows."""

    @property
    def column_groups(self) -> tuple[object, ...]:
        """Not empty if there are blocks of other columns."""

    @property
    def counts_bias(self) -> bool:
        """Whether the bias's column counts as this block's in a sum over the blocks."""


LEAST_INNER = 16
"""A CPU's product of a smaller inner size takes twice as long as one that is padded to this with zeros (MKL 2024.2)."""
LARGE = 2**18
"""Entries of a matrix for which that, and how a product is divided among threads, matters."""
PARTS = 4
"""Blocks of columns into which a product of few rows is divided, because a CPU's library uses one thread for it."""
CANCELLATION = 1e-3
"""Below this share of ``(c_L c_R)^2 |D|^2`` the square norm of V is not computed from small Gram matrices."""


class Gradient(NamedTuple):
    """``D = [weight, bias]``, ``[..., d_out, d_in]``, or V in its place."""

    weight: Tensor
    """``[..., d_out, d_w]``."""
    bias: Tensor | None
    """``[..., d_out]``, or None: all columns of D are in ``weight``."""

    def parts(self) -> list[Tensor]:
        """Return the weight's part and, if there is one, the bias's."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def to(self, dtype: torch.dtype) -> Gradient:
        """Return D in a dtype."""
        return Gradient(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    def square_norm(self) -> Tensor:
        """Return ``|D|^2`` ``[...]``."""
        square = square_norm(self.weight)
        return square if self.bias is None else square + dot(self.bias, self.bias)

    def right_product(self, rows: Tensor) -> Tensor:
        """Return ``D U`` ``[..., d_out, w]``; rows: ``U^T`` ``[..., w, d_in]``."""
        if self.bias is None:
            return self.weight @ rows.mT
        # rows[..., -1] belongs to the bias: [..., d_out, 1] times [..., 1, w] is its share of the product.
        return self.weight @ rows[..., :-1].mT + self.bias[..., :, None] * rows[..., None, :, -1]

    def gram(self) -> Tensor:
        """Return ``D D^T`` ``[..., d_out, d_out]``; for an ``U^T D`` of few rows."""
        product = self.weight @ self.weight.mT
        return product if self.bias is None else product + self.bias[..., :, None] * self.bias[..., None, :]

    def combine_(self, columns: Tensor, rows: Gradient, scale: float, factor: float) -> None:
        """Replace D by ``scale D - factor columns rows``; columns: ``[..., d_out, w]``, rows: ``[..., w, d_in]``."""
        add_product_(self.weight, columns, rows.weight, scale, -factor)
        if self.bias is not None:
            assert rows.bias is not None
            self.bias.mul_(scale).sub_(matvec(columns, rows.bias), alpha=factor)

    def combine_rank_one_(self, scale: Tensor, column: Tensor, row: Tensor) -> None:
        """Replace D by ``scale D - column row^T``; scale: ``[...]``, column: ``[..., d_out]``, row: ``[..., d_in]``."""
        columns = row if self.bias is None else row[..., :-1]
        # addr_ scales and subtracts in one call, but beta must be a number, for which a GPU would make the host wait.
        if _on_host(self):
            self.weight.addr_(column, columns, beta=_numbers(scale)[0], alpha=-1)
        else:
            self.weight.mul_(scale[..., None, None])
            self.weight.addcmul_(column[..., :, None], columns[..., None, :], value=-1)
        if self.bias is not None:
            self.bias.mul_(scale[..., None]).sub_(column * row[..., -1:])

    def multiply_(self, factor: Tensor) -> None:
        """Multiply D by ``factor`` ``[...]``."""
        self.weight.mul_(factor[..., None, None])
        if self.bias is not None:
            self.bias.mul_(factor[..., None])

    def left_product(self, rows: Tensor) -> Gradient:
        """Return ``U^T D`` ``[..., w, d_in]``; rows: ``U^T`` ``[..., w, d_out]``."""
        return Gradient(few_rows_product(rows, self.weight), None if self.bias is None else matvec(rows, self.bias))


def precondition_(left: Inverse | None, grad: Gradient, right: Inverse, *, rescale: bool, grows: bool = False) -> None:
    """Replace D by ``V = J_L D J_R``; by D where V is zero (if it is rescaled) or not finite.

    Equal to ``(J_R (x) J_L) vec(D)`` with column-stacking ``vec``. O(d_out d_in (d_out + d_in)) for dense factors,
    O(w d_out d_in) for windowed ones, which read D twice and write it once.

    Args:
        left: J_L of d_out; None for the identity.
        grad: D, which is overwritten.
        right: J_R of d_in.
        rescale: whether V gets the Frobenius norm of D (A5).
        grows: whether windows may have negative weights, so that V may be far longer than D.
    """
    if isinstance(right, DenseInverse):
        assert left is None or isinstance(left, DenseInverse)
        _dense_(left, grad, right, rescale=rescale)
    else:
        assert left is None or isinstance(left, WindowedInverse)
        _windowed_(left, grad, right, rescale=rescale, grows=grows)


def _dense_(left: DenseInverse | None, grad: Gradient, right: DenseInverse, *, rescale: bool) -> None:
    # Products are computed in the factors' dtype, which may be narrower than D's.
    dtype = right.matrix.dtype
    weight, bias = grad if grad.weight.dtype == dtype else grad.to(dtype)
    if left is not None:
        weight = left.matrix @ weight
        bias = None if bias is None else matvec(left.matrix, bias)
    if bias is None:
        value = Gradient(weight @ right.matrix, None)
    else:
        # J_R's blocks, so that D's columns need not be joined: J_R is symmetric, and its last row is its last column.
        # [W, b] [[K, k], [k^T, c]] = [W K + b k^T, W k + c b] with k the border and c the corner.
        border, corner = right.matrix[..., -1, :-1], right.matrix[..., -1, -1]
        product = weight @ right.matrix[..., :-1, :-1]
        add_product_(product, bias[..., :, None], border[..., None, :])
        value = Gradient(product, matvec(weight, border) + corner[..., None] * bias)
    value = value if grad.weight.dtype == dtype else value.to(grad.weight.dtype)
    # The value is K_L D K_R. Rescaled to |D|, V needs no c_L c_R; otherwise they are multiplied in with `factor`.
    square = value.square_norm()
    if rescale:
        factor = (grad.square_norm() / square).sqrt()
        usable = square.isfinite() & factor.isfinite()
    else:
        factor = right.scale if left is None else left.scale * right.scale
        usable = (factor * square).isfinite()
    if _on_host(grad):
        # If not usable, D is still there: the value is a tensor of its own.
        if _numbers(usable)[0]:
            for old, new in zip(grad, value, strict=True):
                if old is not None and new is not None:
                    torch.mul(new, factor, out=old)
        return
    for old, new in zip(grad.parts(), value.parts(), strict=True):
        shape = factor.shape + (1,) * (old.dim() - factor.dim())
        torch.where(usable.view(shape), new.mul_(factor.view(shape)), old, out=old)


def _windowed_(
    left: WindowedInverse | None, grad: Gradient, right: WindowedInverse, *, rescale: bool, grows: bool
) -> None:
    """Replace D by ``c_L c_R D - columns rows``, of inner size w or 2 w ("Applying both sides at once")."""
    outer = grad.right_product(right.rows)  # Q = D U_R
    # |V|^2 = tr(J_L^2 D J_R^2 D^T), and J^2 = c^2 I - U M U^T on either side. So |V|^2 = (c_L c_R)^2 |D|^2 - removed,
    # removed = c_L^2 tr(M_R Q^T Q) + c_R^2 tr(M_L P P^T) - tr(R^T M_L R M_R), with M, R and the products all [w, w].
    middle = _gram_weights(right)
    removed = _trace(middle, outer.mT @ outer)
    across, inner, scale = None, None, right.scale
    if left is not None:
        scale = left.scale * right.scale
        across = grad.left_product(left.rows)  # P = U_L^T D
        inner = left.rows @ outer  # R = U_L^T D U_R
        left_middle = _gram_weights(left)
        removed = left.scale.square() * removed + right.scale.square() * _trace(left_middle, across.gram())
        removed = removed - _trace(inner.mT, left_middle @ inner @ middle)
    columns, rows = removed_factors(left, right, grad.bias is not None, outer, across, inner)
    if _on_host(grad):
        whole = grad.square_norm()
        square = scale.square() * whole - removed
        _subtract_on_host_(grad, columns, rows, *_numbers(scale, whole, square), rescale=rescale)
    else:
        _subtract_on_device_(grad, columns, rows, scale, removed, rescale=rescale, grows=grows)


def removed_factors(
    left: WindowedInverse | None,
    right: WindowedInverse,
    has_bias: bool,
    outer: Tensor,
    across: Gradient | None,
    inner: Tensor | None,
) -> tuple[Tensor, Gradient]:
    """Return the factors of ``c_L c_R D - V``: columns ``[..., d_out, w or 2 w]`` and rows ``[..., w or 2 w, d_in]``.

    Args:
        left: J_L; None for the identity.
        right: J_R.
        has_bias: whether D's last column is the bias's.
        outer: ``Q = D U_R`` ``[..., d_out, w]``.
        across: ``P = U_L^T D`` ``[..., w, d_in]``; None without J_L.
        inner: ``R = U_L^T D U_R`` ``[..., w, w]``; None without J_L.
    """
    rows = _split(right.rows, has_bias)
    if left is None:
        return outer * right.weights[..., None, :], rows
    assert across is not None
    assert inner is not None
    # With S = diag(s), c_L c_R D - V is the sum of U_L (c_R S_L P - S_L R S_R U_R^T) and (c_L Q S_R) U_R^T. Side by
    # side, the left factors are d_out x 2w and the right ones 2w x d_in: one product.
    core = left.weights[..., :, None] * inner * right.weights[..., None, :]
    fade = right.scale[..., None] * left.weights
    columns = torch.cat([left.rows.mT, outer * (left.scale[..., None] * right.weights)[..., None, :]], -1)
    weight, bias = torch.cat([fade[..., None] * across.weight - core @ rows.weight, rows.weight], -2), None
    if rows.bias is not None:
        assert across.bias is not None
        bias = torch.cat([fade * across.bias - matvec(core, rows.bias), rows.bias], -1)
    return columns, Gradient(weight, bias)


def _subtract_on_host_(
    grad: Gradient, columns: Tensor, rows: Gradient, scale: float, whole: float, square: float, *, rescale: bool
) -> None:
    """Replace D by ``factor (scale D - columns rows)``; whole: ``|D|^2``, square: ``|scale D - columns rows|^2``."""
    if not math.isfinite(square):
        return
    if not rescale:
        grad.combine_(columns, rows, scale, 1.0)
    elif square > CANCELLATION * scale**2 * whole:
        factor = math.sqrt(whole / square)
        grad.combine_(columns, rows, factor * scale, factor)
    else:
        # |V|^2, as a difference of far larger numbers, has lost its digits: form V and measure it. In a copy, since D
        # must stay if V is 0.
        value = Gradient(grad.weight.clone(), None if grad.bias is None else grad.bias.clone())
        value.combine_(columns, rows, scale, 1.0)
        (square,) = _numbers(value.square_norm())
        if square > 0 and math.isfinite(factor := math.sqrt(whole / square)):
            for old, new in zip(grad.parts(), value.parts(), strict=True):
                torch.mul(new, factor, out=old)


def _subtract_on_device_(
    grad: Gradient, columns: Tensor, rows: Gradient, scale: Tensor, removed: Tensor, *, rescale: bool, grows: bool
) -> None:
    """Do as `_subtract_on_host_`, without reading a value."""
    # What is not finite in D, U or s is not finite in what they remove.
    usable = (removed + scale).isfinite()
    scale = torch.where(usable, scale, 1)
    whole = grad.square_norm() if rescale and grows else None
    combine_on_device_(grad, columns, rows, scale, usable)
    if not rescale:
        grad.multiply_(scale)
        return
    # A branch for cancellation would have to read a value, so the norm of V is always measured. That of D follows:
    # |D|^2 = |V / c|^2 + removed / c^2 with c = c_L c_R, a sum of positive terms if weights are positive.
    square = grad.square_norm()
    if whole is None:
        whole = square + torch.where(usable, removed / scale.square(), 0)
    rescale_(grad, whole, square)


def combine_on_device_(grad: Gradient, columns: Tensor, rows: Gradient, scale: Tensor, usable: Tensor) -> None:
    """Replace D by ``D - columns rows / scale``; D where not ``usable``."""
    columns = torch.where(usable[..., None, None], columns / scale[..., None, None], 0)
    rows = Gradient(
        # Both factors are 0 where D stays: 0 times a NaN in the other would be NaN.
        torch.where(usable[..., None, None], rows.weight, 0),
        None if rows.bias is None else torch.where(usable[..., None], rows.bias, 0),
    )
    grad.combine_(columns, rows, 1.0, 1.0)


def rescale_(grad: Gradient, whole: Tensor, square: Tensor) -> None:
    """Multiply V so that its square norm is ``whole`` in place of ``square``; not if the factor is not finite."""
    factor = (whole / square).sqrt()
    grad.multiply_(torch.where(factor.isfinite(), factor, 1))


def bilinear(g: Tensor, grad: Gradient, a: Tensor, cut: Cut | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``g^T D a`` over the weight's columns and over the bias's, and ``|D|^2`` over either, each ``[...]``.

    Args:
        g: ``[..., d_out]``; of a block, its rows.
        grad: D, or a block of it.
        a: ``[..., d_in]``; of a block, its columns.
        cut: the place of the block, whose bias may not count; None: all of D.
    """
    weight, bias = grad
    by_weight = dot(g, matvec(weight, a if bias is None else a[..., :-1]))
    of_weight = square_norm(weight)
    if bias is None or (cut is not None and not cut.counts_bias):
        return by_weight, torch.zeros_like(by_weight), of_weight, torch.zeros_like(of_weight)
    # Apart, since weight and bias may have different learning rates.
    return by_weight, dot(g, bias) * a[..., -1], of_weight, dot(bias, bias)


def _gram_weights(inverse: WindowedInverse) -> Tensor:
    """Return M ``[..., w, w]`` with ``J^2 = c^2 I - U M U^T``."""
    weights = inverse.weights
    # (c I - U S U^T)^2 = c^2 I - U (2 c S - S U^T U S) U^T with S = diag(s).
    crossed = weights[..., :, None] * (inverse.rows @ inverse.rows.mT) * weights[..., None, :]
    return torch.diag_embed(2 * inverse.scale[..., None] * weights) - crossed


def _trace(a: Tensor, b: Tensor) -> Tensor:
    """Return the trace of ``a b`` ``[...]``."""
    # The trace is the sum of a_ji b_ij: no product of matrices is needed.
    return (a.mT * b).sum((-2, -1))


def _split(rows: Tensor, has_bias: bool) -> Gradient:
    """Return ``U^T`` ``[..., w, d_in]`` as its columns for the weight and, if there is a bias, its last one."""
    return Gradient(rows[..., :-1], rows[..., -1]) if has_bias else Gradient(rows, None)


def _on_host(grad: Gradient) -> bool:
    """Return whether the scalars of one layer can be read without waiting."""
    return grad.weight.dim() == 2 and grad.weight.device.type == "cpu"


def _numbers(*scalars: Tensor) -> list[float]:
    """Return the values of scalars on a CPU."""
    return [float(scalar.tolist()) for scalar in scalars]  # type: ignore[arg-type]


def square_norm(matrix: Tensor) -> Tensor:
    """Return the squared Frobenius norm of M ``[..., m, n]``, as ``[...]``."""
    if matrix.dim() == 2 and matrix.is_contiguous():
        # On a CPU, vector_norm in float32 loses four digits at 16 million entries; dot does not.
        return matrix.view(-1).dot(matrix.view(-1))
    norm: Tensor = torch.linalg.vector_norm(matrix, dim=(-2, -1))
    return norm.square()


def add_product_(matrix: Tensor, columns: Tensor, rows: Tensor, scale: float = 1.0, factor: float = 1.0) -> None:
    """Set ``M <- scale M + factor columns rows`` for M ``[..., m, n]``, without a temporary of its size."""
    inner_size = columns.shape[-1]
    if inner_size == 1 and scale == 1:
        # [m, 1] and [1, n] seen as [m, n] without a copy: their product entry by entry is the outer product.
        matrix.addcmul_(columns.expand_as(matrix), rows.expand_as(matrix), value=factor)
    elif matrix.dim() == 2:
        if 1 < inner_size < LEAST_INNER and matrix.device.type == "cpu" and matrix.numel() >= LARGE:
            # Columns and rows of zeros leave the product as it is.
            unused = LEAST_INNER - inner_size
            columns, rows = F.pad(columns, (0, unused)), F.pad(rows, (0, 0, 0, unused))
        if scale != 1 and matrix.numel() >= LARGE:
            matrix.mul_(scale)  # streams the matrix into the caches, faster than the product's own scaling
            scale = 1.0
        matrix.addmm_(columns, rows, beta=scale, alpha=factor)
    else:
        matrix.baddbmm_(columns, rows, beta=scale, alpha=factor)


def few_rows_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return ``rows M`` ``[..., w, n]`` for a small w; rows: ``[..., w, m]``, M: ``[..., m, n]``."""
    columns = matrix.shape[-1]
    if matrix.dim() > 2 or matrix.device.type != "cpu" or matrix.numel() < LARGE or columns % PARTS:
        return rows @ matrix
    # [m, n] -> [PARTS, m, n / PARTS]; the product [PARTS, w, n / PARTS] -> [w, n].
    blocks = matrix.unflatten(1, (PARTS, -1)).transpose(0, 1)
    return torch.bmm(rows.expand(PARTS, *rows.shape), blocks).transpose(0, 1).flatten(1)
