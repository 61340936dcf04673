"""What products of tensors a test's code computes, in which order."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class RecordedProducts(TorchDispatchMode):
    """Products in the order in which they are computed, and the inner sizes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mv", "bmm", "addr_", "addcmul_", "addmm_", "baddbmm_"):
            self.names.append(name)
        if name == "addmm_":
            self.sizes.append(args[1].shape[1])
        return func(*args, **(kwargs or {}))
