"""The tensor maths of MKOR as pure functions: weights of rank-1 updates, stabilizer, norms, leading directions.

A1 to A5 are the equations of `mkor_core.mkor.MKOR`. J ``[..., d, d]`` is the inverse of a layer's Kronecker factor,
symmetric and positive definite; v ``[..., d]`` is the update vector; ``decay`` is gamma, the weight of the old value.
Leading dimensions, written as ``...``, number the layers of a stack. No function reads a value back to the host. Those
whose name ends in ``_`` change their first argument.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_INNER = 16
"""A CPU's product of a smaller inner size takes twice as long as one that is padded to this with zeros (MKL 2024.2)."""
LARGE = 2**18
"""Entries of a matrix for which that, and how a product is divided among threads, matters."""
PARTS = 4
"""Blocks of columns into which a product of few rows is divided, because a CPU's library uses one thread for it."""


def published_weight(quadratic: Tensor, decay: float) -> Tensor:
    """Return the weight of ``+(J v)(J v)^T`` in A2, for ``quadratic = v^T J v``; NaN if that has overflowed.

    Along a persistent mean this rule doubles J at every update in spite of the stabilizer. Without the NaN an infinite
    ``v^T J v`` would give a weight of 0: the update would be dropped silently.
    """
    weight = (1 - decay) / (decay**2 * (1 + decay * (1 - decay) * quadratic))
    return torch.where(quadratic.isfinite(), _zero_unless_positive(weight, quadratic), torch.nan)


def sherman_morrison_weight(quadratic: Tensor, decay: float) -> Tensor:
    """Return the weight of ``-(J v)(J v)^T`` in A3, for ``quadratic = v^T J v``."""
    gain = (1 - decay) / decay
    return _zero_unless_positive(gain / decay / (1 + gain * quadratic), quadratic)


def addition_weight(quadratic: Tensor, weight: float) -> Tensor:
    """Return the weight of ``-(J v)(J v)^T`` in the inverse of ``J^-1 + weight v v^T``, for ``quadratic = v^T J v``."""
    return _zero_unless_positive(weight / (1 + weight * quadratic), quadratic)


def _zero_unless_positive(weight: Tensor, quadratic: Tensor) -> Tensor:
    """Return the weight; 0 where rounding has made ``v^T J v``, and so J, not positive."""
    return torch.where(quadratic > 0, weight, 0)


def stabilizer_weight(diagonal: Tensor, threshold: float, blend: float) -> Tensor:
    """Return J's weight ``[...]`` in its blend with the identity: ``blend`` where the stabilizer acts, else 1 (A1).

    J is positive definite, so its largest entry lies on its diagonal ``[..., d]``. The stabilizer also acts when a
    diagonal entry is not positive. Only half-precision rounding causes that; left alone the entry grows without bound.
    """
    acts = (diagonal.amax(-1) > threshold) | (diagonal.amin(-1) <= 0)
    return 1 - (1 - blend) * acts.to(diagonal.dtype)


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return ``M v`` ``[..., m]`` for M ``[..., m, n]`` and v ``[..., n]``."""
    if matrix.dim() == 2:
        return matrix @ vector
    if matrix.device.type == "cpu":
        # A batched product of one column is several times slower than products with a vector.
        return torch.stack([m @ v for m, v in zip(matrix, vector, strict=True)])
    return (matrix @ vector[..., None])[..., 0]


def few_rows_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return ``rows M`` ``[..., w, n]`` for a small w; rows: ``[..., w, m]``, M: ``[..., m, n]``."""
    columns = matrix.shape[-1]
    if matrix.dim() > 2 or matrix.device.type != "cpu" or matrix.numel() < LARGE or columns % PARTS:
        return rows @ matrix
    blocks = matrix.unflatten(1, (PARTS, -1)).transpose(0, 1)
    return torch.bmm(rows.expand(PARTS, *rows.shape), blocks).transpose(0, 1).flatten(1)


def add_outer_(matrix: Tensor, vector: Tensor, sign: int) -> None:
    """Add ``sign v v^T`` to M ``[..., d, d]`` in place, without a temporary; exactly symmetric if M is."""
    if matrix.dim() == 2:
        matrix.addr_(vector, vector, alpha=sign)
    elif matrix.device.type == "cpu":
        for m, v in zip(matrix, vector, strict=True):
            m.addr_(v, v, alpha=sign)
    else:
        matrix.addcmul_(vector[..., :, None], vector[..., None, :], value=sign)


