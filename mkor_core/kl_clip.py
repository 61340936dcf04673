"""KL clipping: one factor that bounds the updates of all layers together (ALGORITHMS.md, KFAC)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from mkor_core.linalg import finite_or_gradient
from mkor_core.method import Update


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

    def finish(self, updates: Sequence[Update]) -> list[Tensor]:
        """Return the updates of all layers, clipped together; D for one that is not finite."""
        if self.kl_clip is not None:
            return kl_clipped(updates, self.kl_clip)
        return [finite_or_gradient(update.value, update.grad) for update in updates]


def kl_clipped(updates: Sequence[Update], kl_clip: float) -> list[Tensor]:
    """Return the updates times ``nu = min(1, sqrt(kl_clip / |sum(V * D) lr^2|))``; nu is 1 if the sum is 0.

    Layers without statistics, and those whose sum is not finite, get D and take no part.

    Raises:
        ValueError: a layer's learning rate is unknown.
    """
    if not updates:
        return []
    total = torch.zeros((), dtype=updates[0].value.dtype, device=updates[0].value.device)
    takes_part: list[Tensor] = []
    for update in updates:
        if update.lr is None:
            raise ValueError("kl_clip needs the learning rate: attach the preconditioner to an optimizer, or pass lr=.")
        # Layers may be on different devices. lr is a tensor [d_in] if weight and bias have different rates.
        term = (update.value * update.grad * update.lr**2).sum()
        takes_part.append(term.isfinite() & update.has_statistics)
        total = total + torch.where(takes_part[-1], term, 0).to(total.device)
    nu = torch.where(total == 0, 1, (kl_clip / total.abs()).sqrt().clamp(max=1))
    return [
        torch.where(clips, update.value * nu.to(update.value.device), update.grad)
        for clips, update in zip(takes_part, updates, strict=True)
    ]
