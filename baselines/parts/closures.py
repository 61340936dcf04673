"""The base of optimizers whose step may be given a closure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import overload

import torch
from torch.optim import Optimizer


class ClosureOptimizer(Optimizer, ABC):
    """An optimizer that evaluates the closure first, so that a subclass only defines the step on the gradients."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Evaluate the closure, take the step, and return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self.take_step()
        return loss

    @abstractmethod
    def take_step(self) -> None:
        """Change the parameters by their gradients; runs under ``torch.no_grad``."""
