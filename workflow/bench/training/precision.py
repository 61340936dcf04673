"""The numerics of training: autocast in forward passes, for float16 a scaled loss, and deterministic algorithms."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from workflow.bench.plan.runs import PLAIN_PRECISION


def choose_algorithms(*, deterministic: bool) -> None:
    """Let torch use only algorithms that give the same bits each time, or any; for all that follows in this process.

    On CUDA, `launcher.prepare` must have been called before. An operation without such an algorithm then raises a
    RuntimeError that names it.
    """
    # Only a change, for torch then imports its compiler: 6 seconds.
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:
        torch.backends.cudnn.benchmark = False  # it would choose by time


class Precision:
    """Backward passes and optimizer steps in a precision, for training and for the probes.

    name: ``float32``, ``bfloat16`` or ``float16``, as experiments name it.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.autocast: AbstractContextManager[object] = (
            nullcontext() if name == PLAIN_PRECISION else torch.autocast(device.type, getattr(torch, name))
        )
        """The context of forward passes and evaluations."""
        # Only float16 has gradients too small for its range; bfloat16 has the range of float32.
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None
        self._scale: float | None = None  # after the last step

    @property
    def grad_scale(self) -> Any:
        """The loss scale that a preconditioner divides captured gradients by: the scaler, or 1."""
        return 1.0 if self.scaler is None else self.scaler

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, scaled for float16."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer; return False if a gradient overflowed, so that the step was skipped.

        Nothing overflows but float16; reading its scale makes the host wait for the device.
        """
        if self.scaler is None:
            optimizer.step()
            return True
        before = self.scaler.get_scale() if self._scale is None else self._scale
        self.scaler.step(optimizer)
        self.scaler.update()
        self._scale = self.scaler.get_scale()
        return self._scale >= before
