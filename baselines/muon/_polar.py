"""The polar factor of a matrix, exact or as Muon approximates it, and the scales of Muon's steps."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Polar = Literal["ns5", "exact"]
Length = Literal["jordan", "match_rms"]
"""``jordan``: times ``sqrt(max(1, m / n))``; ``match_rms``: entries get the root mean square 0.2."""

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def polar_factor(matrix: Tensor, polar: Polar) -> Tensor:
    """Return ``U V^T`` of the compact singular value decomposition of a matrix ``[m, n]``: all singular values at 1.

    polar: ``exact``; or ``ns5``, five Newton-Schulz steps, which leave singular values between 0.7 and 1.2, and
    smaller ones than 1e-3 of the norm at less (1e-4 becomes 0.05).
    """
    if polar == "ns5":
        return newton_schulz(matrix)
    u, values, vt = torch.linalg.svd(matrix, full_matrices=False)
    present = values > values[0] * max(matrix.shape) * torch.finfo(matrix.dtype).eps
    factor: Tensor = (u * present) @ vt
    return factor


def newton_schulz(matrix: Tensor, steps: int = STEPS) -> Tensor:
    """Return the matrix ``[m, n]`` after Muon's quintic iteration, ``X <- a X + (b X X^T + c (X X^T)^2) X``."""
    a, b, c = COEFFICIENTS
    norm = torch.linalg.vector_norm(matrix)
    x = matrix / torch.where(norm > 0, norm, 1)
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = x.T if is_tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def scaled(factor: Tensor, length: Length) -> Tensor:
    """Return an orthogonalized matrix ``[m, n]`` at the length of a step; see `Length`."""
    rows, columns = factor.shape
    if length == "jordan":
        result: Tensor = factor * max(1.0, rows / columns) ** 0.5
    else:
        norm = factor.norm()
        result = factor * (0.2 * (rows * columns) ** 0.5 / torch.where(norm > 0, norm, 1))
    return result
