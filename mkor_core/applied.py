"""A method applied to layers: what happens between a backward pass and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mkor_core.attachment import Attachment
from mkor_core.capture.autograd import Precision, autocast_dtype, matmul_precision, usual_precision, without_autocast
from mkor_core.capture.discovery import Roster
from mkor_core.capture.layer import Layer, ShardedLayer, modules_of
from mkor_core.capture.losses import LossHistory
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.statistics import Sums, join_rows
from mkor_core.devices import DeferredScalar
from mkor_core.engines.choice import Setting, choose_capture, choose_exchange, choose_work
from mkor_core.engines.clipping import known
from mkor_core.engines.comparison import Comparisons
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.stacks import local_name
from mkor_core.kernels.fused import FusedAdamW, FusedSGD
from mkor_core.method import FollowsLoss, LayerState, LearningRate, Method, plain_hyperparameters
from mkor_core.ranks.codec import Coder
from mkor_core.saving.checks import check_state, saved_changes


class AppliedMethod:
    """A method at work on layers of a model: their hooks and states, and the number of the step.

    Args:
        method: the method.
        layers: its layers by name.
        roster: the modules of the model, so that layers that come later are reported; None: another one reports them.
        setting: the rest.

    Raises:
        ValueError: the setting does not fit the method.
        TypeError: parameters are sharded in a way that the method cannot work with.
    """

    def __init__(self, method: Method, layers: Mapping[str, Layer], roster: Roster | None, setting: Setting) -> None:
        self.method = method
        self.layers = dict(layers)
        self.switch_step: int | None = None
        """The step (from 0) at which MKOR-H switched to the base optimizer alone; None before."""
        self.attachment: Attachment | None = None
        self.is_released = False
        self.comparisons = Comparisons()
        self.diagnostics = Diagnostics(type(method).__name__, roster)
        self.losses = (
            LossHistory(setting.model, setting.accumulation_steps) if isinstance(method, FollowsLoss) else None
        )
        self.capture = choose_capture(self.layers, method, setting)
        self._setting = setting
        self._modules = modules_of(setting.model)
        self._coder = Coder(setting.codec)
        self._exchange = choose_exchange(method, setting, self._coder)
        self.work = choose_work(self.layers, method, self.diagnostics, setting, self._coder)
        self.states, self._engine = self.work.states, self.work.engine
        self._clips = method.clip is not None
        self._whole: dict[str, LayerState] = {}
        """What `consolidate` gathered in this step."""
        self._changed: dict[str, Any] = {}
        """The hyperparameters that `set` has changed."""
        self._step = 0
        self._skipped: DeferredScalar | None = None
        """Not 0 if the fused optimizer skipped the last step; None if that is known already."""

    @torch.no_grad()
    def step(self) -> None:
        """Precondition the gradients in place; see `Preconditioner.step`."""
        if self.switch_step is not None:  # MKOR-H: the base optimizer gets D as it is
            return
        layers = self.active_layers()
        with_gradient = [*filter(Layer.has_gradient, layers)]
        if not with_gradient and not self.capture.reached:  # no backward pass: this is not a training step
            self.diagnostics.check_weights(self.layers.values())
            return
        device = self.any_weight.device
        # In a step inside an autocast region, products with the factors would be rounded to half precision.
        if autocast_dtype(device) is None:
            self._take_step(layers, with_gradient)
        else:
            with without_autocast(device):
                self._take_step(layers, with_gradient)

    def attach(self, attachment: Attachment) -> None:
        """Note what the method is attached to."""
        self.attachment = attachment
        if self.work.in_kernels is not None and isinstance(attachment.optimizer, FusedAdamW | FusedSGD):
            self.work.in_kernels.fused = attachment.optimizer

    @property
    def any_weight(self) -> Tensor:
        """A weight, for its device and precision."""
        return next(iter(self.layers.values())).module.weight

    @property
    def precision(self) -> Precision:
        """The precision of the matrix products on gradients."""
        if self._setting.precision is not None:
            return self._setting.precision
        return usual_precision(self.any_weight.device)

    def active_layers(self) -> list[Layer]:
        """Return the layers whose weight is trained, by the attached optimizer if there is one."""
        stepped: set[int] | None = None
        if self.attachment is not None:
            # Read anew in every step: parameter groups can be added during training.
            stepped = set()
            for group in self.attachment.optimizer.param_groups:
                stepped.update(map(id, group["params"]))
        active = []
        for layer in self.layers.values():
            weight = layer.weight
            if weight is not None and weight.requires_grad and (stepped is None or id(weight) in stepped):
                active.append(layer)
        return active

    def set(self, changes: Mapping[str, Any]) -> None:
        """Change hyperparameters from the next step on; see `Preconditioner.set`."""
        self.method = self.changed_method(changes)
        self.work.use(self.method)
        self._changed |= changes
        # With a shorter period the next step may need statistics, so the hooks must be on in its forward pass. They are
        # not turned off: that pass may have run already.
        self.capture.enabled = self.capture.enabled or self.method.accumulates(self._step)

    def changed_method(self, changes: Mapping[str, Any]) -> Method:
        """Return the method with other hyperparameters.

        Raises:
            ValueError: it cannot go on with them.
        """
        old, name = self.method, type(self.method).__name__
        own = plain_hyperparameters(old)
        for key in changes:
            if key not in own:
                raise ValueError(f"{name} has no hyperparameter {key!r}; it has {', '.join(own)}.")
            if key in old.fixed_in_state:
                raise ValueError(f"{name}'s {key} gives its state a meaning, so it cannot change while it trains.")
        method = replace(old, **changes)
        # The functions are methods of `old` and of `method`, which never compare equal.
        if method.statistic.without_functions() != old.statistic.without_functions():
            raise ValueError(f"{name}: {', '.join(changes)} would change what the hooks capture: make a new one.")
        # Whether there is a clip has decided, in `choose_work`, which object makes updates of gradients.
        if (method.clip is None) != (old.clip is None):
            raise ValueError(f"{name}: a clip can change while it trains, but neither come nor go.")
        return method

    def saved(self) -> dict[str, Any]:
        """Return the state; see `Preconditioner.state_dict`."""
        self._settle_step()  # the saved number must not count a skipped step
        self.diagnostics.settle()
        if not self.is_released:
            self.states.prepare(self.active_layers())
        state: dict[str, Any] = {
            "method": type(self.method).__name__,
            "hyperparameters": plain_hyperparameters(self.method),
            "step": self._step,
            "switch_step": self.switch_step,
            "losses": None if self.losses is None else self.losses.state_dict(),
            "layers": {name: dict(state) for name, state in self.saved_layers().items()},
        }
        return state | ({"changed": dict(self._changed)} if self._changed else {})

    def load(self, state: Mapping[str, Any], required: Collection[str] | None = None) -> None:
        """Restore a state; see `Preconditioner.load_state_dict`.

        required: the layers that it must have if this rank alone keeps them; None: all that are trained.
        """
        changed = saved_changes(state)
        check_state(state, self.changed_method(changed) if changed else self.method)
        if self.switch_step is not None and state["switch_step"] is None:
            raise RuntimeError("This Preconditioner has switched to the base optimizer: load the state into a new one.")
        needed = [layer.name for layer in self.active_layers() if layer.name in self.work.needed]
        self.states.load(state["layers"], [name for name in needed if required is None or name in required])
        self._whole, self._skipped, self._step = {}, None, state["step"]
        if changed:
            self.set(changed)
        self.capture.drop()  # a backward pass before the load belongs to the old state
        self.capture.enabled = self.method.accumulates(self._step)
        if self.losses is not None:
            self.losses.load_state_dict(state["losses"])
        if state["switch_step"] is not None:
            self.switch_step = state["switch_step"]
            self.release()

    def restart(self) -> None:
        """Start anew."""
        self.states.clear()
        self._step, self.capture.enabled = 0, True

    def saved_layers(self) -> dict[str, LayerState]:
        """Return the states by layer, not copied; those of all ranks if they were consolidated in this step."""
        return dict(self._whole) or self.states.by_layer()

    def has(self, saved_name: str) -> bool:
        """Return whether a saved layer is one of this method's."""
        return local_name(self.layers, saved_name) in self.layers

    def consolidate(self, rank: int | None) -> None:
        """Gather every rank's part of the state; see `Preconditioner.consolidate`."""
        if self.work.consolidate is not None:
            self._whole = self.work.consolidate(rank)

    def release(self) -> None:
        """Remove all hooks from the model, and free the state."""
        self.is_released = True
        self.capture.remove()
        self.states.clear()
        self._whole = {}
        if self.losses is not None:
            self.losses.remove()

    def _take_step(self, layers: Sequence[Layer], with_gradient: Sequence[Layer]) -> None:
        self._whole = {}
        self._settle_step()
        self._coder.step = self._step  # the codec's random numbers depend on it
        will_step, scale = self._read_optimizer()
        loss = None
        if self.losses is not None:
            loss = self.losses.take(self.any_weight)
            self.losses.warn_of_none(type(self.method).__name__, self._step)
        for layer in layers:
            # Tensor parallelism can leave partial sums in .grad. They must be added up before anything reads them.
            if isinstance(layer, ShardedLayer):
                layer.place_gradients()
        self.states.prepare(layers)
        accumulates = self.method.accumulates(self._step)
        statistics: dict[str, Sums] = {}
        if accumulates:
            statistics = self._collect(layers, with_gradient, loss, scale)
        else:
            self.capture.drop()  # hooks were left on by `set`, or because a skipped step may come again
        if accumulates or self.method.refreshes(self._step):
            # A rounding error in a factor persists for many steps, one in V harms a single step.
            with matmul_precision("highest"):
                self._engine.update(layers, statistics, self._step, will_step, scale)
        with matmul_precision(self.precision):
            # Ranks with an empty block take part in the sums.
            if len(with_gradient) < len(layers):
                with_gradient = [layer for layer in layers if layer.block is not None or layer in with_gradient]
            self._precondition(with_gradient, scale)
        self._count_step(will_step)
        if self.losses is not None and statistics:
            self._follow_loss(self.losses)

    def _read_optimizer(self) -> tuple[Tensor | None, Tensor | None]:
        """Return what a fused optimizer has been told by a gradient scaler, as device scalars.

        Returns:
            Whether the optimizer will take this step; None for yes. The loss scale by which gradients are still
            multiplied, because it unscales them itself; None if they are unscaled.
        """
        optimizer = None if self.attachment is None else self.attachment.optimizer
        scale: Tensor | None = getattr(optimizer, "grad_scale", None)
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is None:
            return None, scale
        # The device decides whether to skip a step with infinite gradients. The host must not wait for that, so it
        # reads the decision in the next step (see `_settle_step`).
        self._skipped = DeferredScalar(found_inf)
        return found_inf == 0, scale

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
        self.capture.enabled = self.method.accumulates(self._step) or (accumulated_now and will_step is not None)

    def _follow_loss(self, losses: LossHistory) -> None:
        """Switch to the base optimizer if the method is over."""
        assert isinstance(self.method, FollowsLoss)
        if self.method.loss_is_due(self._step):
            losses.require_any(type(self.method).__name__, self._step)
        if self.method.is_over(losses.history, self._step):
            self.switch_step = self._step
            self.release()

    def _collect(
        self, layers: Sequence[Layer], with_gradient: Sequence[Layer], loss: Tensor | None, scale: Tensor | None
    ) -> dict[str, Sums]:
        """Return the step's statistics over all ranks, and record the loss."""
        reached = self.capture.reached  # read before the statistics are taken, which empties it
        with self._setting.phases("factor"):
            if isinstance(self.capture, RowCapture):
                condense = self.method.statistic.condense or join_rows
                rows = self.capture.take_rows()
                statistics = {name: Sums(*condense(calls, self._step)[:3]) for name, calls in rows.items()}
            else:
                statistics = self.capture.take()
        if self._exchange is not None:
            with self._setting.phases("communication"):
                statistics, loss = self._exchange(layers, statistics, loss, scale=scale)
        unusual, missed = len(with_gradient) < len(self.layers), False
        for layer in with_gradient:
            unusual, missed = unusual or layer.was_replaced, missed or layer.name not in reached
        # The check goes through all layers in Python, so it is only made where something may be wrong: a layer without
        # a gradient, another parameter in the place of one, or a module that has come or gone.
        if unusual or modules_of(self._setting.model) != self._modules:
            self.diagnostics.check_weights(self.layers.values())
            self._modules = modules_of(self._setting.model)
        if missed:
            self.diagnostics.check_coverage(layers, reached, statistics)
        if self.losses is not None:
            self.losses.record(loss)
        return statistics

    def _precondition(self, layers: Sequence[Layer], scale: Tensor | None) -> None:
        """Replace the gradients D of layers by the updates V."""
        rates = self._learning_rates(layers) if self._clips else {}
        if not self.comparisons.requested:
            self._engine.precondition(layers, rates, scale)
            return
        self.comparisons.start(layers)
        if self.work.in_kernels is not None:
            self.work.in_kernels.writes_gradients = True
        self._engine.precondition(layers, rates, scale)
        if self.work.in_kernels is not None:
            self.work.in_kernels.writes_gradients = False
        self.comparisons.finish(layers, self.method, self.work.state_of)

    def _learning_rates(self, layers: Sequence[Layer]) -> dict[str, LearningRate]:
        """Return the layers' learning rates.

        Raises:
            ValueError: a rate is unknown; on all ranks, so that one that owns no layer does not wait for the others.
        """
        if (lr := self._setting.lr) is not None:
            rate = lr() if callable(lr) else lr
            return {layer.name: rate for layer in layers}
        rates = [None] * len(layers) if self.attachment is None else self.attachment.learning_rates(layers)
        return {layer.name: known(rate) for layer, rate in zip(layers, rates, strict=True)}


def step_hook(
    parts: Sequence[AppliedMethod],
) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]:
    """Return a pre-hook of an optimizer's step that preconditions, with a closure after it has been evaluated."""

    def before_step(
        optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # args[0] is the optimizer; the closure of step(closure) may be positional or a keyword.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        attachment = parts[0].attachment
        assert attachment is not None
        is_known = not attachment.is_watching and len(optimizer.param_groups) == attachment.groups
        # torch.distributed.checkpoint takes a step with zero gradients to make the optimizer's first state. It changes
        # no weight, and does not count here.
        if not is_known and attachment.watch(has_closure=closure is not None):
            return None
        if closure is None:
            for part in parts:
                part.step()
            return None

        # This hook runs before the closure's backward pass, so preconditioning must wait until it has been evaluated.
        def evaluate_then_precondition() -> Any:
            loss = closure()
            for part in parts:
                if part.losses is not None and loss is not None:
                    part.losses.put("closure", loss)
                part.step()
            return loss

        if len(args) > 1:
            return (args[0], evaluate_then_precondition, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluate_then_precondition}

    return before_step
