"""Bytes of tensors that are made and still live, counted operator by operator, without a GPU's allocator."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class LiveBytes(TorchDispatchMode):
    """Counts the memory that operators inside its ``with`` block allocate, until it is freed; views have none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Bytes that live now."""
        self.peak = 0
        """The most that lived at any time."""
        self._storages: set[int] = set()

    @override
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        before = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if type(leaf) is Tensor}
        outputs = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(outputs):
            if type(leaf) is Tensor and _key(leaf) not in before:
                self._count(leaf)
        return outputs

    def _count(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        if key not in self._storages:
            size = storage.nbytes()
            self._storages.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.now -= size


def _key(tensor: Tensor) -> int:
    """Return what identifies a tensor's memory while it lives."""
    key: int = tensor.untyped_storage()._cdata
    return key
