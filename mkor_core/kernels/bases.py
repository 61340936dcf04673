"""Optimizers that run fused where their parameters are on a GPU, and torch's SGD and AdamW among them.

A fused step reads each tensor once; ``foreach`` kernels move three times the bytes in AdamW.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from typing_extensions import override

from mkor_core.capture.blocks import is_dtensor

FUSED_ON = "cuda"
"""The type of device on which the fused kernels run. On a CPU torch has them too, but nothing changes there."""


def is_plain(tensor: Tensor) -> bool:
    """Return whether torch's fused kernels take a parameter, or a gradient, that is not sharded.

    They go through memory in its order, so there may be no gaps; they take no complex numbers.
    """
    if is_traceable_wrapper_subclass(cast("object", tensor)) or not _is_real_on_gpu(tensor):
        return False
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _is_real_on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == FUSED_ON and tensor.layout == torch.strided and tensor.is_floating_point()


def unhooked_step(cls: type[Optimizer]) -> Callable[..., Any]:
    """Return a class's step without torch's hooks around it, which would run twice in a step that calls it."""
    return cast("Callable[..., Any]", inspect.unwrap(cls.step))


class FusedOnGpu(Optimizer):
    """Makes an optimizer run fused if all its parameters can; mixed in before it. Written for torch's own.

    What a loaded state says of ``fused`` is ignored: it tells where the state was saved. The steps' numbers of a fused
    optimizer lie on its device, others on the host, so they are moved.
    """

    fuses_shards = False
    """Whether DTensor knows the fused kernel."""

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._choose()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Optimizer.load_state_dict, copies, pickles and `Combined` all end here.
        super().__setstate__(state)
        self._choose()

    def can_fuse(self, parameter: Tensor) -> bool:
        """Return whether the fused kernel takes a parameter."""
        if is_dtensor(parameter):
            return self.fuses_shards and _is_real_on_gpu(parameter)
        return is_plain(parameter)

    def use_fused(self, fused: bool) -> None:
        """Take the fused kernel from now on, or not."""
        self._step_supports_amp_scaling = fused
        for group in self.param_groups:
            group["fused"] = fused or None  # with False torch would not take its foreach kernels either
            for parameter in group["params"]:
                state = self.state.get(parameter, {})
                if isinstance(number := state.get("step"), Tensor):
                    on_device = fused or group.get("capturable")
                    state["step"] = number.to(parameter.device if on_device else "cpu")

    def _choose(self) -> None:
        # All groups or none: a GradScaler leaves the unscaling to the whole optimizer or to none of it.
        self.use_fused(all(self.can_fuse(parameter) for group in self.param_groups for parameter in group["params"]))


class AdamW(FusedOnGpu, torch.optim.AdamW):
    """``torch.optim.AdamW``, fused on a GPU."""

    fuses_shards = True


class SGD(FusedOnGpu, torch.optim.SGD):
    """``torch.optim.SGD``, fused on a GPU unless it gets sparse gradients.

    Where it is fused, momentum starts from zeros. torch's own would start with memory that nothing has written if a
    GradScaler skips the first step, and would fail once only some parameters have had a gradient.
    """

    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], momenta: list[Tensor | None]
    ) -> Any:
        has_sparse_grad = super()._init_group(group, params, grads, momenta)  # type: ignore[no-untyped-call]
        if has_sparse_grad and not hasattr(self, "found_inf"):
            group["fused"], self._step_supports_amp_scaling = None, False
        if group["fused"]:
            momenta[:] = [
                torch.zeros_like(weight) if momentum is None else momentum
                for weight, momentum in zip(params, momenta, strict=bool(momenta))
            ]
        return has_sparse_grad
