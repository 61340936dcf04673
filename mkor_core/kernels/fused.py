"""AdamW and SGD that take their step with V without V ever being written: the gradient is read once more than without.

``Preconditioner(model, MKOR(window=4)).attach(FusedAdamW(model.parameters()))`` is all. Where there are no kernels, for
instance on a CPU, these are `torch.optim.AdamW` and `torch.optim.SGD`, which get V in the gradients as ever. Their
state is torch's own in either case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from mkor_core.devices import upload
from mkor_core.kernels.bases import SGD, AdamW, unhooked_step
from mkor_core.kernels.grouped import Group

ADAMW, PLAIN, WITH_MOMENTUM = 0, 1, 2
"""What `mkor_core.kernels.applying` calls OPTIMIZER."""
Pair = tuple[nn.Parameter, nn.Parameter | None]
"""The weight of a layer, and its bias if D has a column for it."""


class Pending(NamedTuple):
    """Updates that a group's kernels have found, and that an optimizer has yet to use."""

    group: Group
    pairs: Sequence[Pair]
    """The parameters of the group's layers."""
    terms: Tensor
    """All layers' terms of the clip."""
    bound: float | None


class _Sent(NamedTuple):
    """What a group's last step was taken with."""

    addresses: list[list[int]]
    settings: list[list[float]]
    places_on_device: Tensor
    settings_on_device: Tensor
    no_scale: Tensor
    """1, for a step without a loss scale."""
    no_inf: Tensor
    """0, for one without a scaler."""


