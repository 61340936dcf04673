"""Running means of a layer's inputs, and the steps at which they, and what follows from them, change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from typing_extensions import override

from mkor_core.method import Method
from mkor_core.ranges import AT_LEAST_1, DECAY


@dataclass(frozen=True, kw_only=True)
class InputMethod(Method):
    """Base of methods that precondition a gradient with a running mean over its layer's inputs."""

    factor_decay: Annotated[float, DECAY, "the weight of the old mean"] = 0.95
    """The first batch enters unweighted, as if a mean that starts from 0 were divided by 1 - factor_decay^k."""
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two batches that enter the mean"] = 5
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the preconditioner"] = 50

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.factor_update_period == 0

    @override
    def refreshes(self, step: int) -> bool:
        # Once a period, with the first batch that enters the mean.
        return self.accumulates(step) and step % self.inverse_update_period < self.factor_update_period

    def new_weight(self, batches: Tensor, like: Tensor) -> Tensor:
        """Return the weight of the last of some batches in the mean, in the dtype of a tensor; 1 for the first."""
        return (1 - self.factor_decay) / (1 - self.factor_decay ** batches.to(like.dtype))
