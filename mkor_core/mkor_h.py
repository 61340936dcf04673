"""MKOR-H: MKOR until second-order updates stop paying, then the base optimizer alone (MKOR, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mkor_core.knee import is_knee
from mkor_core.method import require_at_least, require_period
from mkor_core.mkor import MKOR


@dataclass(frozen=True, kw_only=True)
class MKORH(MKOR):
    """MKOR that hands over to the base optimizer at the knee of the training loss.

    The paper gives no formula; ours is its own definition of a knee-point: r < knee_beta m (see `mkor_core.knee`), on
    the mean losses between factor updates, looked at once an update, after ``warmup_steps`` steps.

    Raises:
        ValueError: a value out of range, by name.
    """

    follows_loss: ClassVar[bool] = True

    knee_beta: float = 0.1
    warmup_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("knee_beta", self.knee_beta, 0)
        require_period("warmup_steps", self.warmup_steps, least=0)

    def loss_is_due(self, step: int) -> bool:
        """After the warm-up."""
        return step > self.warmup_steps

    def is_over(self, losses: Sequence[tuple[int, float]], step: int) -> bool:
        """At the knee of the loss, after the warm-up."""
        return step > self.warmup_steps and is_knee(losses, self.knee_beta)
