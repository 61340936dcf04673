"""Pure tensor maths of MKOR: rank-1 updates of an inverse factor, their stabiliser, and preconditioning.

Notation of ALGORITHMS.md: ``inverse`` is J, the inverse of a layer's Kronecker factor, ``[d, d]``, symmetric and
starting at the identity; ``vector`` is a mean vector v, ``[d]``; ``decay`` is the weight kept by the old value.
Every function returns new tensors and leaves its arguments alone; none reads a value back to the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def _minus_outer(matrix: Tensor, vector: Tensor, weight: Tensor) -> Tensor:
    """Return ``matrix - weight vector vector^T`` for ``weight >= 0``, symmetric to the last bit if ``matrix`` is."""
    scaled = vector * weight.sqrt()
    return torch.addr(matrix, scaled, scaled, alpha=-1)


def published(inverse: Tensor, vector: Tensor, decay: float) -> Tensor:
    """Update J as MKOR's Algorithm 1 (lines 7-8) and Lemma 3.1 print it (A2).

    ``gamma J + (1 - gamma) / (gamma^2 (1 + gamma (1 - gamma) v^T J v)) (J v)(J v)^T``. It ADDS the rank-1 term, so it
    is not the inverse of any average of J's inverse and ``v v^T``; `sherman_morrison` is. O(d^2).
    """
    projected = inverse @ vector
    scaled = projected * _published_weight(vector.dot(projected), decay).sqrt()
    return torch.addr(inverse, scaled, scaled, beta=decay)


def _published_weight(quadratic: Tensor, decay: float) -> Tensor:
    # Along a persistent mean this rule doubles J an update in spite of the stabiliser. An overflow stays visible, as
    # NaN: 1 / inf would drop the update without a word.
    weight = (1 - decay) / (decay**2 * (1 + decay * (1 - decay) * quadratic))
    return torch.where(quadratic.isfinite(), _rank_one_weight(quadratic, weight), torch.nan)


def sherman_morrison(inverse: Tensor, vector: Tensor, decay: float) -> Tensor:
    """Return the exact inverse of ``gamma J^-1 + (1 - gamma) v v^T`` by the Sherman-Morrison formula (A3). O(d^2)."""
    projected = inverse @ vector
    return _minus_outer(inverse / decay, projected, _sherman_morrison_weight(vector.dot(projected), decay))


def _sherman_morrison_weight(quadratic: Tensor, decay: float) -> Tensor:
    gain = (1 - decay) / decay
    return _rank_one_weight(quadratic, gain / decay / (1 + gain * quadratic))


def sherman_morrison_add(inverse: Tensor, vector: Tensor, weight: float) -> Tensor:
    """Return the exact inverse of ``J^-1 + weight v v^T``: a further rank of an update, with no decay. O(d^2)."""
    projected = inverse @ vector
    return _minus_outer(inverse, projected, _addition_weight(vector.dot(projected), weight))


def _addition_weight(quadratic: Tensor, weight: float) -> Tensor:
    return _rank_one_weight(quadratic, weight / (1 + weight * quadratic))


def released(inverse: Tensor, vector: Tensor, decay: float) -> Tensor:
    """Return ``(J'^-1 + v v^T)^-1``, ``J' = beta J + (1 - beta) I``: the rule of MKOR's released code (A4). O(d^2)."""
    blended = blend_with_identity(inverse, torch.as_tensor(decay, dtype=inverse.dtype, device=inverse.device))
    projected = blended @ vector
    return _minus_outer(blended, projected, _addition_weight(vector.dot(projected), 1.0))


def blend_with_identity(matrix: Tensor, weight: Tensor) -> Tensor:
    """Return ``weight M + (1 - weight) I``; matrix: ``[d, d]``, weight: scalar tensor."""
    blended = matrix * weight
    blended.diagonal().add_(1 - weight)
    return blended


def largest_entry(inverse: Tensor) -> Tensor:
    """Return ``||J||_inf``, the largest entry in magnitude of a positive definite J, in O(d).

    A positive definite matrix has its largest entry on its diagonal, so the other entries need no look.
    """
    return inverse.diagonal().amax()


def stabilize(inverse: Tensor, threshold: float, blend: float) -> Tensor:
    """Blend J with the identity, ``zeta J + (1 - zeta) I``, where its largest entry exceeds ``threshold`` (A1).

    So it does where a diagonal entry is not positive: only rounding makes one, in half precision, and left alone it
    would grow without end.
    """
    return blend_with_identity(inverse, _blend_weight(inverse.diagonal(), threshold, blend))


def _blend_weight(diagonal: Tensor, threshold: float, blend: float) -> Tensor:
    trips = (diagonal.amax() > threshold) | (diagonal.amin() <= 0)
    return 1 - (1 - blend) * trips.to(diagonal.dtype)


def _rank_one_weight(quadratic: Tensor, weight: Tensor) -> Tensor:
    """Return the weight of ``(J v)(J v)^T``; none where rounding took ``v^T J v``, and so J, below zero."""
    return torch.where(quadratic > 0, weight, 0)


def precondition(left: Tensor, grad: Tensor, right: Tensor) -> Tensor:
    """Return ``J_L D J_R``; left: ``[d_out, d_out]``, grad D: ``[d_out, d_in]``, right: ``[d_in, d_in]``.

    Equal to ``(J_R (x) J_L) vec(D)`` with column-stacking ``vec``. O(d_out d_in (d_out + d_in)).
    """
    return left @ grad @ right


def rescale(update: Tensor, grad: Tensor) -> Tensor:
    """Give V the Frobenius norm of D: ``V ||D||_F / ||V||_F``; a zero or non-finite V gives D back (A5)."""
    norm = torch.linalg.vector_norm(update)
    usable = torch.isfinite(norm) & (norm > 0)
    ratio = torch.linalg.vector_norm(grad) / torch.where(usable, norm, 1)
    return torch.where(usable, update * ratio, grad)


class WindowedInverse(NamedTuple):
    """``J = c I - U diag(s) U^T``: an inverse factor kept as its last w update vectors ("Windowed factors").

    scale c: scalar; columns U: ``[d, w]``; weights s: ``[w]``; position: int64 scalar, the number of updates so far.
    Columns are overwritten in turn, oldest first. Memory O(w d) in place of d^2.
    """

    scale: Tensor
    columns: Tensor
    weights: Tensor
    position: Tensor


def windowed_identity(dimension: int, window: int, dtype: torch.dtype, device: torch.device) -> WindowedInverse:
    """Return J = I with room for ``window`` columns."""
    return WindowedInverse(
        torch.ones((), dtype=dtype, device=device),
        torch.zeros(dimension, window, dtype=dtype, device=device),
        torch.zeros(window, dtype=dtype, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )


def windowed_matmul(inverse: WindowedInverse, other: Tensor) -> Tensor:
    """Return ``J M``; other: ``[d]`` or ``[d, m]``. O(w d m)."""
    weights = inverse.weights if other.dim() == 1 else inverse.weights[:, None]
    return inverse.scale * other - inverse.columns @ (weights * (inverse.columns.T @ other))


def windowed_largest_entry(inverse: WindowedInverse) -> Tensor:
    """Return the largest diagonal entry of J, ``max_i c - sum_k s_k U_ik^2``. O(w d)."""
    return _windowed_diagonal(inverse).amax()


def _windowed_diagonal(inverse: WindowedInverse) -> Tensor:
    return inverse.scale - inverse.columns.square() @ inverse.weights


def windowed_stabilize(inverse: WindowedInverse, threshold: float, blend: float) -> WindowedInverse:
    """`stabilize` for a windowed factor: ``c <- zeta c + 1 - zeta``, ``s <- zeta s`` where an entry is too big."""
    return _windowed_blend(inverse, _blend_weight(_windowed_diagonal(inverse), threshold, blend))


def _windowed_blend(inverse: WindowedInverse, weight: Tensor | float) -> WindowedInverse:
    return inverse._replace(scale=weight * inverse.scale + (1 - weight), weights=weight * inverse.weights)


def _append(inverse: WindowedInverse, column: Tensor, weight: Tensor) -> WindowedInverse:
    slot = torch.arange(inverse.weights.numel(), device=column.device) == inverse.position % inverse.weights.numel()
    return inverse._replace(
        columns=torch.where(slot, column[:, None], inverse.columns),
        weights=torch.where(slot, weight, inverse.weights),
        position=inverse.position + 1,
    )


def windowed_published(inverse: WindowedInverse, vector: Tensor, decay: float) -> WindowedInverse:
    """`published` (A2) for a windowed factor: the new weight is negative. O(w d)."""
    projected = windowed_matmul(inverse, vector)
    faded = inverse._replace(scale=decay * inverse.scale, weights=decay * inverse.weights)
    return _append(faded, projected, -_published_weight(vector.dot(projected), decay))


def windowed_sherman_morrison(inverse: WindowedInverse, vector: Tensor, decay: float) -> WindowedInverse:
    """`sherman_morrison` (A3) for a windowed factor. O(w d)."""
    projected = windowed_matmul(inverse, vector)
    faded = inverse._replace(scale=inverse.scale / decay, weights=inverse.weights / decay)
    return _append(faded, projected, _sherman_morrison_weight(vector.dot(projected), decay))


def windowed_sherman_morrison_add(inverse: WindowedInverse, vector: Tensor, weight: float) -> WindowedInverse:
    """`sherman_morrison_add` for a windowed factor. O(w d)."""
    projected = windowed_matmul(inverse, vector)
    return _append(inverse, projected, _addition_weight(vector.dot(projected), weight))


def windowed_released(inverse: WindowedInverse, vector: Tensor, decay: float) -> WindowedInverse:
    """`released` (A4) for a windowed factor. O(w d)."""
    blended = _windowed_blend(inverse, decay)
    projected = windowed_matmul(blended, vector)
    return _append(blended, projected, _addition_weight(vector.dot(projected), 1.0))


def leading_directions(moment_sketch: Tensor, test: Tensor, rank: int) -> Tensor:
    """Return ``V [d, rank]``, ``V V^T`` close to the best rank-``rank`` part of a moment C, by one pass over its rows.

    test Omega: ``[d, k]`` with ``k >= rank`` random columns; moment_sketch: ``C Omega [d, k]``, which is a sum over
    rows (and so over ranks and micro-batches) and costs O(n d k) without forming C. The Nystrom approximation
    ``Y (Omega^T Y)^+ Y^T`` is symmetric positive semi-definite; its leading eigenpairs, scaled by the roots of their
    eigenvalues, are the columns: zero beyond d, NaN for a sketch that is not finite. No ``[d, d]`` matrix is formed and
    no SVD of one is taken.
    """
    # Decompositions refuse what is not finite; a step that may yet be skipped must get past them.
    finite = moment_sketch.isfinite().all()
    moment_sketch = torch.where(finite, moment_sketch, 0)
    shift = torch.finfo(moment_sketch.dtype).eps * torch.linalg.matrix_norm(moment_sketch)
    shifted = moment_sketch + shift * test
    core = test.T @ shifted
    values, basis = torch.linalg.eigh((core + core.T) / 2)
    root = basis * torch.where(values > shift, values, torch.inf).rsqrt()
    vectors, singular, _ = torch.linalg.svd(shifted @ root, full_matrices=False)
    energies = (singular.square() - shift).clamp(min=0)
    directions = torch.where(finite, vectors[:, :rank] * energies[:rank].sqrt(), torch.nan)
    return torch.nn.functional.pad(directions, (0, rank - directions.shape[1]))
