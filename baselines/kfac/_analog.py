"""An analog device that solves linear systems by settling, simulated: coarse numbers, thermal noise, means in time."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from mkor_core.maths.linalg import joined_rows, product


def rounded(tensor: Tensor, bits: int | None) -> Tensor:
    """Return a tensor whose entries are multiples of ``max|entry| / (2^(bits - 1) - 1)``; None: the tensor itself."""
    largest = tensor.abs().amax()
    unit = torch.where(largest == 0, 1, largest) / (2 ** ((bits or 2) - 1) - 1)
    return tensor if bits is None else (tensor / unit).round() * unit


def mean_variance(values: Tensor, beta: float, duration: Tensor) -> Tensor:
    """Return the variances, along R's eigenvectors, of the stationary process' mean over a time ``duration``."""
    leading = 2 / (beta * values.square() * duration)
    return (leading * (1 + torch.expm1(-values * duration) / (values * duration))).clamp(min=0)


def drawn_mean(
    values: Tensor, vectors: Tensor, target: Tensor, beta: float, duration: Tensor, stream: Tensor
) -> Tensor:
    """Return the process' mean over a time for every column of b, drawn from its law; R's eigenpairs are given."""
    # The symmetric root of the covariance: the noise does not depend on the signs of eigenvectors.
    noise = product(vectors.T, joined_rows([gaussian(target, stream)]))
    noise.mul_(mean_variance(values, beta, duration).sqrt()[:, None])
    return product(vectors, product(vectors.T, target).div_(values[:, None]).add_(noise))


def simulated_mean(matrix: Tensor, largest: Tensor, target: Tensor, beta: float, steps: int, stream: Tensor) -> Tensor:
    """Return the mean of ``steps`` Euler-Maruyama steps of ``0.1 / lambda_max``, after as many, from b / lambda_max."""
    dt = 0.1 / largest
    x, total = target / largest, torch.zeros_like(target)
    for step in range(2 * steps):
        x = x - dt * (matrix @ x - target) + (2 * dt / beta).sqrt() * gaussian(target, stream + step)
        total = total + x if step >= steps else total
    return total / steps


def gaussian(like: Tensor, stream: Tensor) -> Tensor:
    """Return normal numbers of a tensor's shape and dtype that depend on an integer scalar alone.

    The scalar stays on its device: the host does not wait for it, as it would to seed a generator.
    """
    bits = _mixed(torch.arange(2 * like.numel(), device=like.device) + _mixed(stream))
    first, second = ((bits >> 11) & (2**53 - 1)).to(torch.float64).mul(2.0**-53).view(2, *like.shape)
    return ((-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * pi * second)).to(like.dtype)


def _mixed(counter: Tensor) -> Tensor:
    """Return 64 random bits for each integer (splitmix64; Steele et al., OOPSLA 2014)."""
    bits = (counter + 1) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        bits = (bits ^ ((bits >> shift) & (2 ** (64 - shift) - 1))) * factor
    return bits
