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

from mkor_core.capture.autograd import is_zero
from mkor_core.capture.layer import Layer
from mkor_core.method import LearningRate, Method, plain_hyperparameters
from mkor_core.saving.attached import StateInOptimizer, StateSource
from mkor_core.saving.entries import without_preconditioner

STEPPED_BY = "_preconditioned_by"
"""The attribute of an optimizer that names its attachment."""
StepHook = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]
COPIED = "The copy of an optimizer is not preconditioned: attach a new Preconditioner to it."


class Attachment:
    """The hooks of one preconditioner on one optimizer.

    Args:
        optimizer: a torch optimizer, or a wrapper that keeps it as ``.optimizer`` (accelerate's).
        source: what the optimizer's state dict keeps of the preconditioner.
        before_step: preconditions the gradients: a pre-hook of the optimizer's step.
        has_captured: returns whether a backward pass has brought statistics for the next step.

    Raises:
        TypeError: not a torch optimizer, or LBFGS, which evaluates its closure many times per step.
        RuntimeError: another preconditioner is attached to the optimizer.
    """

    def __init__(
        self, optimizer: Optimizer, source: StateSource, before_step: StepHook, has_captured: Callable[[], bool]
    ) -> None:
        self.optimizer = _unwrapped(optimizer)
        """The torch optimizer itself."""
        # In the optimizer itself, so that another Preconditioner sees it. A pickle or a copy does not take it along:
        # Optimizer.__getstate__ returns only the defaults, the state and the groups.
        if STEPPED_BY in self.optimizer.__dict__:
            raise RuntimeError("The optimizer already has a Preconditioner: a second one would precondition twice.")
        self.optimizer.__dict__[STEPPED_BY] = self
        self._has_captured = has_captured
        self.state = StateInOptimizer(self.optimizer, source)
        """The preconditioner's state in the optimizer's."""
        _warn_of_copies(self.optimizer)
        self._handles = [self.optimizer.register_step_pre_hook(before_step)]
        self._after_step: RemovableHandle | None = None
        self.is_watching = True
        """Whether the next step must call `watch`, because it is not known yet what state the optimizer keeps."""
        self.groups = 0
        """The parameter groups of which it is known."""

    def watch(self, *, has_closure: bool) -> bool:
        """Watch what state the optimizer keeps, before a step; return whether the step only makes its first state."""
        if self.state.is_settled:
            if self._after_step is not None:
                self._after_step.remove()
            # From now on the step hook calls `watch` only if the number of groups differs from this one.
            self._after_step, self.is_watching, self.groups = None, False, len(self.optimizer.param_groups)
        elif self._after_step is None:
            self.is_watching = True
            self._after_step = self.optimizer.register_step_post_hook(lambda *_: self.state.after_step())
        # Cheap conditions first: the last one reads all gradients, for which the host waits. torch makes the first
        # state by a step without a closure.
        return not has_closure and not self.optimizer.state and self._only_makes_state(self.optimizer)

    def learning_rates(self, layers: Sequence[Layer]) -> list[LearningRate]:
        """Return the learning rates of layers, from the parameter groups of their weights and biases."""
        # Anew in each call, because schedulers replace the numbers in the groups.
        rates = {id(p): group["lr"] for group in self.optimizer.param_groups for p in group["params"]}
        return [_rate(layer, [rates.get(id(parameter)) for parameter in layer.parameters]) for layer in layers]

    def remove(self) -> None:
        """Remove the hooks, and what the optimizer's state has of the preconditioner."""
        for handle in [*self._handles, *([] if self._after_step is None else [self._after_step])]:
            handle.remove()
        self.state.remove()
        for name in ("__deepcopy__", "__reduce_ex__", STEPPED_BY):  # the class's own are found again
            self.optimizer.__dict__.pop(name, None)

    def _only_makes_state(self, optimizer: Optimizer) -> bool:
        """Return whether a step is the one by which `torch.distributed.checkpoint` makes an optimizer's first state.

        It has gradients and learning rates of 0, to change nothing, and counts as little here.
        """
        # A warm-up's first step may have rates of 0 as well, but a backward pass comes before it.
        if self._has_captured() or any(float(group.get("lr", 0)) for group in optimizer.param_groups):
            return False
        return all(is_zero(p.grad) for group in optimizer.param_groups for p in group["params"])


def check_target(optimizer: Optimizer, layers: Iterable[Layer], methods: Iterable[Method]) -> None:
    """Refuse an optimizer on which a preconditioner would have no effect, and warn of options that have none.

    Raises:
        TypeError: not a torch optimizer, or LBFGS.
        ValueError: the optimizer steps no weight of the layers.
    """
    target = _unwrapped(optimizer)
    stepped = {id(parameter) for group in target.param_groups for parameter in group["params"]}
    # By identity: FSDP, for one, replaces a model's parameters; an optimizer made before that still has the old ones.
    if not any(id(layer.weight) in stepped for layer in layers):
        raise ValueError(
            f"This {type(target).__name__} steps no weight of a layer that is preconditioned: make it of the "
            "parameters of the Preconditioner's model."
        )
    for method in methods:
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
    # Accelerate's wrapper is an Optimizer too, so what is inside is asked for first. Wrappers may be nested.
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is not a torch.optim.Optimizer (nor is DeepSpeed's): attach to one, e.g. SGD."
        )
    if isinstance(optimizer, LBFGS):
        raise TypeError("LBFGS evaluates its closure many times per step: attach to a first-order optimizer, e.g. SGD.")
    return optimizer


def _warn_of_copies(optimizer: Optimizer) -> None:
    """Make ``copy.deepcopy(optimizer)``, and loading a pickle of it, warn that the copy has no hooks."""

    def copy_without_hooks(memo: dict[int, Any]) -> Optimizer:
        warnings.warn(COPIED, stacklevel=3)
        # As copy.deepcopy does by itself, but without our marks: the copy has no hooks that would replace them by
        # tensors. The memo comes first, since what is copied may refer back to the optimizer.
        duplicate: Optimizer = type(optimizer).__new__(type(optimizer))
        memo[id(optimizer)] = duplicate
        duplicate.__setstate__(copy.deepcopy(without_preconditioner(optimizer.__getstate__()), memo))
        return duplicate

    def reduce_without_hooks(protocol: SupportsIndex) -> tuple[Any, ...]:
        # That of the class: the instance's own is this function, which would call itself forever.
        make, arguments, state, *rest = cast("tuple[Any, ...]", type(optimizer).__reduce_ex__(optimizer, protocol))
        # The warning comes when the pickle is loaded, not when it is written.
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
    # Tensors are compared by identity, since their values would make the host wait; a group's parameters share one.
    if weight is None or bias is None or weight is bias or (isinstance(weight, float) and weight == bias):
        return weight
    # One rate per column of D; the last column is the bias.
    device = layer.parameters[0].device
    first = weight.to(device) if isinstance(weight, Tensor) else torch.full((), weight, device=device)
    columns = first.expand(layer.d_in).clone()  # [d_w + 1], a copy with memory of its own
    columns[-1] = bias
    return columns
