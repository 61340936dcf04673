"""Symmetric factors as a few eigenpairs: their inverses, and randomized decompositions that find them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mkor_core.transfers import upload

OVERSAMPLING = 10
"""Columns of a sketch beyond the rank."""


class Pairs(NamedTuple):
    """``Q diag(values) Q^T``, an approximation of a positive semidefinite matrix ``[d, d]``."""

    basis: Tensor
    """Q ``[d, k]``, with orthonormal columns."""
    values: Tensor
    """``[k]``, none of them negative, descending."""

    def solve(self, right: Tensor, damping: Tensor, rest: Tensor) -> Tensor:
        """Return the inverse times Y ``[d, n]``: 1 / (values + damping) along Q, 1 / rest along everything else."""
        along = self.basis.T @ right
        weights = 1 / (self.values + damping) - 1 / rest
        return self.basis @ (weights[:, None] * along) + right / rest

    def divided(self, right: Tensor, share: float, faded: Tensor | None) -> Tensor:
        """Return RS-KFAC's damped inverse times Y ``[d, n]``: the share of the largest value is added to all.

        faded: the weight that a start from I would still have, which the thesis code adds too; it then takes the
        smallest kept value for all that are left out. None: those are 0.
        """
        damping = share * self.values.amax()
        if faded is None:
            return self.solve(right, damping, damping)
        return self.solve(right, damping + faded, damping + faded + self.values.amin())


def leading(matrix: Tensor, rank: int) -> Pairs:
    """Return the ``rank`` leading eigenpairs of a matrix ``[d, d]``, by a dense decomposition."""
    values, vectors = torch.linalg.eigh(matrix)
    return Pairs(vectors.flip(1)[:, :rank], values.flip(0)[:rank].clamp(min=0))


def randomized_svd(matrix: Tensor, rank: int, power: int, seed: int) -> Pairs:
    """Return the leading singular triples' right side, found by a sketch of ``rank + 10`` columns and power steps."""
    basis = _range(matrix, rank, power, seed)
    _, values, rows = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return Pairs(rows[:rank].T, values[:rank])


def randomized_eigh(matrix: Tensor, rank: int, power: int, seed: int) -> Pairs:
    """Return the leading eigenpairs of the matrix restricted to such a sketch's range ("SRE")."""
    basis = _range(matrix, rank, power, seed)
    inner = leading(basis.T @ matrix @ basis, rank)
    return Pairs(basis @ inner.basis, inner.values)


def _range(matrix: Tensor, rank: int, power: int, seed: int) -> Tensor:
    """Return an orthonormal basis of ``A^power Omega``; Omega depends on its shape and the seed alone."""
    dimension = len(matrix)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(dimension, min(rank + OVERSAMPLING, dimension), generator=generator, dtype=torch.float64)
    basis = upload(start.to(matrix.dtype), matrix.device)
    for _ in range(power):
        basis = torch.linalg.qr(matrix @ basis).Q
    return basis


def brand(pairs: Pairs, columns: Tensor, decay: float, rank: int) -> Pairs:
    """Return the leading pairs of ``decay Q diag(values) Q^T + (1 - decay) Y Y^T``, Y ``[d, n]``.

    Brand's update, O(d (k + n)^2), exact but for the crop. It forms no matrix ``[d, d]`` unless ``k + n`` is larger.
    """
    dimension, kept = pairs.basis.shape
    new = 1 - decay
    if kept + columns.shape[1] >= dimension:
        scaled = pairs.basis * pairs.values
        return leading(decay * scaled @ pairs.basis.T + new * columns @ columns.T, rank)
    inside = pairs.basis.T @ columns
    outside, triangle = torch.linalg.qr(columns - pairs.basis @ inside)
    coordinates = torch.cat([inside, triangle])
    inner = new * coordinates @ coordinates.T
    inner.diagonal()[:kept] += decay * pairs.values
    turned = leading(inner, rank)
    return Pairs(torch.cat([pairs.basis, outside], 1) @ turned.basis, turned.values)


def clipped(update: Tensor, largest_rms: float | None) -> Tensor:
    """Return V, shortened to a root mean square of at most ``largest_rms``."""
    if largest_rms is None:
        return update
    return update * (largest_rms / update.square().mean().sqrt().clamp(min=largest_rms))
