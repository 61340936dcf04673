"""MKOR-H: MKOR until second-order updates stop paying, then the base optimizer alone (MKOR, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from mkor_core.knee import is_knee
from mkor_core.mkor import MKOR
from mkor_core.ranges import NOT_NEGATIVE


@dataclass(frozen=True, kw_only=True)
class MKORH(MKOR):
    """MKOR that hands over to the base optimizer at the knee of the training loss.

    The paper gives no formula; ours is its own definition of a knee-point: r < knee_beta m (see `mkor_core.knee`), on
    the mean losses between factor updates, looked at once an update, after ``warmup_steps`` steps.
    """

    follows_loss: ClassVar[bool] = True

    knee_beta: Annotated[float, NOT_NEGATIVE, "the share of the mean improvement that counts as slowing"] = 0.1
    warmup_steps: Annotated[int, NOT_NEGATIVE, "steps before a switch"] = 100

    def loss_is_due(self, step: int) -> bool:
        """After the warm-up."""
        return step > self.warmup_steps

    def is_over(self, losses: Sequence[tuple[int, float]], step: int) -> bool:
        """At the knee of the loss, after the warm-up."""
        return step > self.warmup_steps and is_knee(losses, self.knee_beta)
