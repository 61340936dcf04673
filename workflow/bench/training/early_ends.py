"""The ways in which training ends early, and the checks that recognize them."""

from __future__ import annotations

import torch
from torch import Tensor

from workflow.bench.training.build import Parts


class DivergedError(Exception):
    """The loss, the weights or the factors are no longer finite; the message is the reason."""


class OneRankDivergedError(DivergedError):
    """This rank cannot continue; the other ranks do not know yet."""


class InterruptedRunError(Exception):
    """The run was asked to stop, and its checkpoint is saved."""


def non_finite(parts: Parts, losses: Tensor | None, steps_done: int) -> str | None:
    """Return which loss, weight or factor is not finite, as a sentence; None if all are finite.

    losses: ``[steps]``, the training losses of the last steps, up to ``steps_done``.
    """
    if losses is not None:
        positions = (~losses.isfinite()).nonzero()
        if len(positions):
            first = int(positions[0])
            # Of 5 losses up to step 20, the one at index 2 belongs to step 18.
            return f"the training loss is {losses[first].item()} in step {steps_done - len(losses) + first + 1}"
    names, weights = zip(*parts.model.named_parameters(), strict=True)
    # One number for each tensor, and all of them read at once.
    finite = torch.stack([weight.isfinite().all() for weight in weights]).tolist()
    for name, is_finite in zip(names, finite, strict=True):
        if not is_finite:
            return f"the weights {name} are not finite after step {steps_done}"
    if parts.preconditioner is not None and (layers := parts.preconditioner.non_finite_layers()):
        return f"the factors of {layers[0]} are not finite after step {steps_done}"
    return None


def is_overflow(problem: BaseException) -> bool:
    """Return whether a number does not fit into the dtype of the tensors that it should scale, such as a huge rate."""
    # torch's error has no type of its own.
    return isinstance(problem, RuntimeError) and "without overflow" in str(problem)
