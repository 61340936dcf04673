"""Several optimizers as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch.optim import Optimizer


class Combined(Optimizer):
    """Optimizers over disjoint parameters behind one interface: their groups in a row, one state, one step.

    A learning-rate schedule, ``zero_grad``, a closure, step hooks and checkpoints work as with any optimizer of torch.
    Parameter groups cannot be added: nothing would say whose they are.
    """

    def __init__(self, *members: Optimizer) -> None:
        self._members: tuple[Optimizer, ...] = ()
        super().__init__([group for member in members for group in member.param_groups], {})
        self._members = members
        self._share()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Let every member step, after one evaluation of the closure; return its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self._members:
            member.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the members' groups.

        Raises:
            NotImplementedError: any later one.
        """
        if self._members:
            raise NotImplementedError("A combined optimizer takes no further parameter groups; build a new one.")
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Optimizer.load_state_dict ends here, with new groups and a new state.
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Make the members work on this optimizer's groups and state."""
        start = 0
        for member in self._members:
            stop = start + len(member.param_groups)
            member.__setstate__({"state": self.state, "param_groups": self.param_groups[start:stop]})
            start = stop
