"""LAMB (You et al., ICLR 2020) in the form of NVIDIA's fused BERT optimizer, by timm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

# isort: split
from timm import optim as timm

from baselines.parts.closures import ClosureOptimizer
from baselines.parts.groups import decay_matrices_only
from mkor_core.kernels.bases import FusedOnGpu, unhooked_step
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, DECAY, "the weight of the old first moment"] = 0.9,
    beta2: Annotated[float, DECAY, "the weight of the old second moment"] = 0.999,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-6,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the multiple of the weights added to the update"] = 0.01,
    max_grad_norm: Annotated[float, POSITIVE, "the global norm that gradients are scaled down to"] = 1.0,
) -> Lamb:
    """Return LAMB without bias correction, partly fused on a GPU; vectors (biases, norms) are not decayed."""
    options: dict[str, Any] = {
        "lr": lr,
        "bias_correction": False,
        "betas": (beta1, beta2),
        "eps": eps,
        "weight_decay": weight_decay,
        "max_grad_norm": max_grad_norm,
    }
    return Lamb(decay_matrices_only(parameters, weight_decay), **options)


_TIMMS_STEP = unhooked_step(timm.Lamb)


class Lamb(FusedOnGpu, ClosureOptimizer, timm.Lamb):  # type: ignore[misc]  # timm is skipped by mypy
    """timm's LAMB, which makes its updates by Adam's fused kernel where the parameters are on a GPU."""

    _is_fused = False

    @override
    def can_fuse(self, parameter: Tensor) -> bool:
        # In float16 the decay's part of an update, which is rounded first here, could underflow.
        return parameter.dtype != torch.float16 and super().can_fuse(parameter)

    @override
    def use_fused(self, fused: bool) -> None:
        self._is_fused = fused  # a GradScaler unscales before the step, as it does for timm's

    @override
    def take_step(self) -> None:
        alike = all(
            parameter.grad is None or _is_like(parameter.grad, parameter)
            for group in self.param_groups
            for parameter in group["params"]
        )
        if not (self._is_fused and alike):
            _TIMMS_STEP(self)
            return
        clip = self._get_clip_grad_norm()
        for group in self.param_groups:
            group["step"] = group["step"] + 1 if "step" in group else torch.tensor(1.0)
            for weights in by_kind(group["params"]):
                self._move(weights, group, clip)

    def _move(self, weights: list[Tensor], group: Mapping[str, Any], clip: Tensor) -> None:
        """Move parameters of one kind; clip: what gradients are divided by, on the device."""
        states = [self.state[weight] for weight in weights]
        for weight, state in zip(weights, states, strict=True):
            if not state:
                state.update(exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        decay: float = group["weight_decay"]
        lr: float = group["lr"]
        # Adam adds m / (sqrt(v) + eps) to what it is given if its rate is -1 and, in a step as late as this, its bias
        # corrections are 1. Given decay W, it makes the whole update.
        moved = list(torch._foreach_mul(weights, decay)) if decay else weights
        torch._fused_adam_(
            moved,
            torch._foreach_div([weight.grad for weight in weights if weight.grad is not None], clip),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [torch.full((), torch.inf, device=clip.device)] * len(weights),
            lr=-1.0 if decay else lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        if decay:
            lengths, sizes = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, moved))
            ratios = torch.where((lengths > 0) & (sizes > 0), lengths / sizes, 1.0)
            torch._foreach_addcmul_(weights, moved, [*(ratios * -lr).unbind()])


def _is_like(grad: Tensor, parameter: Tensor) -> bool:
    return grad.layout == torch.strided and grad.dtype == parameter.dtype and grad.stride() == parameter.stride()


def by_kind(parameters: Iterable[nn.Parameter]) -> Iterable[list[Tensor]]:
    """Return the parameters with a gradient by device and precision: a fused kernel takes those of one kind."""
    kinds: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            kinds[parameter.device, parameter.dtype].append(parameter)
    return kinds.values()
