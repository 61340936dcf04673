"""A method at work on a model: hooks, periods, exchange between ranks, and riding along with a torch optimizer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Self, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle

from mkor_core import comm
from mkor_core.capture import Capture, Captured
from mkor_core.discovery import Exclude, find_layers, refuse_sharded
from mkor_core.exchange import exchange
from mkor_core.layer import Layer, wide_dtype
from mkor_core.losses import Arriving, LossHistory
from mkor_core.method import LayerShape, LayerState, Method, Update
from mkor_core.ranges import AT_LEAST_1, POSITIVE, require
from mkor_core.sharing import Sharing

STATE_KEY = "preconditioner"
"""The entry of an optimizer's state dict that carries the preconditioner's."""


class Preconditioner:
    """Preconditions the gradients of a model's Linear and Conv2d layers before an optimizer steps.

    ``Preconditioner(model, MKOR()).attach(optimizer)`` is all that a training loop needs; without `attach`, call
    `step` between the backward pass and ``optimizer.step()``. A trainer's gradient clipping comes before it.

    Layers that are not supported, share their weight with another module, or are excluded keep their plain gradient;
    the first two are logged once, by name. A layer with no gradient in a step is left alone.

    exclude: regular expressions searched for in module names, or modules; what lies inside them is excluded too.
    lr: the learning rate that kl_clip reads; None takes each parameter group's own.
    accumulation_steps: micro-batches (backward passes) that make up a step, the loss being divided by their number.
    grad_scale: the loss scale that captured gradients must be divided by: a number, a ``GradScaler`` or a callable.
    process_group: the ranks that share the global batch; None takes all.

    Raises:
        ValueError: an argument out of range, a pattern that matches no module, or a model without a layer to work on.
        TypeError: no method, or a model whose parameters are sharded.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        exclude: Exclude = (),
        lr: float | None = None,
        accumulation_steps: int = 1,
        grad_scale: float | Any | Callable[[], Tensor | float] = 1.0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if not isinstance(method, Method):
            raise TypeError(f"{method!r} is no method; pass one, such as MKOR().")
        require("accumulation_steps", accumulation_steps, Annotated[int, AT_LEAST_1])
        require("lr", lr, Annotated[float | None, POSITIVE])
        if not callable(grad_scale) and not isinstance(grad_scale, torch.amp.GradScaler):
            require("grad_scale", grad_scale, Annotated[float, POSITIVE])
        refuse_sharded(model)
        self.method = method
        self.phases: Callable[[str], AbstractContextManager[object]] = nullcontext
        """Makes the context of a part of the work by its name: capture, communication, factor, precondition."""
        self.switch_step: int | None = None
        """The step (from 0) at which the method left the field to the base optimizer; None while it works."""
        self._lr = lr
        self._grad_scale = grad_scale
        self._group = process_group
        self._optimizer: Optimizer | None = None
        self._handles: list[RemovableHandle] = []
        self._step = 0
        self._released = False
        self._states: dict[str, LayerState] = {}
        self._layers = find_layers(model, exclude)
        world = comm.world_size(process_group)
        self._capture = Capture(
            self._layers,
            method.statistic,
            micro_batches=accumulation_steps,
            shares=1 if method.rank_rows else world,
            shard=(0, 1) if method.rank_rows else (comm.rank(process_group), world),
            grad_scale=self._loss_scale,
            phases=lambda name: self.phases(name),
        )
        self._losses = LossHistory(model, accumulation_steps) if method.follows_loss else None
        self._sharing = Sharing(list(self._layers.values()), method, process_group) if world > 1 else None
        self._consolidated: dict[str, LayerState] | None = None
        self._skipped: Arriving | None = None
        self._stepped: set[int] | None = None  # ids of the attached optimizer's parameters; None: not attached

    def attach(self, optimizer: Optimizer) -> Self:
        """Precondition before every ``optimizer.step()``, and ride in ``optimizer.state_dict()``.

        With a closure, the gradients that it computes are preconditioned before the optimizer uses them. A wrapper that
        keeps the true optimizer as ``.optimizer`` (accelerate's) is unwrapped. Layers whose weight the optimizer does
        not step are left alone. ``copy.deepcopy`` of an optimizer drops its hooks, and warns.

        Raises:
            TypeError: no torch optimizer, or LBFGS, which evaluates its closure many times a step.
            RuntimeError: attached already, or another preconditioner is attached to the optimizer.
        """
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = inner
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{type(optimizer).__name__} is no torch.optim.Optimizer (DeepSpeed's is not): attach to one, e.g. SGD."
            )
        if isinstance(optimizer, LBFGS):
            raise TypeError(
                "LBFGS evaluates its closure many times a step; attach to a first-order optimizer, e.g. SGD."
            )
        if self._optimizer is not None:
            raise RuntimeError("This Preconditioner is attached already; call remove() and make a new one.")
        if any(isinstance(_owner(hook), Preconditioner) for hook in optimizer._optimizer_step_pre_hooks.values()):
            raise RuntimeError("The optimizer has a Preconditioner already: it would precondition twice.")
        self._optimizer = optimizer
        _warn_of_copies(optimizer)
        self._handles += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_post_hook(self._save_into),
            optimizer.register_load_state_dict_pre_hook(self._load_from),
        ]
        return self

    @torch.no_grad()
    def step(self) -> None:
        """Precondition the gradients in place: exchange statistics, update the layers' states, write V for D."""
        if self.switch_step is not None:
            return
        if self._optimizer is not None:
            self._stepped = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        if self._capture.is_empty and not any(layer.has_gradient() for layer in self._active_layers()):
            self._capture.drop()
            return  # a step without a backward pass is none
        self._consolidated = None
        self._settle_step()
        valid = self._note_validity()
        loss = self._losses.take(self._a_weight()) if self._losses else None
        counting: dict[str, Tensor | None] = {}
        if self.method.accumulates(self._step):
            counting = self._accumulate(loss, valid)
        else:
            self._capture.drop()
        if self.method.refreshes(self._step):
            self._refresh(counting, valid)
        self._precondition()
        due, self._step = self.method.accumulates(self._step), self._step + 1
        # A step that may turn out to be skipped is due again: the next one is captured before anybody knows.
        self._capture.enabled = self.method.accumulates(self._step) or (due and valid is not None)
        if self._losses and counting:
            if not self._losses.heard and self.method.loss_is_due(self._step):
                raise RuntimeError(
                    f"{type(self.method).__name__} follows the training loss and has heard none in {self._step} steps: "
                    "pass a closure to step(), let the model return an output with .loss, or call observe(loss)."
                )
            if self.method.is_over(self._losses.history, self._step):
                self._switch_off(self._step)

    def observe(self, loss: Tensor | float) -> None:
        """Tell a method that follows the loss (MKOR-H) this step's training loss; others do not listen."""
        if self._losses:
            self._losses.put("observe", loss)

    def remove(self) -> None:
        """Take all hooks off the model and the optimizer, and free the state."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._optimizer is not None:
            self._optimizer.__dict__.pop("__deepcopy__", None)
        self._release()

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers under preconditioning, in the model's order."""
        return tuple(self._layers)

    def memory_bytes(self) -> int:
        """Return the bytes of all state tensors of this rank."""
        return sum(self.memory_by_tensor().values())

    def memory_by_tensor(self) -> dict[str, int]:
        """Return the bytes of the state by tensor name (``left``, ``right``, ...), over all layers; none once freed."""
        sizes: dict[str, int] = {}
        for layer in [] if self._released else self._active_layers():
            for key, tensor in self._state(layer).items():
                sizes[key] = sizes.get(key, 0) + tensor.numel() * tensor.element_size()
        return sizes

    def non_finite_layers(self) -> list[str]:
        """Return the layers whose state holds a NaN or an infinity. Reads from the device: not for every step."""
        finite = [
            (name, torch.stack([tensor.isfinite().all() for tensor in state.values()]).all())
            for name, state in self._states.items()
        ]
        return [name for name, is_finite in finite if not is_finite]

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the method and every layer's tensors (not copied), fit for ``weights_only`` loading."""
        self._settle_step()
        return {
            "method": type(self.method).__name__,
            "hyperparameters": {key: _plain(value) for key, value in asdict(self.method).items()},
            "step": self._step,
            "switch_step": self.switch_step,
            "losses": self._losses.state_dict() if self._losses else None,
            "layers": {name: dict(state) for name, state in (self._consolidated or self._states).items()},
        }

    def consolidate(self) -> None:
        """Bring every rank's part of the state to all of them, so that one rank's `state_dict` is whole.

        A collective call, good until the next step. Only needed where ranks hold different parts (KAISA with
        ``grad_worker_fraction`` below 1) and one of them saves for all; nothing happens elsewhere.
        """
        if self._sharing is not None and not self._sharing.is_whole:
            self._consolidated = self._sharing.gather(
                self._states, lambda name: self._initial_state(self._layers[name])
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state; loading the same one twice is as good as once.

        With ranks that hold different parts, each takes its part of a consolidated state, or the one it saved itself.

        Raises:
            ValueError: another method's state, a layer that the model lacks, or a tensor of another shape.
            RuntimeError: MKOR-H has switched here, so its hooks are gone, and had not in the state.
        """
        if state["method"] != type(self.method).__name__:
            raise ValueError(f"This state is {state['method']}'s; the method here is {type(self.method).__name__}.")
        if self.switch_step is not None and state["switch_step"] is None:
            raise RuntimeError("This Preconditioner has handed over to the base optimizer: load into a new one.")
        states = {self._known_as(name): dict(tensors) for name, tensors in state["layers"].items()}
        for name, tensors in states.items():
            if name not in self._layers:
                raise ValueError(f"The state has a layer {name!r} that is not preconditioned here.")
            initial = self._own_part(name, self._initial_state(self._layers[name]))
            tensors = self._own_part(name, tensors)
            for key in sorted(initial.keys() ^ tensors.keys()):
                raise ValueError(f"The state of layer {name!r} and the method here differ in tensor {key!r}.")
            for key, tensor in tensors.items():
                if not _fits(tensor.shape, initial[key].shape):
                    shapes = f"{tuple(tensor.shape)}, not {tuple(initial[key].shape)}"
                    raise ValueError(f"Tensor {key!r} of layer {name!r} has shape {shapes}.")
                tensors[key] = tensor.detach().to(initial[key].device, initial[key].dtype, copy=True)
            states[name] = tensors
        self._states = states
        self._step = state["step"]
        self._skipped = None
        self._capture.drop()
        self._capture.enabled = self.method.accumulates(self._step)
        if self._losses and state["losses"] is not None:
            self._losses.load_state_dict(state["losses"])
        if state["switch_step"] is not None:
            self._switch_off(state["switch_step"])

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.step()
            return None

        def evaluate_then_precondition() -> Any:
            loss = closure()
            if self._losses and loss is not None:
                self._losses.put("closure", loss)
            self.step()
            return loss

        if len(args) > 1:
            return (args[0], evaluate_then_precondition, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluate_then_precondition}

    def _save_into(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        state[STATE_KEY] = self.state_dict()

    def _load_from(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        if STATE_KEY in state:
            self.load_state_dict(state[STATE_KEY])
        else:
            warnings.warn(
                "The optimizer's state dict holds no preconditioner state: its factors start anew.",
                stacklevel=2,
            )
            self._states = {}
            self._step = 0
            self._capture.enabled = True

    def _loss_scale(self) -> Tensor | float | None:
        scale = self._grad_scale
        if isinstance(scale, torch.amp.GradScaler):
            return scale._scale if scale.is_enabled() else None  # the tensor: get_scale() would wait for the device
        if callable(scale):
            return cast("Tensor | float", scale())
        return None if scale == 1.0 else cast("float", scale)

    def _note_validity(self) -> Tensor | None:
        """Return whether a fused optimizer will take this step, which only the device knows; None: it will."""
        found_inf: Tensor | None = getattr(self._optimizer, "found_inf", None)
        if found_inf is None:
            return None
        self._skipped = Arriving(found_inf)
        return found_inf == 0

    def _settle_step(self) -> None:
        """Take the last step back if it turned out to be skipped, as one with an unfused optimizer would not count."""
        if self._skipped is not None and self._skipped.read():
            self._step -= 1
        self._skipped = None

    def _a_weight(self) -> Tensor:
        return next(iter(self._layers.values())).module.weight

    def _active_layers(self) -> list[Layer]:
        return [
            layer
            for layer in self._layers.values()
            if layer.module.weight.requires_grad and (self._stepped is None or id(layer.module.weight) in self._stepped)
        ]

    def _known_as(self, name: str) -> str:
        """Return the name here of a layer in a state that may come from a wrapped, or an unwrapped, model."""
        candidates = (name, name.removeprefix("module."), f"module.{name}", "" if name == "module" else name)
        return next((candidate for candidate in candidates if candidate in self._layers), name)

    def _initial_state(self, layer: Layer) -> LayerState:
        weight = layer.module.weight
        return self.method.initial_state(
            LayerShape(layer.d_out, layer.d_in), wide_dtype(weight.dtype), torch.device(weight.device)
        )

    def _state(self, layer: Layer) -> LayerState:
        # Made late, so that a model may move to its device after the preconditioner was made.
        if layer.name not in self._states:
            self._states[layer.name] = self._own_part(layer.name, self._initial_state(layer))
        state, device = self._states[layer.name], layer.module.weight.device
        for key, tensor in state.items():
            if tensor.device != device:
                state[key] = tensor.to(device)
        return state

    def _own_part(self, name: str, state: LayerState) -> LayerState:
        return state if self._sharing is None else self._sharing.forget_what_others_hold(name, state)

    def _take(self) -> dict[str, Captured]:
        if self.method.statistic.kind != "rows":
            return self._capture.take()
        return {name: self.method.condense(rows, self._step) for name, rows in self._capture.take_rows().items()}

    def _accumulate(self, loss: Tensor | None, valid: Tensor | None) -> dict[str, Tensor | None]:
        """Fold the step's statistics into the states.

        Returns, for every layer with statistics, whether they count: None for yes, a tensor if only the device knows.
        """
        with self.phases("factor"):
            captured = self._take()
        with self.phases("communication"):
            statistics, loss = exchange(self._active_layers(), captured, loss, method=self.method, group=self._group)
        if self._losses:
            self._losses.record(loss)
        counting: dict[str, Tensor | None] = {}
        with self.phases("factor"):
            added = comm.world_size(self._group) > 1 and not self.method.gathers_rows
            for name, kept in statistics.items():
                used = kept.number > 0 if added else None
                counting[name] = used if valid is None else valid if used is None else valid & used
                self._change(name, counting[name], partial(self.method.accumulate, captured=kept, step=self._step))
        return counting

    def _refresh(self, counting: Mapping[str, Tensor | None], valid: Tensor | None) -> None:
        with self.phases("factor"):
            if self.method.refresh_needs_statistics:
                due = dict(counting)
            else:
                due = {layer.name: valid for layer in self._active_layers()}
            shared = self._sharing if self.method.refreshed else None
            for name, accept in due.items():
                if shared is None or shared.owns(name):
                    self._change(name, accept, partial(self.method.refresh, step=self._step))
        if shared is not None:
            with self.phases("communication"):
                shared.share_refreshed({name: self._state(self._layers[name]) for name in due}, list(due))

    def _change(self, name: str, accept: Tensor | None, change: Callable[[LayerState], None]) -> None:
        """Change a layer's state unless the device says no: a step to be skipped, a layer that no rank used."""
        state = self._state(self._layers[name])
        before = dict(state)
        change(state)
        if accept is not None:
            for key, tensor in before.items():
                if state[key].shape != tensor.shape:  # kept rows change in number: rare, and then the host must know
                    state[key] = state[key] if accept else tensor
                elif state[key] is not tensor:
                    state[key] = torch.where(accept, state[key], tensor)

    def _precondition(self) -> None:
        layers = [layer for layer in self._active_layers() if layer.has_gradient()]
        scale = getattr(self._optimizer, "grad_scale", None)  # a fused optimizer's gradients come scaled
        values: dict[str, Tensor] = {}
        with self.phases("precondition"):
            grads = [layer.gradient() if scale is None else layer.gradient() / scale for layer in layers]
            for layer, grad in zip(layers, grads, strict=True):
                works = self._sharing is None or self._sharing.works_on(layer.name)
                values[layer.name] = self.method.precondition(self._state(layer), grad) if works else grad
        if self._sharing is not None:
            with self.phases("communication"):
                self._sharing.share_updates(values)
        with self.phases("precondition"):
            rates = self._learning_rates(layers)
            updates = [Update(*parts) for parts in zip(grads, values.values(), rates, strict=True)]
            for layer, value in zip(layers, self.method.finish(updates), strict=True):
                layer.write_gradient(value if scale is None else value * scale)

    def _learning_rates(self, layers: Sequence[Layer]) -> list[float | Tensor | None]:
        if self._lr is not None or not self.method.needs_lr or self._optimizer is None:
            return [self._lr] * len(layers)
        rates = {id(p): group["lr"] for group in self._optimizer.param_groups for p in group["params"]}
        return [_rate(layer, [rates.get(id(parameter)) for parameter in layer.parameters]) for layer in layers]

    def _switch_off(self, step: int) -> None:
        self.switch_step = step
        self._release()

    def _release(self) -> None:
        self._released = True
        self._capture.remove()
        self._states = {}
        if self._losses:
            self._losses.remove()


def _fits(shape: torch.Size, initial: torch.Size) -> bool:
    """Tell whether a tensor's shape suits a state that starts with ``initial``; a size of 0 there may grow."""
    return len(shape) == len(initial) and all(b in (0, a) for a, b in zip(shape, initial, strict=True))


def _rate(layer: Layer, rates: list[float | Tensor | None]) -> float | Tensor | None:
    """Return a layer's learning rate, one a column if its bias, the last column, has another than its weight."""
    weight, bias = rates[0], rates[-1]
    if weight is None or bias is None or weight is bias or (isinstance(weight, float) and weight == bias):
        return weight
    columns = torch.as_tensor(weight, device=layer.module.weight.device).expand(layer.d_in).clone()
    columns[-1] = bias
    return columns


def _owner(hook: Callable[..., Any]) -> object:
    return getattr(hook, "__self__", None)


def _warn_of_copies(optimizer: Optimizer) -> None:
    """Let ``copy.deepcopy(optimizer)`` say what it loses; it copies as before."""

    def copy_without_hooks(memo: dict[int, Any]) -> Optimizer:
        warnings.warn("A copied optimizer preconditions no more: attach a new Preconditioner to it.", stacklevel=3)
        duplicate: Optimizer = type(optimizer).__new__(type(optimizer))
        memo[id(optimizer)] = duplicate
        duplicate.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
        return duplicate

    optimizer.__dict__["__deepcopy__"] = copy_without_hooks


def _plain(value: Any) -> Any:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
