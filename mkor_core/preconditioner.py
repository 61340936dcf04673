"""The preconditioner: one method, or several by layers' names, applied to a model and attached to its optimizer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from mkor_core.applied import AppliedMethod, step_hook
from mkor_core.attachment import Attachment, check_target
from mkor_core.capture.autograd import Precision
from mkor_core.capture.discovery import Exclude, refuse_sharded, select_layers
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import loss_scale
from mkor_core.engines.choice import Setting
from mkor_core.engines.comparison import Comparison
from mkor_core.engines.description import describe, oversized, warn
from mkor_core.engines.engine import Phases, PhasesOfWork
from mkor_core.engines.in_kernels import Kernels
from mkor_core.method import Distributed, Method
from mkor_core.ranges import AT_LEAST_1, POSITIVE, require
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Codec
from mkor_core.ranks.schedule import Schedule
from mkor_core.saving.attached import StateSource
from mkor_core.saving.checks import check_several

OTHER = "no method is given for it"
"""The reason for which a layer is left out if several methods are given by name."""


class Preconditioner:
    """Preconditions the gradients of a model's linear layers and convolutions before an optimizer steps.

    ``Preconditioner(model, MKOR()).attach(optimizer)`` is all that a training loop needs; without `attach`, call `step`
    between the backward pass and ``optimizer.step()``. A trainer that clips gradients does so before that.

    Other modules keep their plain gradient: ``print(preconditioner)`` says why, a warning if they are a good part of
    the model. Parameters may be sharded by ``fully_shard``, tensor parallelism or both before.

    Args:
        model: the model, which may be in a data-parallel wrapper.
        method: the second-order method, such as ``MKOR()``; or several, each under a regular expression that is
            searched for in layers' names. The first that fits decides: ``{"head": MKOR(window=4), "": MKOR()}``.
        exclude: regular expressions searched for in module names, or modules; modules inside them are excluded too.
        lr: the learning rate that kl_clip uses, or a function that returns it; None: that of each parameter group.
        accumulation_steps: micro-batches (backward passes) per step; the loss must be divided by their number.
        grad_scale: the loss scale that captured gradients are divided by: a number, a ``GradScaler`` or a callable.
        process_group: the ranks that share the global batch; None means all.
        precision: that of the matrix products on gradients; None means ``high`` on CUDA and ``highest`` elsewhere.
            Factors are updated in ``highest``.
        owners: whether each layer has one owner among the ranks, which gets its whole gradient, sends back the update,
            and alone holds the state (but all have KAISA's factors and HyLo's rows): less memory and work on every rank
            for more communication. None: if the parameters are sharded and the method cannot work on their blocks.
        codec: the lossy code in which ranks send rows, decompositions and updates; None sends them as they are.
        schedule: SPD-KFAC's, for KAISA on several ranks, which changes no number; None: one message at a time.
        kernels: ``triton`` preconditions with Triton kernels, in place and in few launches: MKOR with a window and Eva,
            of whole gradients; on a CPU in Triton's interpreter, with TRITON_INTERPRET=1. ``auto`` does so on CUDA
            devices if Triton is installed, ``eager`` never.

    Raises:
        ValueError: an argument out of range, a pattern that matches no module, or a model without a layer to
            precondition; a pattern of ``method`` that fits no layer.
        TypeError: ``method`` is no method and no mapping of methods, or parameters are sharded in a way that it cannot
            work with.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method | Mapping[str, Method],
        *,
        exclude: Exclude = (),
        lr: float | Callable[[], float | Tensor] | None = None,
        accumulation_steps: int = 1,
        grad_scale: float | Any | Callable[[], Tensor | float] = 1.0,
        process_group: ProcessGroup | None = None,
        precision: Precision | None = None,
        owners: bool | None = None,
        codec: Codec | None = None,
        schedule: Schedule | None = None,
        kernels: Kernels = "auto",
    ) -> None:
        require("accumulation_steps", accumulation_steps, Annotated[int, AT_LEAST_1])
        if not callable(lr):
            require("lr", lr, Annotated[float | None, POSITIVE])
        require("precision", precision, Precision | None)
        require("codec", codec, Codec | None)
        require("schedule", schedule, Schedule | None)
        require("kernels", kernels, Kernels)
        if not callable(grad_scale) and not isinstance(grad_scale, torch.amp.GradScaler):
            require("grad_scale", grad_scale, Annotated[float, POSITIVE])
        # FSDP1 and ZeRO-3 hide the matrices of layers: without this check, select_layers would fail for another reason.
        refuse_sharded(model)
        methods = {"": method} if isinstance(method, Method) else _checked(method)  # the empty pattern fits every name
        selection = select_layers(model, exclude)
        divided = _divided(selection.layers, methods)
        # In the model's order, not method by method.
        self._layers = {name: layer for name, layer in selection.layers.items() if any(name in of for of in divided)}
        self._left_out = selection.left_out | dict.fromkeys(selection.layers.keys() - self._layers.keys(), OTHER)
        # What is left out is the same for all methods, so it is reported once. The loop below warns of the large states
        # of the other methods.
        warn(next(iter(methods.values())), divided[0], selection.left_out, selection.coverage)
        setting = Setting(
            model,
            phases := PhasesOfWork(),  # shared by all parts, so that a clock set later reaches all
            lr,
            accumulation_steps,
            partial(loss_scale, grad_scale),  # called in every backward pass: a scaler's scale changes
            process_group,
            precision,
            owners,
            codec,
            schedule,
            kernels,
        )
        self._phases = phases
        self._group = process_group
        self._parts: list[AppliedMethod] = []
        for one, layers in zip(methods.values(), divided, strict=True):
            if self._parts and (message := oversized(one, layers)) is not None:
                warnings.warn(message, stacklevel=2)
            # One of them tells of layers that come later.
            self._parts.append(AppliedMethod(one, layers, None if self._parts else selection.roster, setting))
        self._patterns = None if isinstance(method, Method) else list(methods)  # None: plain form of `state_dict`
        self._attachment: Attachment | None = None

    def __repr__(self) -> str:
        texts = []
        for part in self._parts:
            states = None if part.is_released else part.states.by_layer()  # None: freed; empty: not made yet
            # They belong to no method, so they are listed once, at the end.
            left_out = self._left_out if part is self._parts[-1] else {}
            texts.append(describe(part.method, part.layers, part.active_layers(), left_out, states))
        return "\n".join(texts)

    def attach(self, optimizer: Optimizer) -> Self:
        """Precondition before every ``optimizer.step()``, and keep the state in ``optimizer.state_dict()``.

        With a closure, the gradients that it computes are preconditioned before the optimizer uses them. A wrapper that
        keeps the true optimizer as ``.optimizer`` (accelerate's) is unwrapped. Layers whose weight the optimizer does
        not step are left alone. A deep copy of the optimizer, or loading a pickle of it, warns: it has no hooks.

        Raises:
            TypeError: not a torch optimizer, or LBFGS, which evaluates its closure many times per step.
            ValueError: the optimizer steps no weight of a layer that is preconditioned.
            RuntimeError: this preconditioner is attached already, or another one is attached to the optimizer.
        """
        if self._attachment is not None:
            raise RuntimeError("This Preconditioner is already attached: call remove() and construct a new one.")
        # Before anything is registered on the optimizer, so that a refused one stays as it was.
        check_target(optimizer, self._layers.values(), [part.method for part in self._parts])
        source = StateSource(self._layers, _Kept(self._parts), self.state_dict, self._load, self._is_over)
        # Whether anything was captured tells a training step from one that only makes the optimizer's first state.
        self._attachment = Attachment(
            optimizer, source, step_hook(self._parts), lambda: any(part.capture.reached for part in self._parts)
        )
        for part in self._parts:
            part.attach(self._attachment)
        return self

    def step(self) -> None:
        """Precondition the gradients in place: exchange statistics, update the layers' states, replace D by V.

        Raises:
            RuntimeError: factors are to be updated in training mode, but no layer has captured statistics; or the
                method follows the loss (MKOR-H), and none has come by the end of its warm-up.
        """
        for part in self._parts:
            part.step()

    def observe(self, loss: Tensor | float) -> None:
        """Pass this step's training loss to a method that follows it (MKOR-H); ignored by other methods."""
        for part in self._parts:
            if part.losses is not None:
                part.losses.put("observe", loss)

    def set(self, **hyperparameters: Any) -> None:
        """Change hyperparameters from the next step on, such as ``set(damping=1e-3)``; a saved state has them, too.

        Of several methods, all that have a hyperparameter get its value.

        Raises:
            ValueError: no method has it; the value is out of its range; or it cannot change while a method trains: it
                gives the state its meaning (`Method.fixed_in_state`), says what the hooks capture, or whether there is
                a clip.
        """
        # If no method has one, the first is asked for it, and raises the error that names those that it has.
        unknown = {key for key in hyperparameters if not any(hasattr(part.method, key) for part in self._parts)}
        changes: list[tuple[AppliedMethod, dict[str, Any]]] = []
        for part in self._parts:
            asked = unknown if part is self._parts[0] else set()
            own = {key: new for key, new in hyperparameters.items() if hasattr(part.method, key) or key in asked}
            changes.append((part, own))
        for part, own in changes:  # what one method refuses, none gets
            part.changed_method(own)
        for part, own in changes:
            part.set(own)

    def remove(self) -> None:
        """Remove all hooks from the model and the optimizer, and free the state."""
        if self._attachment is not None:
            self._attachment.remove()
        for part in self._parts:
            part.release()

    @property
    def method(self) -> Method:
        """The method; of several, the first."""
        return self._parts[0].method

    @property
    def phases(self) -> Phases:
        """Returns the context manager for a phase of the work: capture, communication, factor or precondition."""
        return self._phases.of

    @phases.setter
    def phases(self, of: Phases) -> None:
        self._phases.of = of

    @property
    def switch_step(self) -> int | None:
        """The step (from 0) at which MKOR-H switched to the base optimizer alone; None before."""
        return next((part.switch_step for part in self._parts if part.switch_step is not None), None)

    @property
    def precision(self) -> Precision:
        """The precision of the matrix products on gradients."""
        return self._parts[0].precision

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the preconditioned layers, in the model's order."""
        return tuple(self._layers)

    def memory_bytes(self) -> int:
        """Return the bytes of all state tensors on this rank."""
        return sum(self.memory_by_tensor().values())

    def memory_by_tensor(self) -> dict[str, int]:
        """Return the bytes of all layers' states by tensor name (``left``, ``right``, ...); empty once freed."""
        sizes: dict[str, int] = {}
        for part in self._parts:
            # The states of the layers that are passed are made if need be, which must not bring back freed ones.
            own = part.states.bytes_by_tensor([] if part.is_released else part.active_layers())
            # Two methods may both have a tensor `left`.
            sizes.update({key: sizes.get(key, 0) + size for key, size in own.items()})
        return sizes

    def compare_next_step(self) -> None:
        """Compare every layer's update V with its gradient D in the next step, for `comparisons`."""
        for part in self._parts:
            part.comparisons.request()

    def comparisons(self) -> dict[str, Comparison]:
        """Return what the last compared step found, by layer, without sharded layers; waits for the device."""
        found = {name: one for part in self._parts for name, one in part.comparisons.read().items()}
        return {name: found[name] for name in self._layers if name in found}  # in the model's order

    def non_finite_layers(self) -> list[str]:
        """Return the layers whose state on this rank has a NaN or an infinity; waits for the device."""
        wrong = {name for part in self._parts for name in part.states.non_finite()}
        return [name for name in self._layers if name in wrong]

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the method and every layer's tensors (not copied), fit for ``weights_only`` loading.

        Layers that have had no statistics yet have the state of the first step, so that
        `torch.distributed.checkpoint.load` knows what to load. Of several methods, what is not a layer's stands under
        ``methods``, by pattern.
        """
        if self._patterns is None:
            return self._parts[0].saved()
        states = [part.saved() for part in self._parts]
        # A layer has one method, so no name comes twice, and a load finds each layer's method by its name.
        layers = {name: tensors for state in states for name, tensors in state.pop("layers").items()}
        return {"methods": dict(zip(self._patterns, states, strict=True)), "layers": layers}

    def consolidate(self, rank: int | None = None) -> None:
        """Gather every rank's part of the state in host memory, so that the `state_dict` of ``rank`` is complete.

        A collective call; the result holds until the next step. Only needed if one rank saves for all and they hold
        different parts (of layers with owners, of KAISA with ``grad_worker_fraction`` below 1); else it does nothing.

        rank: the rank of the process group that keeps the state; None: every rank does.

        Raises:
            ValueError: the process group has no such rank.
        """
        comm.require_rank(rank, self._group)  # all ranks fail alike, before any of them waits for others
        for part in self._parts:
            part.consolidate(rank)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; loading the same one twice has the effect of loading it once.

        If ranks hold different parts, each takes its part of a consolidated state, or the one that it saved itself.

        A state that is refused changes nothing. Hyperparameters may differ unless the method says that they give the
        tensors their meaning (`Method.fixed_in_state`); those that `set` had changed are those of the state.

        Raises:
            ValueError: the state is no such state, or one of another method, or has other hyperparameters than it may,
                a layer that the model lacks, or a tensor of another shape or kind of number.
            RuntimeError: MKOR-H has switched, so its hooks are gone, but had not when the state was saved.
        """
        self._load(state)

    def _load(self, state: Mapping[str, Any] | None, required: Collection[str] | None = None) -> None:
        """Restore a state, which must have the required layers, None for all that are trained; or start anew."""
        if state is None:  # the optimizer has loaded a state without a preconditioner's
            for part in self._parts:
                part.restart()
        elif self._patterns is None:
            self._parts[0].load(state, required)
        else:
            check_several(state, self._patterns)
            for pattern, part in zip(self._patterns, self._parts, strict=True):
                layers = {name: tensors for name, tensors in state["layers"].items() if part.has(name)}
                # The same form as with a single method.
                part.load({**state["methods"][pattern], "layers": layers}, required)

    def _is_over(self) -> bool:
        # Of several methods MKOR-H may have switched while others go on: then there are tensors to save.
        return all(part.is_released for part in self._parts)


