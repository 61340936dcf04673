"""KL clipping: one factor that bounds the updates of all layers together (as in kfac-pytorch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mkor_core.devices import upload
from mkor_core.maths.linalg import finite_or_gradient
from mkor_core.method import LearningRate

TermsOfAll = Callable[[Sequence[Tensor]], list[Tensor]]
"""Returns scalars with the sum of the terms of all ranks, given those of this rank's layers."""


class Update(NamedTuple):
    """One layer's update, before it is clipped."""

    grad: Tensor
    """The gradient D, ``[d_out, d_in]``."""
    value: Tensor
    """The update V, ``[d_out, d_in]``."""
    lr: LearningRate
    has_statistics: Tensor | bool = True
    """Whether the layer has statistics, which only the device may know. Where not, `value` is `grad`, and stays so."""


def finished(updates: Sequence[Update], clip: float | None, terms_of_all: TermsOfAll = list) -> list[Tensor]:
    """Return the final updates of all layers: clipped together if there is a bound; D for one that is not finite."""
    if clip is not None:
        return kl_clipped(updates, clip, terms_of_all)
    return [finite_or_gradient(update.value, update.grad) for update in updates]


def kl_clipped(updates: Sequence[Update], bound: float, terms_of_all: TermsOfAll = list) -> list[Tensor]:
    """Return the updates times `clip_factor`; layers without statistics, or whose term is not finite, get D.

    Raises:
        ValueError: a layer's learning rate is unknown.
    """
    takes_part: list[Tensor] = []
    terms: list[Tensor] = []
    for update in updates:
        # lr is a tensor [d_in] if weight and bias have different rates.
        term = (update.value * update.grad * known(update.lr) ** 2).sum()
        # One infinite term would make the factor 0, and a NaN would make it NaN, for all layers. The decision stays on
        # the device, so that the host does not wait.
        takes_part.append(term.isfinite() & update.has_statistics)
        terms.append(torch.where(takes_part[-1], term, 0))
    # A collective call where layers have owners: a rank that owns no layer with a gradient makes it, too.
    if not (terms := terms_of_all(terms)):
        return []
    nu = clip_factor(terms, bound)
    return [
        torch.where(clips, update.value * nu.to(update.value.device), update.grad)
        for clips, update in zip(takes_part, updates, strict=True)
    ]


def clip_factor(terms: Sequence[Tensor], kl_clip: float) -> Tensor:
    """Return ``nu = min(1, sqrt(kl_clip / |total|))`` for the sum of scalar terms ``sum(V * D) lr^2``; 1 if it is 0."""
    # Layers may be on different devices.
    total = torch.stack([term.to(terms[0].device) for term in terms]).sum()
    # For V = F^-1 D with the Fisher matrix F, the total is (lr V)^T F (lr V): about twice the KL divergence that the
    # step causes. With kl_clip = 0.001 and a total of 0.1, nu = 0.1: every update gets a tenth of its length.
    return torch.where(total == 0, 1, (kl_clip / total.abs()).sqrt().clamp(max=1))


def split_rates(rates: Sequence[LearningRate], like: Tensor) -> tuple[Tensor | float, Tensor | float]:
    """Return the learning rates of layers' weights and of their biases: numbers if all are equal, else like ``like``.

    Raises:
        ValueError: a rate is unknown.
    """
    # A rate [d_in] has that of the weight in all columns but the last, which is the bias's.
    pairs = [
        (rate[0], rate[-1]) if isinstance(rate, Tensor) and rate.dim() else (rate, rate) for rate in map(known, rates)
    ]
    return _joined([pair[0] for pair in pairs], like), _joined([pair[1] for pair in pairs], like)


def _joined(rates: Sequence[Tensor | float], like: Tensor) -> Tensor | float:
    first = rates[0]
    # The usual case: a number, which needs no copy to the device. Tensors (capturable optimizers) are not compared,
    # since the host would wait for their values.
    if not any(isinstance(rate, Tensor) for rate in rates) and all(rate == first for rate in rates):
        return first
    numbers = [
        upload(rate.to(like.dtype), like.device)
        if isinstance(rate, Tensor)
        else torch.full((), rate, dtype=like.dtype, device=like.device)
        for rate in rates
    ]
    return torch.stack(numbers).view(like.shape)


def known(rate: LearningRate) -> Tensor | float:
    """Return a learning rate.

    Raises:
        ValueError: it is None.
    """
    if rate is None:
        raise ValueError("kl_clip needs the learning rate: attach the preconditioner to an optimizer, or pass lr=.")
    return rate
