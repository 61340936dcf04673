"""The engine of a `StackedMethod`: layers of one shape share their state tensors, and are updated together.

A *stack* holds the layers of one shape, dtype and device. Its state tensors have a leading dimension ``[L]``. On a GPU
the gradients of a stack are gathered, preconditioned by a few kernels and scattered. On a CPU, where a kernel costs
nothing to start and a copy does, each layer is preconditioned in its own ``.grad``.

Of sharded parameters a rank has blocks of D. A method that works on blocks preconditions them where they are, and all
ranks hold all states; or else a layer's owner gets all of D, and alone holds its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core.capture.blocks import Groups
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.capture.statistics import Captured, Sums
from mkor_core.engines.blockwise import Blockwise
from mkor_core.engines.diagnostics import NOISE, NOT_FINITE, Diagnostics
from mkor_core.engines.kl_clip import clip_factor, split_rates
from mkor_core.engines.stacks import GradientParts, Kind, Stack, Unit, units
from mkor_core.engines.states import fitted, local_name, unknown_layer
from mkor_core.method import LayerState, LearningRate, Prepared, StackedMethod
from mkor_core.ranks import comm
from mkor_core.ranks.owners import Owners
from mkor_core.transfers import Deferred


class StackedEngine:
    """The states of a model's layers under a stacked method, and what a step does with them.

    Args:
        layers: the layers by name.
        method: the method.
        diagnostics: gets the reports.
        phases: returns the context manager of a phase of the work.
        owners: the owners of the layers; None: every rank preconditions all layers, or its blocks of them.
        group: the ranks.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        method: StackedMethod,
        diagnostics: Diagnostics,
        phases: Callable[[str], AbstractContextManager[object]],
        owners: Owners | None,
        group: ProcessGroup | None,
    ) -> None:
        self._layers = layers
        self._owners = owners
        self._group = group
        self._method = method
        self._diagnostics = diagnostics
        self._phases = phases
        self._blockwise = Blockwise(method, phases)
        self._stacks: dict[Kind, Stack] = {}
        self._whole: dict[str, LayerState] = {}
        """What `consolidate` gathered."""
        self._kinds: dict[str, Kind] = {}
        """The kinds of the layers that have a state, when they were stacked."""

    def update(
        self,
        layers: Sequence[Layer],
        statistics: Mapping[str, Sums],
        step: int,
        will_step: Tensor | None,
        scale: Tensor | None,
    ) -> bool:
        """Fold a step's statistics into the states and refresh them; return whether there were any.

        Args:
            layers: those that are trained.
            statistics: the statistics of this step, summed over ranks, by layer.
            step: the step (from 0).
            will_step: whether the optimizer takes this step, as a boolean device scalar; None for yes.
            scale: the loss scale by which the gradients are multiplied; None for 1.
        """
        if not statistics:
            return False
        norms = self._gradient_norms(layers, scale) if self._method.needs_gradient_norms else {}
        with self._phases("factor"):
            updated = [
                stack for stack in self._ensure(layers) if any(layer.name in statistics for layer in stack.layers)
            ]
            flags = [self._update_stack(stack, statistics, norms, step, will_step, scale) for stack in updated]
            wrong = [~finite if will_step is None else ~finite & will_step for finite, _ in flags]
            noise = [
                ignored & accepted
                for stack, (_, accepted) in zip(updated, flags, strict=True)
                if (ignored := self._method.noise(stack.state)) is not None
            ]
            names = [layer.name for stack in updated for layer in stack.layers]
            self._diagnostics.settle()
            self._diagnostics.note(NOT_FINITE, names, wrong)
            self._diagnostics.note(NOISE, names, noise)
        return True

    def precondition(self, layers: Sequence[Layer], rates: Sequence[LearningRate], scale: Tensor | None) -> None:
        """Replace the gradients of layers by their updates.

        Args:
            layers: those that have a gradient.
            rates: their learning rates.
            scale: the loss scale by which the gradients are multiplied; None for 1. Updates are multiplied by it too.
        """
        if self._owners is None:
            gradients: GradientParts = {layer.name: layer.gradient_parts() for layer in layers}
        else:
            with self._phases("communication"):
                gradients = self._owners.gather(layers)
        whole, blocks = self._chosen(gradients, in_blocks=False), list(self._chosen(gradients, in_blocks=True))
        sums = self._blockwise.sums(blocks)
        if self._method.clip is None:
            with self._phases("precondition"):
                # One stack's gradients live at a time. V is linear in D, so that the loss scale does not matter.
                for unit in whole:
                    self._method.apply(unit.state, unit.grad)
                    unit.write_back()
            nu = None
        else:
            units_of_whole = list(whole)
            with self._phases("precondition"):
                prepared = [self._method.prepare(unit.state, unit.grad) for unit in units_of_whole]
                of_blocks = [self._method.prepare_block(u.state, s) for u, s in zip(blocks, sums, strict=True)]
                by_name = {layer.name: rate for layer, rate in zip(layers, rates, strict=True)}
                pairs = zip([*units_of_whole, *blocks], [*prepared, *of_blocks], strict=True)
                terms = [_term(unit, one, by_name, scale) for unit, one in pairs]
            if self._owners is not None:
                with self._phases("communication"):
                    terms = self._owners.terms_of_all(terms)
            nu = clip_factor(terms, self._method.clip)
            with self._phases("precondition"):
                for unit, one in zip(units_of_whole, prepared, strict=True):
                    self._method.apply(unit.state, unit.grad, one, nu.to(unit.grad.weight.device))
                    unit.write_back()
        self._blockwise.apply(blocks, sums, nu)
        if self._owners is not None:
            with self._phases("communication"):
                self._owners.scatter(layers, gradients)

    def bytes_by_tensor(self, layers: Sequence[Layer]) -> dict[str, int]:
        """Return the bytes of layers' states by tensor name (``left``, ``right``, ...)."""
        sizes: dict[str, int] = {}
        for stack in self._ensure(layers):
            number = len({layer.name for layer in stack.layers} & {layer.name for layer in layers})
            for key, tensor in stack.state.items():
                size = tensor.numel() // len(stack.layers) * tensor.element_size()
                sizes[key] = sizes.get(key, 0) + number * size
        return sizes

    def non_finite(self) -> list[str]:
        """Return the layers whose state holds a NaN or an infinity; waits for the device."""
        wrong: list[str] = []
        for stack in self._stacks.values():
            flags = [tensor.isfinite().reshape(len(stack.layers), -1).all(1) for tensor in stack.state.values()]
            finite = torch.stack(flags)
            wrong += [layer.name for layer, fine in zip(stack.layers, finite.all(0).tolist(), strict=True) if not fine]
        return [name for name in self._layers if name in wrong]

    def consolidate(self, rank: int | None) -> None:
        """Gather the states of all owners in host memory, for the next `saved`; see `Preconditioner.consolidate`."""
        if self._owners is None:
            return
        own = self._states()
        self._whole = {}
        for name, layer in self._layers.items():
            initial = self._initial(Kind.of(layer), ())
            state = own.get(name, initial)
            source = comm.global_rank(self._owners.owner(name), self._group)
            # One flat broadcast of the tensors of each dtype.
            received: LayerState = {}
            for dtype in sorted({tensor.dtype for tensor in state.values()}, key=str):
                keys = [key for key, tensor in state.items() if tensor.dtype == dtype]
                received.update(
                    zip(keys, comm.broadcast([state[key] for key in keys], source, self._group), strict=True)
                )
            if rank in (None, comm.rank(self._group)):
                self._whole[name] = {key: received[key].to("cpu", copy=True) for key in state}

    def forget_consolidated(self) -> None:
        """Drop what `consolidate` gathered: the states are about to change."""
        self._whole = {}

    def state(self, name: str) -> LayerState | None:
        """Return a layer's state, as views; None if this rank has none."""
        for stack in self._stacks.values():
            for index, layer in enumerate(stack.layers):
                if layer.name == name:
                    return stack.state_of(index)
        return None

    def prepare_states(self, layers: Sequence[Layer]) -> None:
        """Make the states of layers that have none yet."""
        self._ensure(layers)

    def saved(self) -> dict[str, LayerState]:
        """Return the states by layer, consolidated ones if `consolidate` was called in this step; otherwise views."""
        if self._whole:
            return dict(self._whole)
        return self._states()

    def _states(self) -> dict[str, LayerState]:
        """Return the states of the layers that this rank holds, as views."""
        states = {
            layer.name: stack.state_of(index)
            for stack in self._stacks.values()
            for index, layer in enumerate(stack.layers)
        }
        return {name: states[name] for name in self._layers if name in states}

    def load(self, saved: Mapping[str, LayerState], layers: Sequence[Layer]) -> None:
        """Replace the states with copies of saved ones.

        Args:
            saved: the states by layer.
            layers: those that are trained, whose states their owners need.

        Raises:
            ValueError: a layer that the model lacks, one that this rank owns and ``saved`` lacks, or a tensor that is
                missing, unknown or of another shape.
        """
        states: dict[str, LayerState] = {}
        for saved_name, state in saved.items():
            name = local_name(self._layers, saved_name)
            if name not in self._layers:
                raise ValueError(unknown_layer(name))
            if self._owners is not None and not self._owners.owns(name):
                continue
            states[name] = fitted(name, self._initial(Kind.of(self._layers[name]), ()), state)
        if saved and self._owners is not None:
            missing = [layer.name for layer in layers if self._owners.owns(layer.name) and layer.name not in states]
            if missing:
                raise ValueError(
                    f"The saved state lacks layer {missing[0]!r}, which this rank owns: call consolidate() before "
                    "saving it, or save every rank's with torch.distributed.checkpoint."
                )
        self._whole = {}
        self._stack(states)

    def clear(self) -> None:
        """Forget all states."""
        self._stacks, self._kinds, self._whole = {}, {}, {}

    def _update_stack(
        self,
        stack: Stack,
        statistics: Mapping[str, Sums],
        norms: Mapping[str, Tensor],
        step: int,
        will_step: Tensor | None,
        scale: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Update one stack.

        Returns:
            Which of its layers have finite statistics, all those without any among them; and which are updated.
        """
        method, state = self._method, stack.state
        captured = _joined(stack, statistics, scale)
        finite = (captured.x.flatten(1).sum(1) + captured.g.flatten(1).sum(1)).isfinite()
        # A layer that no rank used has the number 0.
        accept = finite & (captured.number > 0)
        if will_step is not None:
            accept = accept & will_step
        if method.decomposes:
            for index, layer in enumerate(stack.layers):
                one = Captured(captured.x[index], captured.g[index], captured.number[index])
                try:
                    method.accumulate(stack.state_of(index), one, step, accept[index])
                except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                    accept[index] = False
                    self._diagnostics.report_failure(layer.name)
        else:
            of_stack = torch.stack([norms[layer.name] for layer in stack.layers]) if norms else None
            method.accumulate(state, captured, step, accept, of_stack)
        if method.refreshes(step):
            # A step that comes again, because the optimizer skipped it, cannot use what was requested after it.
            is_later = stack.refreshed is not None and stack.refreshed < step
            host = {key: _on_host(value) for key, value in stack.host.items()} if is_later else None
            method.refresh(state, step, accept, will_step, host)
            stack.host = {key: _requested(tensor) for key, tensor in method.host_inputs(state, step).items()}
            stack.refreshed = step
        return finite, accept

    def _chosen(self, gradients: GradientParts, *, in_blocks: bool) -> Iterator[Unit]:
        """Yield the gradients that are blocks of D, or those that are all of D."""
        for stack in self._ensure(self._layers[name] for name in gradients):
            block = stack.kind.block if self._owners is None else None
            chosen = [layer for layer in stack.layers if layer.name in gradients]
            if chosen and (block is not None) == in_blocks:
                yield from units(stack, chosen, gradients, block)

    def _gradient_norms(self, layers: Sequence[Layer], scale: Tensor | None) -> dict[str, Tensor]:
        """Return ``|D|`` by layer, 0 for one without a gradient; scale: that of the gradients."""
        squares: list[tuple[Tensor, Groups]] = []
        with self._phases("factor"):
            for layer in layers:
                square = sum(torch.linalg.vector_norm(part).square() for part in _counted_parts(layer))
                groups = () if layer.block is None else layer.block.row_groups + layer.block.column_groups
                squares.append((torch.as_tensor(square), groups))
        totals = self._blockwise.summed(squares)
        roots = [total.sqrt() if scale is None else total.sqrt() / scale for total in totals]
        return dict(zip((layer.name for layer in layers), roots, strict=True))

    def _ensure(self, layers: Iterable[Layer]) -> list[Stack]:
        """Return all stacks, the layers' among them; stack anew if a layer is new, or its weight has moved."""
        owners = self._owners
        kinds = {layer.name: Kind.of(layer) for layer in layers if owners is None or owners.owns(layer.name)}
        if any(self._kinds.get(name) != kind for name, kind in kinds.items()):
            states = self._states()
            for name, kind in kinds.items():
                initial = self._initial(kind, ())
                states[name] = fitted(name, initial, states[name]) if name in states else initial
            self._stack(states)
        return list(self._stacks.values())

    def _stack(self, states: Mapping[str, LayerState]) -> None:
        """Stack the states of layers by their kinds, in the model's order."""
        groups: dict[Kind, list[Layer]] = {}
        for name, layer in self._layers.items():
            if name in states:
                groups.setdefault(Kind.of(layer), []).append(layer)
        self._stacks = {}
        for kind, layers in groups.items():
            state = self._initial(kind, (len(layers),))
            for index, layer in enumerate(layers):
                for key, tensor in states[layer.name].items():
                    state[key][index].copy_(tensor)
            self._stacks[kind] = Stack(kind, layers, state)
        self._kinds = {layer.name: kind for kind, layers in groups.items() for layer in layers}

    def _initial(self, kind: Kind, leading: tuple[int, ...]) -> LayerState:
        return self._method.initial_state(kind.shape, wide_dtype(kind.dtype), kind.device, leading)


def _joined(stack: Stack, statistics: Mapping[str, Sums], scale: Tensor | None) -> Captured:
    """Return a stack's statistics ``[L, ...]``, zeros for the layers without any; scale: that of the gradients."""
    known = [statistics.get(layer.name) for layer in stack.layers]
    sums = [one for one in known if one is not None]
    if len(sums) < len(known):
        x, g, number, locations = sums[0]
        blank = Sums(
            torch.zeros_like(x), None if g is None else torch.zeros_like(g), torch.zeros_like(number), locations
        )
        sums = [blank if one is None else one for one in known]
    x, number = torch.stack([one.x for one in sums]), torch.stack([one.number for one in sums])
    if all(one.g is None for one in sums) and not any(isinstance(one.locations, Tensor) for one in sums):
        g = _biases(stack.layers, x.dtype) if scale is None else _biases(stack.layers, x.dtype) / scale
    else:
        g = torch.stack(
            [one.complete(layer.bias_gradient(scale)).g for one, layer in zip(sums, stack.layers, strict=True)]
        )
    return Captured(x, g, number)


def _biases(layers: Sequence[Layer], dtype: torch.dtype) -> Tensor:
    """Return the gradients of the biases ``[L, d_out]``, zeros for a layer without one."""
    return torch.stack([layer.bias_gradient() for layer in layers]).to(dtype)


def _counted_parts(layer: Layer) -> list[Tensor]:
    """Return the parts of a layer's gradient that count as this rank's, in at least float32."""
    parts = layer.gradient_parts()[: None if layer.block is None or layer.block.counts_bias else 1]
    return [part.to(wide_dtype(part.dtype)) for part in parts]


def _term(unit: Unit, prepared: Prepared, rates: Mapping[str, LearningRate], scale: Tensor | None) -> Tensor:
    """Return ``sum(V * D) lr^2`` over a unit's layers, of unscaled gradients, without those that keep D."""
    of_weight, of_bias = prepared.inner
    weight_rates, bias_rates = split_rates([rates[layer.name] for layer in unit.layers], of_weight)
    total = of_weight * weight_rates**2 + of_bias * bias_rates**2
    if scale is not None:
        total = total / scale**2
    return torch.where(prepared.keeps, 0, total).sum()


def _requested(tensor: Tensor) -> Tensor | Deferred:
    return Deferred(tensor) if tensor.is_cuda else tensor


def _on_host(value: Tensor | Deferred) -> Tensor:
    return value.on_host() if isinstance(value, Deferred) else value
