"""Several optimizers as one."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from baselines.parts.closures import ClosureOptimizer


class Combined(ClosureOptimizer):
    """Optimizers over disjoint parameters behind one interface: their groups in sequence, one state, one step.

    Learning-rate schedules, ``zero_grad``, closures, step hooks and checkpoints work as with any torch optimizer.
    Parameter groups cannot be added later, since it would be unclear which member trains them.
    """

    def __init__(self, *members: Optimizer) -> None:
        self._members: tuple[Optimizer, ...] = ()
        super().__init__([group for member in members for group in member.param_groups], {})
        self._members = members
        self._share()

    @override
    def take_step(self) -> None:
        for member in self._members:
            member.step()

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        # The constructor of Optimizer adds the members' groups through this method, before there are members.
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
