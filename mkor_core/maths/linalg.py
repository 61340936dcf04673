"""Products, norms and low-rank approximations of matrices, of one layer or of a stack of layers.

Leading dimensions, written as ``...``, number the layers of a stack. No function reads a value back to the host. Those
whose name ends in ``_`` change their first argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from mkor_core.devices import aligned


def identity(d: int, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()) -> Tensor:
    """Return identity matrices ``[..., d, d]`` with aligned rows; leading: the ``...``."""
    matrix = aligned((*leading, d, d), dtype, device)
    matrix.diagonal(dim1=-2, dim2=-1).fill_(1)
    return matrix


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a b`` with aligned rows, of matrices ``[m, k]`` and ``[k, n]``."""
    return torch.mm(a, b, out=aligned((len(a), b.shape[1]), a.dtype, a.device, torch.empty))


def entrywise(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a * b`` with aligned rows, of a's shape; b is broadcast to it. ``a * b`` itself has no room for them."""
    return torch.mul(a, b, out=aligned(a.shape, a.dtype, a.device, torch.empty))


def joined_rows(matrices: Sequence[Tensor]) -> Tensor:
    """Return matrices ``[n, d]`` of one width and dtype, one below the other, with aligned rows."""
    first, rows = matrices[0], sum(map(len, matrices))
    return torch.cat([*matrices], out=aligned((rows, first.shape[1]), first.dtype, first.device, torch.empty))


def rescale(update: Tensor, grad: Tensor) -> Tensor:
    """Return V with the Frobenius norm of D, ``V ||D||_F / ||V||_F``; D itself for a zero or non-finite V (A5)."""
    norm = torch.linalg.vector_norm(update)
    # Not an if, for which the host would wait. Both arguments of where() are computed: for V = 0 the first is NaN,
    # and where() does not take it.
    usable = torch.isfinite(norm) & (norm > 0)
    return torch.where(usable, update * (torch.linalg.vector_norm(grad) / norm), grad)


def finite_or_gradient(update: Tensor, grad: Tensor) -> Tensor:
    """Return V, or D for a V that is not finite."""
    return torch.where(torch.linalg.vector_norm(update).isfinite(), update, grad)


def window_gram(rows: Tensor, weights: Tensor) -> Tensor:
    """Return ``A^T A`` ``[..., w, w]`` in float64, ``A = U |s|^(1/2)``; rows: ``U^T`` ``[..., w, d]``, weights: s."""
    scaled = entrywise(rows, weights.abs().sqrt()[..., None])
    # A^T A [w, w] has the nonzero eigenvalues of A A^T [d, d], and [32, 32] is faster to decompose than [1024, 1024].
    return (scaled @ scaled.mT).to(torch.float64)


def truncated(
    rows: Tensor, weights: Tensor, values: Tensor, vectors: Tensor, rank: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the best approximation of rank ``rank`` of ``U diag(s) U^T``, and the largest eigenvalue that it drops.

    With ``rank >= d`` it is exact, and a multiple of I is taken out of it: ``U diag(s) U^T - m I`` for the eigenvalue m
    that is the nearest to 0.

    The eigenpairs (lambda, q) of `window_gram` give those of ``A A^T``: lambda and ``A q lambda^(-1/2)``.

    Args:
        rows: ``U^T`` ``[..., w, d]``.
        weights: s ``[..., w]``, all of one sign.
        values: the gram matrix's eigenvalues ``[..., w]``, ascending.
        vectors: its eigenvectors ``[..., w, w]``.
        rank: r, less than w.

    Returns:
        New rows ``[..., w, d]`` and weights ``[..., w]``, of which all but the first r are 0, the magnitude of the
        (r + 1)-th eigenvalue ``[...]``, and m ``[...]``; None for ``rank < d``. O(r w d).
    """
    unused = weights.shape[-1] - rank
    scaled = entrywise(rows, weights.abs().sqrt()[..., None])
    # Ascending, so the last `rank` are the largest. Rounding gives an eigenvalue of 0 some small value of either sign,
    # and 1 / its root would make a row of it that float16 cannot hold.
    noise = torch.finfo(scaled.dtype).eps * weights.shape[-1] * values[..., -1:]
    kept, basis = values[..., unused:], vectors[..., :, unused:]
    kept = torch.where(kept > noise, kept, 0)
    # rsqrt(inf) = 0: what has no eigenvalue becomes a row of zeros, not of NaN.
    root = torch.where(kept > 0, kept, torch.inf).rsqrt()
    # The row of an eigenpair is lambda^(-1/2) q^T A^T: [rank, w] times [w, d].
    pairs = aligned((*basis.shape[:-2], rank, basis.shape[-2]), rows.dtype, rows.device, torch.empty)
    new_rows = pairs.copy_((basis * root[..., None, :]).mT) @ scaled
    common = None
    negative = weights.sum(-1, keepdim=True) < 0
    if (beyond := rank - rows.shape[-1]) >= 0:
        # d of the rows span everything, and the eigenvalues beyond the d largest are rounding errors.
        least = kept[..., beyond : beyond + 1]
        common = torch.where(negative, -least, least)[..., 0].to(weights.dtype)
        kept = (kept - least).clamp(min=0)
    new_weights = torch.where(negative, -kept, kept).to(weights.dtype)
    dropped = values[..., unused - 1].clamp(min=0).to(weights.dtype)
    return F.pad(new_rows, (0, 0, 0, unused)), F.pad(new_weights, (0, unused)), dropped, common


@lru_cache(maxsize=64)
def test_matrix(dimension: int, width: int, step: int) -> Tensor:
    """Return the range finder's orthonormal random matrix Omega ``[d, width]`` in float64 on the CPU.

    It depends only on its shape and the step, so that the sketches of all ranks and micro-batches add up. It is drawn
    on the CPU in float64 to be the same for every device.
    """
    # Callers share the cached matrix, so they must not change it.
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
    # With B = Y root, the approximation is B B^T: B's left singular vectors are its eigenvectors, the squares of B's
    # singular values its eigenvalues.
    vectors, singular, _ = torch.linalg.svd(shifted @ root, full_matrices=False)
    energies = (singular.square() - shift).clamp(min=0)
    directions = torch.where(finite, vectors[:, :rank] * energies[:rank].sqrt(), torch.nan)
    return F.pad(directions, (0, rank - directions.shape[1]))
