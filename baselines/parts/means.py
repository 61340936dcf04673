"""Running means in a layer's state, their number of batches, and methods that have those of the inputs alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core.method import LayerState, Method, put
from mkor_core.ranges import AT_LEAST_1, DECAY


def fold(state: LayerState, accept: Tensor | None, new: Tensor | float, **batch: Tensor) -> None:
    """Move running means of these names toward those of a batch, and count it under ``batches``; see `Method`.

    new: the weight of the batch, ``[..., 1]`` or a number.
    """
    for name, value in batch.items():
        if accept is None:
            state[name].lerp_(value, new)
        else:
            put(state, accept, **{name: torch.lerp(state[name], value, new)})
    state["batches"].add_(1 if accept is None else accept)


class CountsBatches:
    """Mixin of a `Method` whose states count the batches in their means (`fold`); list it before `Method`."""

    def has_statistics(self, state: LayerState) -> Tensor:
        """See `Method.has_statistics`."""
        return state["batches"] > 0


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

    def new_weight(self, state: LayerState, like: Tensor) -> Tensor:
        """Return the weight of the next batch in the mean, in the dtype of a tensor; 1 for the first."""
        batches = state["batches"] + 1
        return (1 - self.factor_decay) / (1 - self.factor_decay ** batches.to(like.dtype))
