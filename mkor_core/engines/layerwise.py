"""The engine of a `Method` that treats one layer at a time: its states and their owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import Sums
from mkor_core.engines.diagnostics import NOT_FINITE, Diagnostics
from mkor_core.engines.kl_clip import KLClipping
from mkor_core.engines.stacks import GradientParts
from mkor_core.engines.states import LayerStates
from mkor_core.method import LayerState, LearningRate, Method, Update
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Coder
from mkor_core.ranks.kaisa import Sharing
from mkor_core.ranks.owners import Owners, assigned
from mkor_core.ranks.placement import SIDES, Placement
from mkor_core.ranks.schedule import Schedule


class LayerwiseEngine:
    """The states of a model's layers under a method, and what a step does with them.

    Args:
        layers: the layers by name.
        method: the method.
        diagnostics: gets the reports.
        phases: returns the context manager of a phase of the work.
        group: the ranks that share the work.
        coder: gives the messages between them their codings.
        schedule: places the decompositions of factors; None: each layer's owner refreshes it.
        by_owners: whether each layer's owner preconditions it alone, because gradients are sharded or the caller wants
            to divide the work.

    Raises:
        ValueError: the method's worker fraction does not fit the number of ranks, or not the owners.
        TypeError: the method cannot work by owners.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        method: Method,
        diagnostics: Diagnostics,
        phases: Callable[[str], AbstractContextManager[object]],
        group: ProcessGroup | None,
        coder: Coder,
        schedule: Schedule | None,
        *,
        by_owners: bool,
    ) -> None:
        self._layers = layers
        self._method = method
        self._diagnostics = diagnostics
        self._phases = phases
        # Other methods have the same states on all ranks, and each rank preconditions all layers.
        several = comm.world_size(group) > 1
        shares = several and schedule is None and (method.refreshed or method.worker_fraction < 1)
        self._sharing = Sharing(list(layers.values()), method, group, coder) if shares else None
        self._placement: Placement | None = None
        if several and schedule is not None:
            self._placement = Placement(list(layers.values()), method, group, schedule, coder)
        self._owners = self._make_owners(group, coder) if by_owners else None
        self._states = LayerStates(layers, method, self._sharing, diagnostics.report_failure)

    def update(
        self,
        layers: Sequence[Layer],
        statistics: Mapping[str, Sums],
        step: int,
        will_step: Tensor | None,
        scale: Tensor | None,
    ) -> bool:
        """Fold a step's statistics into the states, and refresh those that are due; return whether any counted.

        Args:
            layers: those that are trained.
            statistics: the statistics of this step, summed over ranks, by layer.
            step: the step (from 0).
            will_step: whether the optimizer takes this step, as a boolean device scalar; None for yes.
            scale: the loss scale by which the gradients are multiplied; None for 1.
        """
        counted = self._accumulate(statistics, step, will_step, scale)
        if self._method.refreshes(step):
            if self._method.refresh_needs_statistics:
                self._refresh(counted, step)
            else:
                self._refresh({layer.name: will_step for layer in layers}, step)
        return bool(counted)

    def precondition(self, layers: Sequence[Layer], rates: Sequence[LearningRate], scale: Tensor | None) -> None:
        """Replace the gradients D by the updates V, which gradient workers compute and send to their row of ranks.

        Args:
            layers: those that have a gradient.
            rates: their learning rates.
            scale: the loss scale by which the gradients are multiplied; None for 1. Updates are multiplied by it too.
        """
        parts: GradientParts
        if self._owners is None:
            parts, own = {layer.name: layer.gradient_parts() for layer in layers}, layers
        else:
            with self._phases("communication"):
                parts = self._owners.gather(layers)
            own = [layer for layer in layers if layer.name in parts]
        rate_of = {layer.name: rate for layer, rate in zip(layers, rates, strict=True)}
        ready = [self._method.has_statistics(self._states[layer.name]) for layer in own]
        chosen = [(layer, flag) for layer, flag in zip(own, ready, strict=True) if flag is not False]
        values: dict[str, Tensor] = {}
        with self._phases("precondition"):
            # The method sees unscaled gradients. A fused optimizer unscales in its step, so V is scaled again below.
            wholes = [layer.join(parts[layer.name]) for layer, _ in chosen]
            grads = wholes if scale is None else [whole / scale for whole in wholes]
            for (layer, flag), grad in zip(chosen, grads, strict=True):
                works = self._sharing is None or self._sharing.works_on(layer.name)
                # A receiver's D only has the right shape; share_updates replaces it.
                value = self._method.precondition(self._states[layer.name], grad) if works else grad
                values[layer.name] = torch.where(flag, value, grad) if isinstance(flag, Tensor) else value
        if self._sharing is not None and self._owners is None:
            with self._phases("communication"):
                self._sharing.share_updates(values)
        with self._phases("precondition"):
            updates = [
                Update(grad, values[layer.name], rate_of[layer.name], flag)
                for (layer, flag), grad in zip(chosen, grads, strict=True)
            ]
            for (layer, _), value in zip(chosen, self._finished(updates), strict=True):
                for part, new in zip(parts[layer.name], layer.split(value), strict=True):
                    part.copy_(new if scale is None else new * scale)
        if self._owners is not None:
            with self._phases("communication"):
                self._owners.scatter(layers, parts)

    def bytes_by_tensor(self, layers: Sequence[Layer]) -> dict[str, int]:
        """Return the bytes of layers' states by tensor name (``left``, ``right``, ...)."""
        return self._states.bytes_by_tensor(layer.name for layer in layers)

    def non_finite(self) -> list[str]:
        """Return the layers whose state holds a NaN or an infinity; waits for the device."""
        return self._states.non_finite()

    def consolidate(self, rank: int | None) -> None:
        """Gather every rank's part of the states, for the next `saved`; a collective call."""
        self._states.consolidate(rank)

    def forget_consolidated(self) -> None:
        """Drop what `consolidate` gathered: the states are about to change."""
        self._states.forget_consolidated()

    def state(self, name: str) -> LayerState | None:
        """Return a layer's state; None if this rank does not precondition the layer."""
        works = self._sharing is None or self._sharing.works_on(name)
        return self._states[name] if works and (self._owners is None or self._owners.owns(name)) else None

    def prepare_states(self, layers: Sequence[Layer]) -> None:
        """Make the states of layers that have none yet."""
        for layer in layers:
            self._states[layer.name]

    def saved(self) -> dict[str, LayerState]:
        """Return the states by layer, not copied."""
        return self._states.saved()

    def load(self, saved: Mapping[str, LayerState], _: Sequence[Layer]) -> None:
        """Replace the states with copies of saved ones, of which this rank takes its part.

        Raises:
            ValueError: a layer that the model lacks, or a tensor that is missing, unknown or of another shape.
        """
        self._states.load(saved)

    def clear(self) -> None:
        """Forget all states."""
        self._states.clear()

    def _make_owners(self, group: ProcessGroup | None, coder: Coder) -> Owners:
        method, name, world = self._method, type(self._method).__name__, comm.world_size(group)
        if not isinstance(method, KLClipping) and type(method).finish is not Method.finish:
            raise TypeError(f"{name}.finish needs the updates of all layers, which no rank has if layers have owners.")
        layers = list(self._layers.values())
        if self._sharing is None:
            return Owners(layers, assigned(layers, group), group, coder)
        if method.worker_fraction * world > 1:
            raise ValueError(
                f"{name} has {method.worker_fraction * world:g} gradient workers for each layer, which need its whole "
                f"gradient: pass grad_worker_fraction=1/{world}, one worker for each layer."
            )
        return Owners(layers, {layer.name: self._sharing.owner(layer.name) for layer in layers}, group, coder)

    def _finished(self, updates: Sequence[Update]) -> list[Tensor]:
        """Return the final updates of this rank's layers."""
        if self._owners is not None and isinstance(self._method, KLClipping):
            return self._method.finish(updates, self._owners.terms_of_all)
        return self._method.finish(updates)

    def _accumulate(
        self, statistics: Mapping[str, Sums], step: int, will_step: Tensor | None, scale: Tensor | None
    ) -> dict[str, Tensor | None]:
        """Fold the statistics into the states; return for every layer whether they count, a boolean device scalar."""
        counted: dict[str, Tensor | None] = {}
        finite: dict[str, Tensor] = {}
        with self._phases("factor"):
            for name in [name for name in self._layers if name in statistics]:
                statistic = statistics[name].complete(self._layers[name].bias_gradient(scale))
                finite[name] = statistic.is_finite()
                # With several ranks every layer takes part in the sums, even if no rank used it: its number is then 0.
                accept = finite[name] & (statistic.number > 0)
                if will_step is not None:
                    accept &= will_step
                accumulate = partial(self._method.accumulate, captured=statistic, step=step)
                if self._states.change(name, accept, accumulate):
                    counted[name] = accept
            # A step that the optimizer skips may have infinite statistics.
            wrong = [~flag if will_step is None else ~flag & will_step for flag in finite.values()]
            self._diagnostics.settle()
            self._diagnostics.note(NOT_FINITE, [*finite], wrong)
        return counted

    def _refresh(self, due: Mapping[str, Tensor | None], step: int) -> None:
        """Refresh the layers that are due, each on its owner, and send the tensors to its gradient workers."""
        if self._placement is not None:
            self._refresh_sides(due, step, self._placement)
            return
        # Methods without refreshed tensors have the same statistics on all ranks, which update all states themselves.
        sharing = self._sharing if self._method.refreshed else None
        with self._phases("factor"):
            for name, accept in due.items():
                if sharing is None or sharing.owns(name):
                    self._states.change(name, accept, partial(self._method.refresh, step=step))
        if sharing is not None:
            with self._phases("communication"):
                sharing.share_refreshed({name: self._states[name] for name in due}, list(due))

    def _refresh_sides(self, due: Mapping[str, Tensor | None], step: int, placement: Placement) -> None:
        """Refresh the factors that are due where they are placed, and send the tensors to the other ranks."""
        with self._phases("factor"):
            for name, accept in due.items():
                for side in SIDES:
                    if placement.computes(name, side):
                        self._states.change(name, accept, partial(self._method.refresh_side, side=side, step=step))
        with self._phases("communication"):
            placement.share({name: self._states[name] for name in due})