class _Kept:
    """The tensors of all methods, as far as an optimizer's state needs them; see `mkor_core.saving.attached.Engine`."""

    def __init__(self, parts: list[AppliedMethod]) -> None:
        self._parts = parts

    def prepare_states(self, layers: Sequence[Layer]) -> None:
        for part in self._parts:
            # The optimizer's state knows weights, not methods: each part takes the layers that are its own.
            part.states.prepare([layer for layer in layers if layer.name in part.layers])

    def saved(self) -> dict[str, dict[str, Tensor]]:
        return {name: tensors for part in self._parts for name, tensors in part.saved_layers().items()}

    def consolidate(self, rank: int | None) -> None:
        for part in self._parts:
            part.consolidate(rank)

    def clear(self) -> None:
        for part in self._parts:
            part.states.clear()

    def refreshed(self, name: str) -> tuple[str, ...]:
        # The decompositions of KAISA, for instance, which some ranks may lack. Other methods' states are whole or
        # missing.
        part = next(part for part in self._parts if name in part.layers)
        return part.method.refreshed if isinstance(part.method, Distributed) else ()


def _checked(methods: object) -> dict[str, Method]:
    """Return several methods by pattern.

    Raises:
        TypeError: they are no mapping of methods.
    """
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(f"method={methods!r} is not an instance of Method; pass one, such as MKOR().")
    for pattern, method in methods.items():
        if not isinstance(pattern, str) or not isinstance(method, Method):
            raise TypeError(f"method[{pattern!r}]={method!r} is not an instance of Method; pass one, such as MKOR().")
    return dict(methods)


def _divided(layers: Mapping[str, Layer], methods: Mapping[str, Method]) -> list[dict[str, Layer]]:
    """Return the layers of each method: those in whose names its pattern is found first.

    Raises:
        ValueError: a pattern fits no layer, or only layers of those before it.
    """
    divided: list[dict[str, Layer]] = [{} for _ in methods]
    for name, layer in layers.items():
        # With {"head": A, "": B}, "model.head" fits both patterns and goes to A, the first; any other layer goes to B.
        places = [index for index, pattern in enumerate(methods) if re.search(pattern, name)]
        if places:
            divided[places[0]][name] = layer
    # A mistyped pattern would otherwise silently leave its layers to a later method or the base optimizer.
    for pattern, found in zip(methods, divided, strict=True):
        if not found:
            raise ValueError(f"method[{pattern!r}] has no layer: no name fits, or patterns before it take all that do.")
    return divided
