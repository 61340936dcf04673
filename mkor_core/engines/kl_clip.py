"""KL clipping: one factor that bounds the updates of all layers together (as in kfac-pytorch)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mkor_core.maths.linalg import finite_or_gradient
from mkor_core.method import LearningRate, Update
from mkor_core.transfers import upload

TermsOfAll = Callable[[Sequence[Tensor]], list[Tensor]]


class KLClipping(ABC):
    """Mixin for a `mkor_core.method.Method` whose field ``kl_clip`` has a default; list it before `Method`."""

    @property
    @abstractmethod
    def kl_clip(self) -> float | None:
        """Bound on ``|sum(V * D) lr^2|`` over all layers; None leaves the updates as they are."""

    @property
    def needs_lr(self) -> bool:
        """Whether the updates are clipped, which requires the learning rate."""
        return self.kl_clip is not None

    def finish(self, updates: Sequence[Update], terms_of_all: TermsOfAll = list) -> list[Tensor]:
        """Return the updates of all layers, clipped together; D for one that is not finite.

        terms_of_all: see `kl_clipped`.
        """
        if self.kl_clip is not None:
            return kl_clipped(updates, self.kl_clip, terms_of_all)
        return [finite_or_gradient(update.value, update.grad) for update in updates]


def kl_clipped(updates: Sequence[Update], kl_clip: float, terms_of_all: TermsOfAll = list) -> list[Tensor]:
    """Return the updates times `clip_factor`; layers without statistics, or whose term is not finite, get D.

    terms_of_all: returns scalars with the sum of the terms of all ranks, given those of this rank's layers.

    Raises:
        ValueError: a layer's learning rate is unknown.
    """
    takes_part: list[Tensor] = []
    terms: list[Tensor] = []
    for update in updates:
        # lr is a tensor [d_in] if weight and bias have different rates.
        term = (update.value * update.grad * known(update.lr) ** 2).sum()
        takes_part.append(term.isfinite() & update.has_statistics)
        terms.append(torch.where(takes_part[-1], term, 0))
    if not (terms := terms_of_all(terms)):
        return []
    nu = clip_factor(terms, kl_clip)
    return [
        torch.where(clips, update.value * nu.to(update.value.device), update.grad)
        for clips, update in zip(takes_part, updates, strict=True)
    ]


def clip_factor(terms: Sequence[Tensor], kl_clip: float) -> Tensor:
    """Return ``nu = min(1, sqrt(kl_clip / |total|))`` for the sum of scalar terms ``sum(V * D) lr^2``; 1 if it is 0."""
    # Layers may be on different devices.
    total = torch.stack([term.to(terms[0].device) for term in terms]).sum()
    return torch.where(total == 0, 1, (kl_clip / total.abs()).sqrt().clamp(max=1))


def split_rates(rates: Sequence[LearningRate], like: Tensor) -> tuple[Tensor | float, Tensor | float]:
    """Return the learning rates of layers' weights and of their biases: numbers if all are equal, else like ``like``.

    Raises:
        ValueError: a rate is unknown.
    """
    pairs = [
        (rate[0], rate[-1]) if isinstance(rate, Tensor) and rate.dim() else (rate, rate) for rate in map(known, rates)
    ]
    return _joined([pair[0] for pair in pairs], like), _joined([pair[1] for pair in pairs], like)


def _joined(rates: Sequence[Tensor | float], like: Tensor) -> Tensor | float:
    first = rates[0]
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
