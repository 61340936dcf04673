"""The eigendecomposition of a symmetric matrix, repeated in float64 where float32 fails."""

from __future__ import annotations

import torch
from torch import Tensor


def eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues ``[d]``, the smallest first, and the eigenvectors, columns, of a symmetric ``[d, d]``.

    On a CPU the float32 solver may return NaN for a finite matrix, or not converge; float64's is then taken.

    Raises:
        LinAlgError: float64 fails, too.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
        # Only a CPU is asked: the answer of another device would be waited for.
        failed = matrix.device.type == "cpu" and not bool((values.sum() + vectors.sum()).isfinite())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        failed = True
    if failed:
        values, vectors = (part.to(matrix.dtype) for part in torch.linalg.eigh(matrix.double()))
    return values, vectors
