"""The preconditioner, which applies a method to a model: hooks, periods, exchange between ranks, attachment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from mkor_core.attachment import Attachment, check_target
from mkor_core.capture.autograd import Precision, autocast_dtype, matmul_precision, without_autocast
from mkor_core.capture.discovery import Exclude, refuse_sharded, select_layers
from mkor_core.capture.layer import Layer, ShardedLayer, modules_of
from mkor_core.capture.losses import LossHistory
from mkor_core.capture.reductions import loss_scale
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.statistics import Sums, join_rows
from mkor_core.engines.choice import choose_capture, choose_work
from mkor_core.engines.clipping import known
from mkor_core.engines.comparison import Comparison, Comparisons
from mkor_core.engines.description import describe
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.saved import check_state
from mkor_core.method import FollowsLoss, LayerState, LearningRate, Method, plain_hyperparameters
from mkor_core.ranges import AT_LEAST_1, POSITIVE, require
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Codec, Coder
from mkor_core.ranks.exchange import exchange
from mkor_core.ranks.schedule import Schedule
from mkor_core.transfers import DeferredScalar


class Preconditioner:
    """Preconditions the gradients of a model's Linear and Conv2d layers before an optimizer steps.

    ``Preconditioner(model, MKOR()).attach(optimizer)`` is all that a training loop needs; without `attach`, call `step`
    between the backward pass and ``optimizer.step()``. A trainer that clips gradients does so before that.

    Layers that are not supported, share their weight with another module, or are excluded keep their plain gradient;
    the first two kinds are logged once, by name, and ``print(preconditioner)`` lists all with the reason, beside the
    bytes of state. A layer without a gradient in a step is left alone. The parameters may be sharded by
    ``fully_shard``, tensor parallelism or both, before the preconditioner is made.

    Args:
        model: the model, which may be in a data-parallel wrapper.
        method: the second-order method, such as ``MKOR()``.
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

    Raises:
        ValueError: an argument out of range, a pattern that matches no module, or a model without a layer to
            precondition.
        TypeError: ``method`` is not a method, or parameters are sharded in a way that it cannot work with.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
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
    ) -> None:
        if not isinstance(method, Method):
            raise TypeError(f"method={method!r} is not an instance of Method; pass one, such as MKOR().")
        require("accumulation_steps", accumulation_steps, Annotated[int, AT_LEAST_1])
        if not callable(lr):
            require("lr", lr, Annotated[float | None, POSITIVE])
        require("precision", precision, Precision | None)
        require("codec", codec, Codec | None)
        require("schedule", schedule, Schedule | None)
        if not callable(grad_scale) and not isinstance(grad_scale, torch.amp.GradScaler):
            require("grad_scale", grad_scale, Annotated[float, POSITIVE])
        refuse_sharded(model)
        self.method = method
        self.phases: Callable[[str], AbstractContextManager[object]] = nullcontext
        """Returns the context manager for a phase of the work: capture, communication, factor or precondition."""
        self.switch_step: int | None = None
        """The step (from 0) at which MKOR-H switched to the base optimizer alone; None before."""
        self._model = model
        self._lr = lr
        self._precision = precision
        self._group = process_group
        self._layers, self._left_out, roster = select_layers(model, exclude)
        self._modules = modules_of(model)
        self._diagnostics = Diagnostics(type(method).__name__, roster)
        phases = self._phase
        self._capture = choose_capture(
            self._layers, method, model, accumulation_steps, partial(loss_scale, grad_scale), phases, process_group
        )
        self._losses = LossHistory(model, accumulation_steps) if isinstance(method, FollowsLoss) else None
        self._coder = coder = Coder(codec)
        self._exchange: Callable[..., tuple[dict[str, Sums], Tensor | None]] | None = None
        if comm.world_size(process_group) > 1:
            self._exchange = partial(
                exchange, statistic=method.statistic, group=process_group, coder=coder, schedule=schedule
            )
        self._work = choose_work(
            self._layers, method, self._diagnostics, phases, process_group, owners, coder, schedule
        )
        self._states, self._engine = self._work.states, self._work.engine
        self._whole: dict[str, LayerState] = {}
        """What `consolidate` gathered in this step."""
        self._attachment: Attachment | None = None
        self._step, self._released = 0, False
        self._skipped: DeferredScalar | None = None
        """Not 0 if the fused optimizer skipped the last step; None if that is known already."""
        self._comparisons = Comparisons()

    def __repr__(self) -> str:
        states = None if self._released else self._states.by_layer()
        return describe(self.method, self._layers, self._active_layers(), self._left_out, states)

    def attach(self, optimizer: Optimizer) -> Self:
        """Precondition before every ``optimizer.step()``, and keep the state in ``optimizer.state_dict()``.

        With a closure, the gradients that it computes are preconditioned before the optimizer uses them. A wrapper that
        keeps the true optimizer as ``.optimizer`` (accelerate's) is unwrapped. Layers whose weight the optimizer does
        not step are left alone. ``copy.deepcopy`` of the optimizer, or loading a pickle of it,
        warns, since the copy has no hooks.

        Raises:
            TypeError: not a torch optimizer, or LBFGS, which evaluates its closure many times per step.
            ValueError: the optimizer steps no weight of a layer that is preconditioned.
            RuntimeError: this preconditioner is attached already, or another one is attached to the optimizer.
        """
        if self._attachment is not None:
            raise RuntimeError("This Preconditioner is already attached: call remove() and construct a new one.")
        check_target(optimizer, self._layers.values(), self.method)
        self._attachment = Attachment(
            optimizer, before_step=self._before_step, save=self.state_dict, load=self._load_or_restart
        )
        return self

    @torch.no_grad()
    def step(self) -> None:
        """Precondition the gradients in place: exchange statistics, update the layers' states, replace D by V.

        Raises:
            RuntimeError: factors are to be updated in training mode, but no layer has captured statistics; or the
                method follows the loss (MKOR-H), and none has come by the end of its warm-up.
        """
        if self.switch_step is not None:
            return
        layers = self._active_layers()
        with_gradient = [layer for layer in layers if layer.has_gradient()]
        if not with_gradient and not self._capture.reached:  # no backward pass: this is not a training step
            self._diagnostics.check_weights(self._layers.values())
            return
        device = self._any_weight().device
        if autocast_dtype(device) is None:
            self._take_step(layers, with_gradient)
        else:
            with without_autocast(device):
                self._take_step(layers, with_gradient)

    def observe(self, loss: Tensor | float) -> None:
        """Pass this step's training loss to a method that follows it (MKOR-H); ignored by other methods."""
        if self._losses:
            self._losses.put("observe", loss)

    def remove(self) -> None:
        """Remove all hooks from the model and the optimizer, and free the state."""
        if self._attachment is not None:
            self._attachment.remove()
        self._release()

    @property
    def precision(self) -> Precision:
        """The precision of the matrix products on gradients."""
        if self._precision is not None:
            return self._precision
        return "high" if self._any_weight().is_cuda else "highest"

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the preconditioned layers, in the model's order."""
        return tuple(self._layers)

    def memory_bytes(self) -> int:
        """Return the bytes of all state tensors on this rank."""
        return sum(self.memory_by_tensor().values())

    def memory_by_tensor(self) -> dict[str, int]:
        """Return the bytes of all layers' states by tensor name (``left``, ``right``, ...); empty once freed."""
        return self._states.bytes_by_tensor([] if self._released else self._active_layers())

    def compare_next_step(self) -> None:
        """Compare every layer's update V with its gradient D in the next step, for `comparisons`."""
        self._comparisons.request()

    def comparisons(self) -> dict[str, Comparison]:
        """Return what the last compared step found, by layer, without sharded layers; waits for the device."""
        return self._comparisons.read()

    def non_finite_layers(self) -> list[str]:
        """Return the layers whose state on this rank has a NaN or an infinity; waits for the device."""
        return self._states.non_finite()

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the method and every layer's tensors (not copied), fit for ``weights_only`` loading.

        Layers that have had no statistics yet have the state of the first step, so that
        `torch.distributed.checkpoint.load` knows what to load.
        """
        self._settle_step()
        self._diagnostics.settle()
        if not self._released:
            self._states.prepare(self._active_layers())
        return {
            "method": type(self.method).__name__,
            "hyperparameters": plain_hyperparameters(self.method),
            "step": self._step,
            "switch_step": self.switch_step,
            "losses": self._losses.state_dict() if self._losses else None,
            "layers": {name: dict(state) for name, state in (self._whole or self._states.by_layer()).items()},
        }

    def consolidate(self, rank: int | None = None) -> None:
        """Gather every rank's part of the state in host memory, so that the `state_dict` of ``rank`` is complete.

        A collective call; the result holds until the next step. Only needed if one rank saves for all and they hold
        different parts (of layers with owners, of KAISA with ``grad_worker_fraction`` below 1); else it does nothing.

        rank: the rank of the process group that keeps the state; None: every rank does.

        Raises:
            ValueError: the process group has no such rank.
        """
        comm.require_rank(rank, self._group)
        if self._work.consolidate is not None:
            self._whole = self._work.consolidate(rank)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; loading the same one twice has the effect of loading it once.

        If ranks hold different parts, each takes its part of a consolidated state, or the one that it saved itself.

        A state that is refused changes nothing. Hyperparameters may differ unless the method says that they give the
        tensors their meaning (`Method.fixed_in_state`).

        Raises:
            ValueError: the state is no such state, or one of another method, or has other hyperparameters than it may,
                a layer that the model lacks, or a tensor of another shape or kind of number.
            RuntimeError: MKOR-H has switched, so its hooks are gone, but had not when the state was saved.
        """
        check_state(state, self.method)
        if self.switch_step is not None and state["switch_step"] is None:
            raise RuntimeError("This Preconditioner has switched to the base optimizer: load the state into a new one.")
        self._states.load(
            state["layers"], [layer.name for layer in self._active_layers() if layer.name in self._work.needed]
        )
        self._whole = {}
        self._step = state["step"]
        self._skipped = None
        self._capture.drop()
        self._capture.enabled = self.method.accumulates(self._step)
        if self._losses:
            self._losses.load_state_dict(state["losses"])
        if state["switch_step"] is not None:
            self.switch_step = state["switch_step"]
            self._release()

    def _phase(self, name: str) -> AbstractContextManager[object]:
        return self.phases(name)  # looked up at every call: a clock may be set later

    def _take_step(self, layers: Sequence[Layer], with_gradient: Sequence[Layer]) -> None:
        self._whole = {}
        self._settle_step()
        self._coder.step = self._step
        will_step = self._optimizer_will_step()
        loss = None if self._losses is None else self._losses.take(self._any_weight())
        for layer in layers:
            if isinstance(layer, ShardedLayer):
                layer.place_gradients()
        self._states.prepare(layers)
        scale = self._grad_scale_of_step
        accumulates = self.method.accumulates(self._step)
        statistics: dict[str, Sums] = {}
        if accumulates:
            statistics = self._collect(layers, with_gradient, loss, scale)
        else:
            self._capture.drop()
        if accumulates or self.method.refreshes(self._step):
            with matmul_precision("highest"):
                self._engine.update(layers, statistics, self._step, will_step, scale)
        with matmul_precision(self.precision):
            # Ranks with an empty block take part in the sums.
            if len(with_gradient) < len(layers):
                with_gradient = [layer for layer in layers if layer.block is not None or layer in with_gradient]
            self._precondition(with_gradient, scale)
        self._count_step(will_step)
        if self._losses is not None and statistics:
            self._follow_loss(self._losses)

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Precondition: a pre-hook of the attached optimizer's step."""
        # args[0] is the optimizer; the closure of step(closure) may be positional or a keyword.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.step()
            return None

        # This hook runs before the closure's backward pass, so preconditioning must wait until it has been evaluated.
        def evaluate_then_precondition() -> Any:
            loss = closure()
            if self._losses is not None and loss is not None:
                self._losses.put("closure", loss)
            self.step()
            return loss

        if len(args) > 1:
            return (args[0], evaluate_then_precondition, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluate_then_precondition}

    def _load_or_restart(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self.load_state_dict(state)
        else:
            self._states.clear()
            self._step = 0
            self._capture.enabled = True

    def _optimizer_will_step(self) -> Tensor | None:
        """Return whether the optimizer will take this step: None for yes, a device scalar if it is fused."""
        optimizer = None if self._attachment is None else self._attachment.optimizer
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is None:
            return None
        # A fused optimizer decides on the device whether to skip a step with infinite gradients. The host must not wait
        # for that, so it reads the decision in the next step (see `_settle_step`).
        self._skipped = DeferredScalar(found_inf)
        return found_inf == 0

    def _settle_step(self) -> None:
        """Subtract the last step if it was skipped; an unfused optimizer would not have called `step` at all."""
        if self._skipped is not None and self._skipped.read():
            self._step -= 1
        self._skipped = None

    def _count_step(self, will_step: Tensor | None) -> None:
        accumulated_now = self.method.accumulates(self._step)
        self._step += 1
        # If this step turns out to be skipped, its number comes again. The next forward pass runs before the host knows
        # that, so it must be captured as well.
        self._capture.enabled = self.method.accumulates(self._step) or (accumulated_now and will_step is not None)

    def _follow_loss(self, losses: LossHistory) -> None:
        """Switch to the base optimizer if the method is over."""
        assert isinstance(self.method, FollowsLoss)
        if self.method.loss_is_due(self._step):
            losses.require_any(type(self.method).__name__, self._step)
        if self.method.is_over(losses.history, self._step):
            self.switch_step = self._step
            self._release()

    def _any_weight(self) -> Tensor:
        return next(iter(self._layers.values())).module.weight

    def _active_layers(self) -> list[Layer]:
        """Return the layers whose weight is trained, by the attached optimizer if there is one."""
        stepped: set[int] | None = None
        if self._attachment is not None:
            # Read anew in every step: parameter groups can be added during training.
            groups = self._attachment.optimizer.param_groups
            stepped = set()
            for group in groups:
                stepped.update(map(id, group["params"]))
        active = []
        for layer in self._layers.values():
            weight = layer.weight
            if weight is not None and weight.requires_grad and (stepped is None or id(weight) in stepped):
                active.append(layer)
        return active

    def _collect(
        self, layers: Sequence[Layer], with_gradient: Sequence[Layer], loss: Tensor | None, scale: Tensor | None
    ) -> dict[str, Sums]:
        """Return the step's statistics over all ranks, and record the loss."""
        reached = self._capture.reached
        with self.phases("factor"):
            if isinstance(self._capture, RowCapture):
                condense = self.method.statistic.condense or join_rows
                rows = self._capture.take_rows()
                statistics = {name: Sums(*condense(calls, self._step)[:3]) for name, calls in rows.items()}
            else:
                statistics = self._capture.take()
        if self._exchange is not None:
            with self.phases("communication"):
                statistics, loss = self._exchange(layers, statistics, loss, scale=scale)
        unusual = len(with_gradient) < len(self._layers) or any(layer.was_replaced for layer in layers)
        if unusual or modules_of(self._model) != self._modules:
            self._diagnostics.check_weights(self._layers.values())
            self._modules = modules_of(self._model)
        if any(layer.name not in reached for layer in with_gradient):
            self._diagnostics.check_coverage(layers, reached, statistics)
        if self._losses is not None:
            self._losses.record(loss)
        return statistics

    def _precondition(self, layers: Sequence[Layer], scale: Tensor | None) -> None:
        """Replace the gradients D of layers by the updates V."""
        rates = {} if self.method.clip is None else self._learning_rates(layers)
        if not self._comparisons.requested:
            self._engine.precondition(layers, rates, scale)
            return
        self._comparisons.start(layers)
        self._engine.precondition(layers, rates, scale)
        self._comparisons.finish(layers, self.method, self._work.state_of)

    @property
    def _grad_scale_of_step(self) -> Tensor | None:
        """The loss scale by which gradients are still multiplied in a step; None if they are unscaled."""
        optimizer = None if self._attachment is None else self._attachment.optimizer
        scale: Tensor | None = getattr(optimizer, "grad_scale", None)
        return scale

    def _learning_rates(self, layers: Sequence[Layer]) -> dict[str, LearningRate]:
        """Return the layers' learning rates.

        Raises:
            ValueError: a rate is unknown; on all ranks, so that one that owns no layer does not wait for the others.
        """
        if self._lr is not None:
            rate = self._lr() if callable(self._lr) else self._lr
            return {layer.name: rate for layer in layers}
        rates = [None] * len(layers) if self._attachment is None else self._attachment.learning_rates(layers)
        return {layer.name: known(rate) for layer, rate in zip(layers, rates, strict=True)}

    def _release(self) -> None:
        self._released = True
        self._capture.remove()
        self._states.clear()
        if self._losses:
            self._losses.remove()
