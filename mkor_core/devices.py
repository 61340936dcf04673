"""Tensors as a GPU takes them: copies for which the host does not wait, and rows that it loads in wide words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes: a GPU loads the operands of a product in wide words only if their rows start on multiples of this."""


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; one that lies on the CPU is copied to a GPU behind the work that is queued there."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # From other memory than page-locked one, CUDA copies only once the device has done what is queued.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Deferred:
    """A device tensor copied asynchronously; reading it later does not wait for work queued after it."""

    def __init__(self, tensor: Tensor) -> None:
        # Page-locked, since a copy into other host memory makes the host wait in spite of non_blocking.
        self._copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self._copy.copy_(tensor, non_blocking=True)
        # The copy is queued behind the work that makes the tensor; the event tells when both are done.
        self._copied = torch.cuda.Event() if tensor.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def on_host(self) -> Tensor:
        """Return the copy."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy


class DeferredScalar(Deferred):
    """A `Deferred` scalar."""

    def read(self) -> float:
        """Return the value."""
        return float(self.on_host())


def aligned(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, make: Callable[..., Tensor] = torch.zeros
) -> Tensor:
    """Return zeros of a shape, whose rows start on multiples of `ALIGNMENT`: a view of a wider tensor, if need be.

    A factor of d_in = 1024 inputs and a bias has 1025 columns; its rows are 1028 numbers apart in float32.

    make: ``torch.empty`` if all entries will be written.
    """
    *leading, columns = shape
    step = max(1, ALIGNMENT // dtype.itemsize)  # 4 numbers in float32, 8 in bfloat16
    wide = make(*leading, -(-columns // step) * step, dtype=dtype, device=device)
    return wide.narrow(-1, 0, columns)
