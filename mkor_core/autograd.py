"""Facts about what autograd and autocast are doing: the one place that uses private functions of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from mkor_core.blocks import local

Precision = Literal["highest", "high", "medium"]
"""The precision of float32 matrix products, in the words of `torch.set_float32_matmul_precision`: float32, TF32,
bfloat16."""


def in_backward() -> bool:
    """Return whether autograd is running a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def in_transform() -> bool:
    """Return whether a transform of torch.func is running, whose tensors must not leave it."""
    return bool(torch._C._are_functorch_transforms_active())


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype to which autocast casts on a device; None where it is off."""
    # The meta device has no autocast, and torch raises an error if asked whether it is enabled there.
    # (torch.amp.is_autocast_available cannot be compiled.)
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager in which nothing is cast to a lower precision on a device."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Compute float32 matrix products in a precision, in the words of `torch.set_float32_matmul_precision`."""
    libraries: list[Any] = [torch.backends.cuda, torch.backends.mkldnn]
    settings = [library.matmul for library in libraries if hasattr(getattr(library, "matmul", None), "fp32_precision")]
    if not settings:  # before torch 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    # The old functions raise an error where a program has used the new settings.
    previous = [setting.fp32_precision for setting in settings]
    for setting, name in zip(settings, _PRECISIONS[precision], strict=False):
        setting.fp32_precision = name
    try:
        yield
    finally:
        for setting, name in zip(settings, previous, strict=True):
            setting.fp32_precision = name


_PRECISIONS = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}
"""The settings of cuBLAS and of oneDNN; the former has nothing below TF32."""


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


class Passes:
    """The backward passes that add to the gradients of some weights, and whether those were cleared in between.

    Args:
        weights: returns, by name, the weights to which passes have added since the last step.
    """

    def __init__(self, weights: Callable[[], Mapping[str, Tensor | None]]) -> None:
        self.number = 0
        """The passes so far that have told of a gradient."""
        self._weights = weights
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._is_open = False

    def enter(self, *, reads: bool) -> set[str]:
        """Tell of a gradient in a pass; return the weights whose ``.grad`` was cleared before the pass began.

        reads: whether a ``.grad`` that was written to since the last pass is read, which makes the host wait for a GPU;
            it may have been filled with zeros instead of being set to None. If so, all of them were.
        """
        if self._is_open:
            return set()
        self._is_open = True
        self.number += 1
        # Called at the end of the pass, unless an exception ends it. FSDP may queue its callback, which sets the last
        # gradients, later than the first of these two, but not later than the second.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._leave))
        weights = self._weights()
        stamps = {name: _grad_stamp(weight) for name, weight in weights.items()}
        before, self._stamps = self._stamps, {}  # none, if an exception ends this pass
        written = all(stamp != before.get(name) for name, stamp in stamps.items())
        if reads and written and all(weight is None or is_zero(weight.grad) for weight in weights.values()):
            return set(weights)
        # Under FSDP a pass that does not synchronize leaves no .grad, so that none is missing afterwards.
        return {name for name, stamp in stamps.items() if stamp is None and before.get(name, 0) is not None}

    def _leave(self) -> None:
        self._is_open = False
        self._stamps = {name: _grad_stamp(weight) for name, weight in self._weights().items()}

    def close(self) -> None:
        """Tell that no pass is running, also if an exception ended the last one."""
        self._is_open = False


def _grad_stamp(weight: Tensor | None) -> tuple[int, int] | None:
    """Return a value that changes when ``weight.grad`` is replaced or written to; None without a gradient."""
    grad = None if weight is None else weight.grad
    return None if grad is None else (id(grad), grad._version)


def is_zero(tensor: Tensor | None) -> bool:
    """Return whether all entries are 0, which makes the host wait; None counts as 0, a meta tensor does not.

    Of a DTensor, all entries that this rank holds.
    """
    return tensor is None or (not tensor.is_meta and not bool(local(tensor).any()))
