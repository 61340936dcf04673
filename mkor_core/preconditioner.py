"""The preconditioner, which applies a method to a model: hooks, periods, exchange between ranks, attachment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from mkor_core.attached_state import Source
from mkor_core.attachment import Attachment, check_target
from mkor_core.capture.autograd import Precision, matmul_precision, without_autocast
from mkor_core.capture.discovery import Exclude, refuse_sharded, select_layers
from mkor_core.capture.layer import Layer
from mkor_core.capture.losses import LossHistory
from mkor_core.capture.reductions import loss_scale
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.statistics import Sums
from mkor_core.engines.choice import make_capture, make_engine
from mkor_core.engines.comparison import Comparison, Comparisons
from mkor_core.engines.description import describe
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.kl_clip import known
from mkor_core.engines.saved import check_state
from mkor_core.method import LearningRate, Method
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
        lr: the learning rate that kl_clip uses; None means that of each parameter group.
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
        lr: float | None = None,
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
        self._lr = lr
        self._precision = precision
        self._group = process_group
        self._layers, self._left_out, roster = select_layers(model, exclude)
        self._diagnostics = Diagnostics(type(method).__name__, roster)
        self._capture = make_capture(
            self._layers, method, model, accumulation_steps, partial(loss_scale, grad_scale), self._phase, process_group
        )
        self._losses = LossHistory(model, accumulation_steps) if method.follows_loss else None
        self._coder = coder = Coder(codec)
        self._exchange = partial(exchange, method=method, group=process_group, coder=coder, schedule=schedule)
        self._engine = make_engine(
            self._layers, method, self._diagnostics, self._phase, process_group, owners, coder, schedule
        )
        self._attachment: Attachment | None = None
        self._step, self._released = 0, False
        self._skipped: DeferredScalar | None = None
        """Not 0 if the fused optimizer skipped the last step; None if that is known already."""
        self._comparisons = Comparisons()
        self._stepped: set[int] | None = None
        """The ids of the attached optimizer's parameters; None: all layers are preconditioned."""

    def __repr__(self) -> str:
        self._read_stepped()
        states = None if self._released else self._engine.saved()
        return describe(self.method, self._layers, self._active_layers(), self._left_out, states)

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
        check_target(optimizer, self._layers.values(), self.method)
        loads, is_over = self._load_or_restart, lambda: self._released
        source = Source(self._layers, self._engine, self.method.refreshed, self.state_dict, loads, is_over)
        self._attachment = Attachment(optimizer, source, self._step_with_loss, lambda: bool(self._capture.reached))
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
        self._read_stepped()
        if self._capture.reached or any(layer.has_gradient() for layer in self._active_layers()):
            with without_autocast(self._any_weight().device):
                self._take_step()
        else:  # no backward pass: this is not a training step
            self._diagnostics.check_weights(self._layers.values())

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
        return self._engine.bytes_by_tensor([] if self._released else self._active_layers())

    def compare_next_step(self) -> None:
        """Compare every layer's update V with its gradient D in the next step, for `comparisons`."""
        self._comparisons.request()

    def comparisons(self) -> dict[str, Comparison]:
        """Return what the last compared step found, by layer, without sharded layers; waits for the device."""
        return self._comparisons.read()

    def non_finite_layers(self) -> list[str]:
        """Return the layers whose state on this rank has a NaN or an infinity; waits for the device."""
        return self._engine.non_finite()

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the method and every layer's tensors (not copied), fit for ``weights_only`` loading.

        Layers that have had no statistics yet have the state of the first step, so that
        `torch.distributed.checkpoint.load` knows what to load.
        """
        self._settle_step()
        self._diagnostics.settle()
        self._read_stepped()
        if not self._released:
            self._engine.prepare_states(self._active_layers())
        return {
            "method": type(self.method).__name__,
            "hyperparameters": self.method.plain_hyperparameters(),
            "step": self._step,
            "switch_step": self.switch_step,
            "losses": self._losses.state_dict() if self._losses else None,
            "layers": self._engine.saved(),
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
        self._engine.consolidate(rank)

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
        self._load_or_restart(state)

    def _phase(self, name: str) -> AbstractContextManager[object]:
        return self.phases(name)  # looked up at every call: a clock may be set later

    def _take_step(self) -> None:
        self._engine.forget_consolidated()
        self._settle_step()
        self._coder.step = self._step
        will_step = self._optimizer_will_step()
        loss = self._losses.take(self._any_weight()) if self._losses else None
        layers = self._active_layers()
        for layer in layers:
            layer.place_gradients()
        updates = self.method.accumulates(self._step)
        statistics: dict[str, Sums] = {}
        if updates:
            statistics = self._collect(layers, loss)
        else:
            self._capture.drop()
        if updates or self.method.refreshes(self._step):
            with matmul_precision("highest"):
                updates = self._engine.update(layers, statistics, self._step, will_step, self._grad_scale_of_step)
        with matmul_precision(self.precision):
            # Ranks with an empty block take part in the sums.
            self._precondition([layer for layer in layers if layer.has_gradient() or layer.block is not None])
        self._count_step(will_step)
        if self._losses and updates:
            self._follow_loss(self._losses)

    def _step_with_loss(self, loss: Tensor | float | None) -> None:
        if self._losses and loss is not None:
            self._losses.put("closure", loss)
        self.step()

    def _load_or_restart(self, state: Mapping[str, Any] | None, required: Collection[str] | None = None) -> None:
        """Restore a state, which must have the required layers, None for all that are trained; or start anew."""
        if state is None:
            self._engine.clear()
            self._step, self._capture.enabled = 0, True
            return
        check_state(state, self.method)
        if self.switch_step is not None and state["switch_step"] is None:
            raise RuntimeError("This Preconditioner has switched to the base optimizer: load the state into a new one.")
        self._read_stepped()
        layers = self._active_layers()
        self._engine.load(state["layers"], [one for one in layers if required is None or one.name in required])
        self._step, self._skipped = state["step"], None
        self._capture.drop()
        self._capture.enabled = self.method.accumulates(self._step)
        if self._losses:
            self._losses.load_state_dict(state["losses"])
        if state["switch_step"] is not None:
            self.switch_step = state["switch_step"]
            self._release()

    def _optimizer_will_step(self) -> Tensor | None:
        """Return whether the optimizer will take this step: None for yes, a device scalar if it is fused."""
        found_inf = None if self._attachment is None else self._attachment.found_inf
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
        if self.method.loss_is_due(self._step):
            losses.require_any(type(self.method).__name__, self._step)
        if self.method.is_over(losses.history, self._step):
            self.switch_step = self._step
            self._release()

    def _any_weight(self) -> Tensor:
        return next(iter(self._layers.values())).module.weight

    def _read_stepped(self) -> None:
        # Read anew in every step: parameter groups can be added during training.
        if self._attachment is not None:
            self._stepped = self._attachment.parameter_ids

    def _active_layers(self) -> list[Layer]:
        """Return the layers whose weight is trained, by the attached optimizer if there is one."""
        return [
            layer
            for layer in self._layers.values()
            if (weight := layer.weight) is not None
            and weight.requires_grad
            and (self._stepped is None or id(weight) in self._stepped)
        ]

    def _collect(self, layers: Sequence[Layer], loss: Tensor | None) -> dict[str, Sums]:
        """Return the step's statistics over all ranks, and record the loss."""
        reached = self._capture.reached
        with self.phases("factor"):
            if isinstance(self._capture, RowCapture):
                rows = self._capture.take_rows()
                captured = {name: Sums(*self.method.condense(calls, self._step)) for name, calls in rows.items()}
            else:
                captured = self._capture.take()
        with self.phases("communication"):
            statistics, loss = self._exchange(layers, captured, loss, scale=self._grad_scale_of_step)
        self._diagnostics.check_weights(self._layers.values())
        self._diagnostics.check_coverage(layers, reached, statistics)
        if self._losses:
            self._losses.record(loss)
        return statistics

    def _precondition(self, layers: Sequence[Layer]) -> None:
        """Replace the gradients D of layers by the updates V."""
        self._comparisons.start(layers)
        self._engine.precondition(layers, self._learning_rates(layers), self._grad_scale_of_step)
        self._comparisons.finish(layers, self.method, self._engine.state)

    @property
    def _grad_scale_of_step(self) -> Tensor | None:
        """The loss scale by which gradients are still multiplied in a step; None if they are unscaled."""
        return None if self._attachment is None else self._attachment.grad_scale

    def _learning_rates(self, layers: Sequence[Layer]) -> list[LearningRate]:
        if self._lr is not None or not self.method.needs_lr:
            return [self._lr] * len(layers)
        rates = [None] * len(layers) if self._attachment is None else self._attachment.learning_rates(layers)
        return [known(rate) for rate in rates]  # on all ranks: one that owns no layer must not wait for an error

    def _release(self) -> None:
        self._released = True
        self._capture.remove()
        self._engine.clear()
        if self._losses:
            self._losses.remove()
