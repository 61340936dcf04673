"""Facts about what autograd and autocast are doing: the one place that uses private functions of torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def in_backward() -> bool:
    """Return whether autograd is running a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype to which autocast casts on a device; None where it is off."""
    # Some devices, such as meta, have no autocast, and torch raises an error if asked whether it is enabled there.
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager in which nothing is cast to a lower precision on a device."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def adds_to_grad(weight: Tensor) -> bool:
    """Return whether the backward pass that is running adds to ``weight.grad``.

    That of `torch.autograd.grad` does not, nor do those inside transforms of torch.func, whose tensors must not leave
    them.
    """
    if not weight.requires_grad:
        return False
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(weight).node)
    except RuntimeError:  # torch's answer for a leaf whose gradient torch.autograd.grad returns
        return False


def call_after_backward(function: Callable[[], None]) -> None:
    """Call a function at the end of the backward pass that is running, unless an exception ends it."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def grad_stamp(weight: Tensor | None) -> tuple[int, int] | None:
    """Return a value that changes when ``weight.grad`` is replaced or written to; None without a gradient."""
    grad = None if weight is None else weight.grad
    return None if grad is None else (id(grad), grad._version)


def is_zero(tensor: Tensor | None) -> bool:
    """Return whether all entries are 0, which makes the host wait; None counts as 0, a meta tensor does not."""
    return tensor is None or (not tensor.is_meta and not bool(tensor.any()))
