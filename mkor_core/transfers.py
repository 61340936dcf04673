"""Copies from the host to a device for which the host does not wait."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; one that lies on the CPU is copied to a GPU behind the work that is queued there."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # From other memory than page-locked one, CUDA copies only once the device has done what is queued.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