def add_product_(matrix: Tensor, columns: Tensor, rows: Tensor, scale: float = 1.0, factor: float = 1.0) -> None:
    """Set ``M <- scale M + factor columns rows`` for M ``[..., m, n]``, without a temporary of its size."""
    inner_size = columns.shape[-1]
    if inner_size == 1 and scale == 1:
        matrix.addcmul_(columns.expand_as(matrix), rows.expand_as(matrix), value=factor)
    elif matrix.dim() == 2:
        if 1 < inner_size < LEAST_INNER and matrix.device.type == "cpu" and matrix.numel() >= LARGE:
            unused = LEAST_INNER - inner_size
            columns, rows = F.pad(columns, (0, unused)), F.pad(rows, (0, 0, 0, unused))
        if scale != 1 and matrix.numel() >= LARGE:
            matrix.mul_(scale)  # streams the matrix into the caches, faster than the product's own scaling
            scale = 1.0
        matrix.addmm_(columns, rows, beta=scale, alpha=factor)
    else:
        matrix.baddbmm_(columns, rows, beta=scale, alpha=factor)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return ``sum(a * b)`` over the last dimension."""
    return torch.dot(a, b) if a.dim() == 1 else (a * b).sum(-1)


def square_norm(matrix: Tensor) -> Tensor:
    """Return the squared Frobenius norm of M ``[..., m, n]``, as ``[...]``."""
    if matrix.dim() == 2 and matrix.is_contiguous():
        # On a CPU, vector_norm in float32 loses four digits at 16 million entries; dot does not.
        return matrix.view(-1).dot(matrix.view(-1))
    norm: Tensor = torch.linalg.vector_norm(matrix, dim=(-2, -1))
    return norm.square()


def rescale(update: Tensor, grad: Tensor) -> Tensor:
    """Return V with the Frobenius norm of D, ``V ||D||_F / ||V||_F``; D itself for a zero or non-finite V (A5)."""
    norm = torch.linalg.vector_norm(update)
    usable = torch.isfinite(norm) & (norm > 0)
    return torch.where(usable, update * (torch.linalg.vector_norm(grad) / norm), grad)


def finite_or_gradient(update: Tensor, grad: Tensor) -> Tensor:
    """Return V, or D for a V that is not finite."""
    return torch.where(torch.linalg.vector_norm(update).isfinite(), update, grad)


def window_gram(rows: Tensor, weights: Tensor) -> Tensor:
    """Return ``A^T A`` ``[..., w, w]`` in float64, ``A = U |s|^(1/2)``; rows: ``U^T`` ``[..., w, d]``, weights: s."""
    scaled = rows * weights.abs().sqrt()[..., None]
    return (scaled @ scaled.mT).to(torch.float64)


def truncated(
    rows: Tensor, weights: Tensor, values: Tensor, vectors: Tensor, rank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best approximation of rank ``rank`` of ``U diag(s) U^T``, and the largest eigenvalue that it drops.

    The eigenpairs (lambda, q) of `window_gram` give those of ``A A^T``: lambda and ``A q lambda^(-1/2)``.

    Args:
        rows: ``U^T`` ``[..., w, d]``.
        weights: s ``[..., w]``, all of one sign.
        values: the gram matrix's eigenvalues ``[..., w]``, ascending.
        vectors: its eigenvectors ``[..., w, w]``.
        rank: r, less than w.

    Returns:
        New rows ``[..., w, d]`` and weights ``[..., w]``, of which all but the first r are 0, and the magnitude of the
        (r + 1)-th eigenvalue ``[...]``. O(r w d).
    """
    unused = weights.shape[-1] - rank
    scaled = rows * weights.abs().sqrt()[..., None]
    kept, basis = values[..., unused:].clamp(min=0), vectors[..., :, unused:]
    root = torch.where(kept > 0, kept, torch.inf).rsqrt()
    new_rows = (basis * root[..., None, :]).mT.to(rows.dtype) @ scaled
    new_weights = torch.where(weights.sum(-1, keepdim=True) < 0, -kept, kept).to(weights.dtype)
    dropped = values[..., unused - 1].clamp(min=0).to(weights.dtype)
    return F.pad(new_rows, (0, 0, 0, unused)), F.pad(new_weights, (0, unused)), dropped


@lru_cache(maxsize=64)
def test_matrix(dimension: int, width: int, step: int) -> Tensor:
    """Return the range finder's orthonormal random matrix Omega ``[d, width]`` in float64 on the CPU.

    It depends only on its shape and the step, so that the sketches of all ranks and micro-batches add up. It is drawn
    on the CPU in float64 to be the same for every device.
    """
    generator = torch.Generator().manual_seed(step)
    matrix = torch.randn(dimension, width, generator=generator, dtype=torch.float64)
    orthonormal: Tensor = torch.linalg.qr(matrix).Q
    return orthonormal


def leading_directions(moment_sketch: Tensor, test: Tensor, rank: int) -> Tensor:
    """Return V ``[d, rank]`` such that ``V V^T`` is close to the best rank-``rank`` approximation of a moment C.

    The Nystrom approximation ``Y (Omega^T Y)^+ Y^T`` of C is symmetric positive semi-definite; V holds its leading
    eigenvectors, scaled by the square roots of their eigenvalues. No ``[d, d]`` matrix is formed. Columns beyond d are
    zero; a sketch that is not finite gives NaN.

    Args:
        moment_sketch: ``Y = C Omega`` ``[d, k]``. It is a sum over rows, so micro-batches and ranks add up; it costs
            O(n d k) for n rows.
        test: omega ``[d, k]``, ``k >= rank`` random columns.
        rank: the number of directions.
    """
    # eigh and svd raise for a NaN. A loss scaler may yet skip this step, so it must not raise: compute with the
    # sketch of the identity and return NaN.
    finite = moment_sketch.isfinite().all()
    moment_sketch = torch.where(finite, moment_sketch, test)
    # Shift C by a tiny multiple of I and take it off the eigenvalues at the end: Omega^T Y may be singular.
    shift = torch.finfo(moment_sketch.dtype).eps * torch.linalg.matrix_norm(moment_sketch)
    shifted = moment_sketch + shift * test
    core = test.T @ shifted
    values, basis = torch.linalg.eigh((core + core.T) / 2)
    root = basis * torch.where(values > shift, values, torch.inf).rsqrt()
    vectors, singular, _ = torch.linalg.svd(shifted @ root, full_matrices=False)
    energies = (singular.square() - shift).clamp(min=0)
    directions = torch.where(finite, vectors[:, :rank] * energies[:rank].sqrt(), torch.nan)
    return F.pad(directions, (0, rank - directions.shape[1]))