class _Fused(Optimizer, ABC):
    """What both optimizers share."""

    torchs_step: ClassVar[Callable[..., Any]]
    """The step of torch's class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()  # a copy or a pickle brings none of it

    def _forget(self) -> None:
        self._pending: list[Pending] = []
        self._sent: dict[int, _Sent] = {}
        """By group, which lives as long as its layers stay the same."""

    def takes(self, pairs: Sequence[Pair]) -> bool:
        """Return whether the kernels can take the step of parameters; if not, V must be in their gradients."""
        # The preconditioner also asks for a layer whose bias the optimizer does not step, or has not got.
        return all(
            group is not None and self._is_plain(group) and _is_fit(parameter, pairs[0][0].dtype)
            for parameter, group in self._groups_of(pairs)
        )

    def defer(self, pending: Pending) -> None:
        """Use updates in the next step, in which the gradients of these parameters are still D."""
        self._pending.append(pending)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; the gradients of preconditioned layers are D after it, not V."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pending, self._pending = self._pending, []
        held = [(parameter, parameter.grad) for one in pending for parameter, _ in self._groups_of(one.pairs)]
        for parameter, _ in held:
            parameter.grad = None  # torch's step passes over them
        try:
            type(self).torchs_step(self)
        finally:
            for parameter, grad in held:
                parameter.grad = grad
        for one in pending:
            self._take(one)
        return loss

    def _take(self, pending: Pending) -> None:
        """Take the step of a group's layers."""
        group, device = pending.group, pending.group.kind.device
        found = self._groups_of(pending.pairs)
        for parameter, own in found:
            self._prepare(parameter, cast("dict[str, Any]", own))
        steps = [self.state[parameter]["step"] for parameter, _ in found if "step" in self.state[parameter]]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if steps:
            torch._foreach_add_(steps, 1)
            if found_inf is not None:
                torch._foreach_sub_(steps, [found_inf] * len(steps))
        places, settings = self._described(pending.pairs, dict(found))
        sent = self._sent.get(id(group))
        if sent is None or sent.addresses != places or sent.settings != settings:
            self._sent[id(group)] = sent = _Sent(
                places,
                settings,
                upload(torch.tensor(places, dtype=torch.int64), device),
                upload(torch.tensor(settings, dtype=torch.float64), device),
                torch.ones(1, device=device),
                torch.zeros(1, device=device),
            )
        weight = pending.pairs[0][0]
        group.correct(
            pending.terms,
            pending.bound,
            "step",
            sent.places_on_device,
            sent.settings_on_device,
            sent.no_scale if scale is None else scale,
            sent.no_inf if found_inf is None else found_inf,
            PARAMETER_TYPE=weight.dtype,
            **self._constants(cast("dict[str, Any]", found[0][1])),
        )

    def _described(
        self, pairs: Sequence[Pair], groups: Mapping[nn.Parameter, Any]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return the addresses and the hyperparameters of layers, those of the weight and then those of the bias."""
        places: list[list[int]] = []
        settings: list[list[float]] = []
        for weight, bias in pairs:
            both = [weight, weight if bias is None else bias]  # a layer without a bias never reads the second
            states = [self.state[parameter] for parameter in both]
            places.append([place for p, state in zip(both, states, strict=True) for place in self._places(p, state)])
            settings.append([number for p in both for number in self._settings(groups[p])])
        return places, settings

    def _groups_of(self, pairs: Sequence[Pair]) -> list[tuple[nn.Parameter, dict[str, Any] | None]]:
        groups = {id(p): group for group in self.param_groups for p in group["params"]}
        return [(p, groups.get(id(p))) for pair in pairs for p in pair if p is not None]

    @abstractmethod
    def _is_plain(self, group: Mapping[str, Any]) -> bool:
        """Return whether the kernels know all options of a parameter group."""

    @abstractmethod
    def _prepare(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        """Make the state of a parameter, as torch does before its first step."""

    @abstractmethod
    def _places(self, parameter: Tensor, state: Mapping[str, Any]) -> list[int]:
        """Return the addresses of a parameter and its state."""

    @abstractmethod
    def _settings(self, group: Mapping[str, Any]) -> list[float]:
        """Return the hyperparameters of a group as numbers."""

    @abstractmethod
    def _constants(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the kernel is compiled for."""


class FusedAdamW(_Fused, AdamW):
    """`torch.optim.AdamW` with the same arguments, whose kernel computes a preconditioner's V on the way.

    Torch's own step is fused where all parameters are on CUDA devices. With amsgrad, ``differentiable``, or learning
    rates or betas that are tensors, V is written into the gradients as for any optimizer.
    """

    torchs_step = unhooked_step(torch.optim.AdamW)

    @override
    def _is_plain(self, group: Mapping[str, Any]) -> bool:
        numbers = [group["lr"], *group["betas"]]
        return not (group["amsgrad"] or group["differentiable"] or any(isinstance(one, Tensor) for one in numbers))

    @override
    def _prepare(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)

    @override
    def _places(self, parameter: Tensor, state: Mapping[str, Any]) -> list[int]:
        return [one.data_ptr() for one in (parameter, state["exp_avg"], state["exp_avg_sq"], state["step"])]

    @override
    def _settings(self, group: Mapping[str, Any]) -> list[float]:
        return [group["lr"], group["weight_decay"], *group["betas"], group["eps"], -1.0 if group["maximize"] else 1.0]

    @override
    def _constants(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {"OPTIMIZER": ADAMW, "NESTEROV": False}


class FusedSGD(_Fused, SGD):
    """`torch.optim.SGD` with the same arguments, whose kernel computes a preconditioner's V on the way.

    With ``dampening``, ``differentiable``, or a learning rate that is a tensor, V is written into the gradients as for
    any optimizer, and so it is if parameter groups differ in ``nesterov`` or in whether there is momentum.
    """

    torchs_step = unhooked_step(torch.optim.SGD)

    @override
    def _is_plain(self, group: Mapping[str, Any]) -> bool:
        alike = all(self._constants(one) == self._constants(group) for one in self.param_groups)
        return alike and not (group["dampening"] or group["differentiable"] or isinstance(group["lr"], Tensor))

    @override
    def _prepare(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        # torch's first buffer is a copy of the gradient, which momentum times a buffer of zeros and the gradient are.
        if group["momentum"] and state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)

    @override
    def _places(self, parameter: Tensor, state: Mapping[str, Any]) -> list[int]:
        buffer = state.get("momentum_buffer")
        return [parameter.data_ptr(), 0 if buffer is None else buffer.data_ptr(), 0, 0]

    @override
    def _settings(self, group: Mapping[str, Any]) -> list[float]:
        sign = -1.0 if group["maximize"] else 1.0
        return [group["lr"], group["weight_decay"], group["momentum"], 0.0, 0.0, sign]

    @override
    def _constants(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {"OPTIMIZER": WITH_MOMENTUM if group["momentum"] else PLAIN, "NESTEROV": bool(group["nesterov"])}


def _is_fit(parameter: nn.Parameter, dtype: torch.dtype) -> bool:
    """Return whether the kernels can step a parameter, which must have a dtype."""
    grad = parameter.grad
    return parameter.is_contiguous() and grad is not None and parameter.dtype == dtype == grad.dtype
