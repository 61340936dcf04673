"""The tensor maths of MKOR as pure functions: rank-1 updates of an inverse factor, stabilizer, rescaling.

Notation of ALGORITHMS.md: ``inverse`` is J ``[d, d]``, the inverse of a layer's Kronecker factor, symmetric and
positive definite; ``vector`` is the update vector v ``[d]``; ``decay`` is gamma, the weight of the old value.
Every function returns new tensors, leaves its arguments unchanged and never reads a value back to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor


def published(inverse: Tensor, vector: Tensor, decay: float) -> Tensor:
    """Update J as MKOR's Algorithm 1 (lines 7-8) and Lemma 3.1 print it (A2).

    ``gamma J + (1 - gamma) / (gamma^2 (1 + gamma (1 - gamma) v^T J v)) (J v)(J v)^T``. The rank-1 term is ADDED, so the
    result is not the inverse of any average of J's inverse and ``v v^T``; `sherman_morrison` gives that. O(d^2).
    """
    projected = inverse @ vector
    scaled = projected * published_weight(vector.dot(projected), decay).sqrt()
    return torch.addr(inverse, scaled, scaled, beta=decay)


def sherman_morrison(inverse: Tensor, vector: Tensor, decay: float) -> Tensor:
    """Return the exact inverse of ``gamma J^-1 + (1 - gamma) v v^T`` by the Sherman-Morrison formula (A3). O(d^2)."""
    projected = inverse @ vector
    return _minus_outer(inverse / decay, projected, sherman_morrison_weight(vector.dot(projected), decay))


def sherman_morrison_add(inverse: Tensor, vector: Tensor, weight: float) -> Tensor:
    """Return the exact inverse of ``J^-1 + weight v v^T``: a further rank of an update, without decay. O(d^2)."""
    projected = inverse @ vector
    return _minus_outer(inverse, projected, addition_weight(vector.dot(projected), weight))


def released(inverse: Tensor, vector: Tensor, decay: float) -> Tensor:
    """Return ``(J'^-1 + v v^T)^-1``, ``J' = beta J + (1 - beta) I``: the rule of MKOR's released code (A4). O(d^2)."""
    blended = blend_with_identity(inverse, torch.as_tensor(decay, dtype=inverse.dtype, device=inverse.device))
    projected = blended @ vector
    return _minus_outer(blended, projected, addition_weight(vector.dot(projected), 1.0))


def _minus_outer(matrix: Tensor, vector: Tensor, weight: Tensor) -> Tensor:
    """Return ``matrix - weight vector vector^T`` for ``weight >= 0``, exactly symmetric if ``matrix`` is."""
    # With the root of the weight in both factors, entries [i, k] and [k, i] are products of the same two numbers.
    scaled = vector * weight.sqrt()
    return torch.addr(matrix, scaled, scaled, alpha=-1)


def published_weight(quadratic: Tensor, decay: float) -> Tensor:
    """Return the weight of ``(J v)(J v)^T`` in A2, for ``quadratic = v^T J v``; NaN if that has overflowed.

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


def blend_with_identity(matrix: Tensor, weight: Tensor) -> Tensor:
    """Return ``weight M + (1 - weight) I``; matrix: ``[d, d]``, weight: scalar tensor."""
    blended = matrix * weight
    blended.diagonal().add_(1 - weight)
    return blended


def stabilize(inverse: Tensor, threshold: float, blend: float) -> Tensor:
    """Return ``zeta J + (1 - zeta) I`` if J's largest entry exceeds ``threshold``, else J (A1); zeta is ``blend``."""
    return blend_with_identity(inverse, stabilizer_weight(inverse.diagonal(), threshold, blend))


def stabilizer_weight(diagonal: Tensor, threshold: float, blend: float) -> Tensor:
    """Return J's weight in its blend with the identity: ``blend`` where the stabilizer acts, else 1 (A1). O(d).

    J is positive definite, so its largest entry lies on its diagonal ``[d]``. The stabilizer also acts when a diagonal
    entry is not positive. Only half-precision rounding causes that; left alone the entry grows without bound.
    """
    acts = (diagonal.amax() > threshold) | (diagonal.amin() <= 0)
    return 1 - (1 - blend) * acts.to(diagonal.dtype)


def rescale(update: Tensor, grad: Tensor) -> Tensor:
    """Return V with the Frobenius norm of D, ``V ||D||_F / ||V||_F``; D itself for a zero or non-finite V (A5)."""
    norm = torch.linalg.vector_norm(update)
    usable = torch.isfinite(norm) & (norm > 0)
    return torch.where(usable, update * (torch.linalg.vector_norm(grad) / norm), grad)


def finite_or_gradient(update: Tensor, grad: Tensor) -> Tensor:
    """Return V, or D for a V that is not finite."""
    return torch.where(torch.linalg.vector_norm(update).isfinite(), update, grad)


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
    return torch.nn.functional.pad(directions, (0, rank - directions.shape[1]))
