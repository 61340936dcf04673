"""The knee-point of a training curve, beyond which it hardly improves (MKOR's appendix).

With r an exponential moving average of the improvement per step, and m the mean improvement per step since the start of
the curve, the knee is reached once ``r < beta m``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mkor_core.ranges import AT_LEAST_1, NOT_NEGATIVE, POSITIVE_DECAY, require

RATE_DECAY = 0.9
"""Weight of the old value in the moving average of the improvement per step."""


def is_knee(curve: Sequence[tuple[int, float]], beta: float, *, rising: bool = False) -> bool:
    """Return whether the last point of a curve lies past its knee; False for fewer than three points.

    Args:
        curve: (steps since the previous point, value) in order; the steps of the first point are ignored.
        beta: the fraction of the mean improvement below which the curve is past its knee.
        rising: whether the value should rise (an accuracy) rather than fall (a loss).
    """
    # Two points have one improvement, which is both r and m.
    if len(curve) < 3:
        return False
    # A loss is negated, so that an improvement is positive in either case.
    gains = [(steps, value if rising else -value) for steps, value in curve]
    # The average starts at 0; dividing by norm, the same average of ones, corrects for that.
    # Losses 3, 2 and 1.5, one step apart, improve by 1 and 0.5: r = (0.09 + 0.05) / (0.09 + 0.1) = 0.74 and m = 0.75.
    rate = norm = 0.0
    for (_, before), (steps, gain) in pairwise(gains):
        improvement = (gain - before) / steps
        rate = RATE_DECAY * rate + (1 - RATE_DECAY) * improvement
        norm = RATE_DECAY * norm + (1 - RATE_DECAY)
    mean = (gains[-1][1] - gains[0][1]) / sum(steps for steps, _ in gains[1:])
    return rate / norm < beta * mean


class KneePointScheduler(LRScheduler):
    """Multiplies every learning rate by ``factor`` at each knee of a loss, or of an accuracy if ``rising``.

    Call ``step(value)`` once an epoch, or once a fixed number of iterations. A new curve starts at each change of the
    rates, and ``patience`` values pass before the next change.

    Raises:
        ValueError: an argument out of range, by name.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        factor: float = 0.5,
        beta: float = 0.1,
        patience: int = 5,
        rising: bool = False,
    ) -> None:
        require("factor", factor, Annotated[float, POSITIVE_DECAY])
        require("beta", beta, Annotated[float, NOT_NEGATIVE])
        require("patience", patience, Annotated[int, AT_LEAST_1])
        self.factor = factor
        self.beta = beta
        self.patience = patience
        self.rising = rising
        self.curve: list[tuple[int, float]] = []
        # Set before super().__init__, which calls step() once without a value.
        self._lower = False
        super().__init__(optimizer)

    def step(self, value: Any = None) -> None:
        """Add the next value of the curve, and lower the rates if it lies past the knee."""
        if value is not None:
            self.curve.append((1, float(value)))
            self._lower = len(self.curve) > self.patience and is_knee(self.curve, self.beta, rising=self.rising)
        super().step()
        if self._lower:
            # The value at the knee is the first point of the next curve.
            self.curve = self.curve[-1:]
            self._lower = False

    def get_lr(self) -> list[float | Any]:
        """Return the rates of the parameter groups after this step."""
        # From the present rates, not the initial ones: factors multiply from knee to knee.
        return [group["lr"] * (self.factor if self._lower else 1.0) for group in self.optimizer.param_groups]
