"""MKOR-H: MKOR while second-order updates help, then the base optimizer alone (MKOR, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typing_extensions import override

from mkor_core.maths.knee import is_knee
from mkor_core.method import FollowsLoss
from mkor_core.mkor import MKOR
from mkor_core.ranges import NOT_NEGATIVE, Range


@dataclass(frozen=True, kw_only=True)
class MKORH(FollowsLoss, MKOR):
    """MKOR up to the knee of the training loss; after it, the base optimizer alone.

    The paper gives no formula for the switch. We take the one that it gives for a knee-point, ``r < knee_beta m``
    (`mkor_core.maths.knee`). It is evaluated at every factor update after the warm-up, on the mean losses between
    updates.
    """

    knee_beta: Annotated[float, NOT_NEGATIVE, "the share of the mean improvement that counts as slowing"] = 0.1
    warmup_steps: Annotated[int, Range(at_least=0, largest=1e9), "steps before a switch"] = 100

    @override
    def loss_is_due(self, step: int) -> bool:
        # Without any loss by then the switch could never come, so that an error is raised.
        return step > self.warmup_steps

    @override
    def is_over(self, losses: Sequence[tuple[int, float]], step: int) -> bool:
        # There is a pair for each factor update but the last, whose loss has not been read yet. Three are enough for a
        # knee: without a warm-up, a few noisy losses at the start could end MKOR.
        return step > self.warmup_steps and is_knee(losses, self.knee_beta)
