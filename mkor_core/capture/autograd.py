"""Facts about what autograd and autocast are doing, from private functions of torch.

Elsewhere, `engines/engine.py`, `kernels/fused.py` and `baselines/first_order/lamb.py` call those for lists of tensors
(``torch._foreach_copy_`` and the like), and `saving/attached.py` looks into a frame of one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from mkor_core.capture.blocks import local

# One object for all calls: it keeps no state, so it can be entered again and again.
_NOTHING = nullcontext()

Precision = Literal["highest", "high", "medium"]
"""The precision of float32 matrix products, in the words of `torch.set_float32_matmul_precision`: float32, TF32,
bfloat16."""


def usual_precision(device: torch.device) -> Precision:
    """Return the precision of the matrix products on gradients, unless the caller chooses another."""
    return "high" if device.type == "cuda" else "highest"


def in_backward() -> bool:
    """Return whether autograd is running a backward pass in this thread."""
    # Also true while a checkpoint repeats a forward pass, since autograd repeats it within the backward pass.
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
    return _NOTHING if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


_PRECISIONS = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}
"""The settings of cuBLAS and of oneDNN; the former has nothing below TF32."""


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Compute float32 matrix products in a precision, in the words of `torch.set_float32_matmul_precision`."""
    cublas: Any = getattr(torch.backends.cuda, "matmul", None)
    onednn: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if not (hasattr(cublas, "fp32_precision") and hasattr(onednn, "fp32_precision")):  # before torch 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    # The old functions raise an error where a program has used the new settings.
    previous = cublas.fp32_precision, onednn.fp32_precision
    cublas.fp32_precision, onednn.fp32_precision = _PRECISIONS[precision]
    try:
        yield
    finally:
        cublas.fp32_precision, onednn.fp32_precision = previous


def adds_to_grad(weight: Tensor) -> bool:
    """Return whether the backward pass that is running adds to ``weight.grad``.

    That of `torch.autograd.grad` does not, nor do those inside transforms of torch.func, whose tensors must not leave
    them.
    """
    if not weight.requires_grad:
        return False
    try:
        # The node behind a leaf is its AccumulateGrad, which writes .grad. backward() runs it for
        # every leaf of the graph, backward(inputs=...) for those inputs alone.
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(weight).node)
    except RuntimeError:  # torch's answer for a leaf whose gradient torch.autograd.grad returns
        return False


class Passes:
    """The backward passes that add to the gradients of some weights, and whether those were cleared in between.

    A ``.grad`` may be cleared by setting it to None or by filling it with zeros. To find zeros, the host waits for the
    device, so it reads only gradients that were replaced or written to since the last pass, or that an exception left
    in an unknown state. Python knows of that without the device, and in a loop that leaves gradients alone between
    micro-batches there are none. All that are read must be zero: of clipped gradients some may be, too.

    Args:
        weights: returns, by name, the weights to which passes have added since the last step.
    """

    def __init__(self, weights: Callable[[], dict[str, Tensor | None]]) -> None:
        self.number = 0
        """The passes so far that have told of a gradient."""
        self._weights = weights
        self._stamps: dict[str, _Stamp] = {}
        self._running: weakref.ref[Callable[[], None]] | None = None

    def enter(self) -> set[str]:
        """Tell of a gradient in a pass; return the weights whose ``.grad`` was cleared before the pass began."""
        # The callback is alive only while the pass runs, so this is not the first gradient of the pass.
        if self._running is not None and self._running() is not None:
            return set()
        self.number += 1
        queue = torch.autograd.Variable._execution_engine.queue_callback

        # Called at the end of the pass, unless an exception ends it. FSDP may queue its callback, which sets the last
        # gradients, later than the first of these two, but not later than the second. The pass alone holds it, so that
        # it is gone after an exception, too.
        def leave() -> None:
            queue(self._leave)

        self._running = weakref.ref(leave)
        queue(leave)
        touched = self._touched(self._weights())
        self._stamps = {}  # none, if an exception ends this pass
        return _cleared(touched) if touched else set()

    def cleared(self) -> set[str]:
        """Return, while no pass is running, the weights whose ``.grad`` was cleared since the last one."""
        # torch.func.functional_call may have put other weights in the place of those to which the pass has added.
        weights = self._weights()
        for name in weights.keys() & self._stamps.keys():
            weights[name] = self._stamps[name].weight
        touched = self._touched(weights)
        for name, weight in touched.items():
            self._stamps[name] = _Stamp(weight)  # read each change once
        return _cleared(touched) if touched else set()

    def changed(self, name: str) -> bool:
        """Return whether a weight's ``.grad`` was replaced or written to since the last pass, which added to it."""
        stamp = self._stamps.get(name)
        return stamp is not None and not stamp.fits(stamp.weight)

    def close(self) -> None:
        """Tell that no pass is running, also if an exception ended the last one."""
        self._running = None

    def _leave(self) -> None:
        self._running = None
        self._stamps = stamps = {}
        for name, weight in self._weights().items():
            stamps[name] = _Stamp(weight)

    def _touched(self, weights: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Return the weights whose ``.grad`` was replaced or written to since the last pass, or may have been."""
        # Under FSDP a pass that does not synchronize leaves no .grad, so that none is missing afterwards.
        touched = {}
        for name, weight in weights.items():
            stamp = self._stamps.get(name)
            if stamp is None or not stamp.fits(weight):
                touched[name] = weight
        return touched


class _Stamp:
    """Which tensor ``weight.grad`` is, and how often it has been written to."""

    __slots__ = ("_grad", "_version", "weight")

    def __init__(self, weight: Tensor | None) -> None:
        self.weight = weight
        grad = None if weight is None else weight.grad
        # Not its id, which the next .grad may have.
        self._grad = None if grad is None else weakref.ref(grad)
        self._version = 0 if grad is None else grad._version

    def fits(self, weight: Tensor | None) -> bool:
        """Return whether ``weight.grad`` has neither been replaced nor written to since."""
        grad = None if weight is None else weight.grad
        if grad is None or self._grad is None:
            return grad is None and self._grad is None
        return self._grad() is grad and self._version == grad._version


def _cleared(touched: Mapping[str, Tensor | None]) -> set[str]:
    """Return which weights were cleared, of those whose ``.grad`` was replaced or written to."""
    grads = {name: None if weight is None else weight.grad for name, weight in touched.items()}
    # A DTensor of which this rank holds no entries does not tell.
    tells = any(grad is None or local(grad).numel() > 0 for grad in grads.values())
    if tells and all(map(is_zero, grads.values())):
        return set(grads)
    # Some are not zero, so a zero among them may be a gradient that was clipped; only None is proof.
    return {name for name, grad in grads.items() if grad is None}


def is_zero(tensor: Tensor | None) -> bool:
    """Return whether all entries are 0, which makes the host wait; None counts as 0, a meta tensor does not.

    Of a DTensor, all entries that this rank holds.
    """
    return tensor is None or (not tensor.is_meta and not bool(local(tensor).any()))
