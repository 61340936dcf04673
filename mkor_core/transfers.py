"""Copies between the host and a device for which the host does not wait."""

from __future__ import annotations

import torch
from torch import Tensor


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
