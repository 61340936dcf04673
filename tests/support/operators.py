"""The operators that a test's code runs, in their order."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode


class Operator(NamedTuple):
    """An operator that has run."""

    name: str
    args: tuple[Any, ...]
    result: Any


class Operators(TorchDispatchMode):
    """Lists the operators that run inside it, at the level at which a device executes them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Operator] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.seen.append(Operator(function.overloadpacket.__name__, args, result))
        return result

    def named(self, *names: str) -> list[Operator]:
        """Return those with one of some names."""
        return [operator for operator in self.seen if operator.name in names]
