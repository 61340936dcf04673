"""A preconditioner's hooks on a torch optimizer: steps with and without a closure, state dict, copies."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from mkor_core.capture.layer import Layer
from mkor_core.method import LearningRate, Method, plain_hyperparameters

STATE_KEY = "preconditioner"
"""The entry of an optimizer's state dict that holds the preconditioner's."""
COPIED = "The copy of an optimizer is not preconditioned: attach a new Preconditioner to it."


class Attachment:
    """The hooks of one preconditioner on one optimizer.

    Args:
        optimizer: a torch optimizer, or a wrapper that keeps it as ``.optimizer`` (accelerate's).
        before_step: preconditions the gradients: a pre-hook of the optimizer's step.
        save: returns the preconditioner's state dict.
        load: restores it; called with None if the optimizer's state dict holds none, to start anew.

    Raises:
        TypeError: not a torch optimizer, or LBFGS, which evaluates its closure many times per step.
        RuntimeError: another preconditioner is attached to the optimizer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        before_step: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], Any],
        save: Callable[[], dict[str, Any]],
        load: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        self.optimizer = _unwrapped(optimizer)
        """The torch optimizer itself."""
        if any(hasattr(_owner(hook), "consolidate") for hook in self.optimizer._optimizer_step_pre_hooks.values()):
            raise RuntimeError("The optimizer already has a Preconditioner: a second one would precondition twice.")
        self._save = save
        self._load = load
        _warn_of_copies(self.optimizer)
        self._handles = [
            self.optimizer.register_step_pre_hook(before_step),
            self.optimizer.register_state_dict_post_hook(self._save_into),
            self.optimizer.register_load_state_dict_pre_hook(self._load_from),
        ]

    def learning_rates(self, layers: Sequence[Layer]) -> list[LearningRate]:
        """Return the learning rates of layers, from the parameter groups of their weights and biases."""
        rates = {id(p): group["lr"] for group in self.optimizer.param_groups for p in group["params"]}
        return [_rate(layer, [rates.get(id(parameter)) for parameter in layer.parameters]) for layer in layers]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for name in ("__deepcopy__", "__reduce_ex__"):
            self.optimizer.__dict__.pop(name, None)

    def _save_into(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        state[STATE_KEY] = self._save()

    def _load_from(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        if STATE_KEY not in state:
            warnings.warn(
                "The optimizer's state dict holds no preconditioner state: the preconditioner starts anew.",
                stacklevel=2,
            )
        self._load(state.get(STATE_KEY))


def check_target(optimizer: Optimizer, layers: Iterable[Layer], method: Method) -> None:
    """Refuse an optimizer on which a preconditioner would have no effect, and warn of options that have none.

    Raises:
        TypeError: not a torch optimizer, or LBFGS.
        ValueError: the optimizer steps no weight of the layers.
    """
    target = _unwrapped(optimizer)
    stepped = {id(parameter) for group in target.param_groups for parameter in group["params"]}
    if not any(id(layer.weight) in stepped for layer in layers):
        raise ValueError(
            f"This {type(target).__name__} steps no weight of a layer that is preconditioned: make it of the "
            "parameters of the Preconditioner's model."
        )
    # What the optimizer reads itself, such as momentum, is among its defaults.
    foreign = plain_hyperparameters(method).keys() - target.defaults.keys()
    if named := sorted(foreign & {key for group in target.param_groups for key in group}):
        name = type(method).__name__
        given = ", ".join(f"{key}=..." for key in named)
        warnings.warn(
            f"Parameter groups have {', '.join(map(repr, named))}, which nothing reads there: hyperparameters of "
            f"{name} are the same for all layers and belong in {name}({given}).",
            stacklevel=3,
        )


def _unwrapped(optimizer: Optimizer) -> Optimizer:
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is not a torch.optim.Optimizer (nor is DeepSpeed's): attach to one, e.g. SGD."
        )
    if isinstance(optimizer, LBFGS):
        raise TypeError("LBFGS evaluates its closure many times per step: attach to a first-order optimizer, e.g. SGD.")
    return optimizer


def _owner(hook: Callable[..., Any]) -> object:
    return getattr(hook, "__self__", None)


def _warn_of_copies(optimizer: Optimizer) -> None:
    """Make ``copy.deepcopy(optimizer)``, and loading a pickle of it, warn that the copy has no hooks."""

    def copy_without_hooks(memo: dict[int, Any]) -> Optimizer:
        warnings.warn(COPIED, stacklevel=3)
        duplicate: Optimizer = type(optimizer).__new__(type(optimizer))
        memo[id(optimizer)] = duplicate
        duplicate.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
        return duplicate

    def reduce_without_hooks(protocol: SupportsIndex) -> tuple[Any, ...]:
        make, arguments, *rest = cast("tuple[Any, ...]", type(optimizer).__reduce_ex__(optimizer, protocol))
        return _loaded_without_hooks, (make, arguments), *rest

    # On the instance: deepcopy and pickle look there too, and other optimizers of the class stay as they are.
    optimizer.__dict__.update(__deepcopy__=copy_without_hooks, __reduce_ex__=reduce_without_hooks)


def _loaded_without_hooks(make: Callable[..., Optimizer], arguments: tuple[Any, ...]) -> Optimizer:
    """Return the optimizer that a pickle makes before it fills it; pickles name this function."""
    warnings.warn(COPIED, stacklevel=2)
    return make(*arguments)


def _rate(layer: Layer, rates: Sequence[LearningRate]) -> LearningRate:
    """Return a layer's learning rate, given those of its weight and, if it has one, its bias."""
    weight, bias = rates[0], rates[-1]
    if weight is None or bias is None or weight is bias or (isinstance(weight, float) and weight == bias):
        return weight
    # One rate per column of D; the last column is the bias.
    device = layer.parameters[0].device
    first = weight.to(device) if isinstance(weight, Tensor) else torch.full((), weight, device=device)
    columns = first.expand(layer.d_in).clone()
    columns[-1] = bias
    return columns
