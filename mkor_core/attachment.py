"""A preconditioner's hooks on a torch optimizer: steps with and without a closure, state dict, copies."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle

from mkor_core.attached_state import Source, StateInOptimizer
from mkor_core.capture.autograd import is_zero
from mkor_core.capture.layer import Layer
from mkor_core.method import LearningRate, Method
from mkor_core.saved_in_optimizer import without_preconditioner

COPIED = "The copy of an optimizer is not preconditioned: attach a new Preconditioner to it."


class Attachment:
    """The hooks of one preconditioner on one optimizer.

    Args:
        optimizer: a torch optimizer, or a wrapper that keeps it as ``.optimizer`` (accelerate's).
        source: what the optimizer's state dict keeps of the preconditioner.
        step: preconditions the gradients; called before every step of the optimizer with the value of its closure, or
            None if it has none.
        has_captured: returns whether a backward pass has brought statistics for the next step.

    Raises:
        TypeError: not a torch optimizer, or LBFGS, which evaluates its closure many times per step.
        RuntimeError: another preconditioner is attached to the optimizer.
    """

    def __init__(
        self, optimizer: Optimizer, source: Source, step: Callable[[Any], None], has_captured: Callable[[], bool]
    ) -> None:
        self._optimizer = _unwrapped(optimizer)
        if any(isinstance(_owner(hook), Attachment) for hook in self._optimizer._optimizer_step_pre_hooks.values()):
            raise RuntimeError("The optimizer already has a Preconditioner: a second one would precondition twice.")
        self._step = step
        self._has_captured = has_captured
        self.state = StateInOptimizer(self._optimizer, source)
        """The preconditioner's state in the optimizer's."""
        _warn_of_copies(self._optimizer)
        self._handle = self._optimizer.register_step_pre_hook(self._before_step)
        self._watching: RemovableHandle | None = None
        """The hook after steps, until they have shown of which parameters the optimizer keeps state."""
        self._groups = 0
        """The number of parameter groups of which that is known."""

    @property
    def parameter_ids(self) -> set[int]:
        """The ids of the parameters that the optimizer steps."""
        return {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}

    @property
    def grad_scale(self) -> Tensor | None:
        """The loss scale by which gradients are multiplied; None if they are unscaled.

        A fused optimizer unscales gradients itself, so that they are still scaled in the hook that runs before its
        step.
        """
        scale: Tensor | None = getattr(self._optimizer, "grad_scale", None)
        return scale

    @property
    def found_inf(self) -> Tensor | None:
        """A device scalar that is not 0 if a fused optimizer will skip this step; None: it will not."""
        found_inf: Tensor | None = getattr(self._optimizer, "found_inf", None)
        return found_inf

    def learning_rates(self, layers: Sequence[Layer]) -> list[LearningRate]:
        """Return the learning rates of layers, from the parameter groups of their weights and biases."""
        rates = {id(p): group["lr"] for group in self._optimizer.param_groups for p in group["params"]}
        return [_rate(layer, [rates.get(id(parameter)) for parameter in layer.parameters]) for layer in layers]

    def remove(self) -> None:
        """Remove the hooks, and what the optimizer's state has of the preconditioner."""
        self._handle.remove()
        if self._watching is not None:
            self._watching.remove()
        self.state.remove()
        for name in ("__deepcopy__", "__reduce_ex__"):
            self._optimizer.__dict__.pop(name, None)

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._watching is not None or len(optimizer.param_groups) != self._groups:
            self._watch(optimizer)
        # args[0] is the optimizer; the closure of step(closure) may be positional or a keyword.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            if optimizer.state or not self._only_makes_state(optimizer):
                self._step(None)
            return None

        # This hook runs before the closure's backward pass, so preconditioning must wait until it has been evaluated.
        def evaluate_then_precondition() -> Any:
            loss = closure()
            self._step(loss)
            return loss

        if len(args) > 1:
            return (args[0], evaluate_then_precondition, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluate_then_precondition}

    def _watch(self, optimizer: Optimizer) -> None:
        """Look at what the optimizer keeps after each step, until that is known of all parameter groups."""
        if not self.state.is_settled:
            if self._watching is None:
                self._watching = optimizer.register_step_post_hook(lambda *_: self.state.after_step())
            return
        self._groups = len(optimizer.param_groups)
        if self._watching is not None:
            self._watching.remove()
            self._watching = None

    def _only_makes_state(self, optimizer: Optimizer) -> bool:
        """Return whether a step is the one by which `torch.distributed.checkpoint` makes an optimizer's first state.

        It has gradients and learning rates of 0, to change nothing, and counts as little here.
        """
        if self._has_captured() or any(float(group.get("lr", 0)) for group in optimizer.param_groups):
            return False
        return all(is_zero(p.grad) for group in optimizer.param_groups for p in group["params"])


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
    foreign = method.plain_hyperparameters().keys() - target.defaults.keys()
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
        duplicate.__setstate__(copy.deepcopy(without_preconditioner(optimizer.__getstate__()), memo))
        return duplicate

    def reduce_without_hooks(protocol: SupportsIndex) -> tuple[Any, ...]:
        make, arguments, state, *rest = cast("tuple[Any, ...]", type(optimizer).__reduce_ex__(optimizer, protocol))
        return _loaded_without_hooks, (make, arguments), without_preconditioner(state), *rest

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
