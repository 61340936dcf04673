"""The engine: what a step does with the states of a model's layers, and with their gradients.

On one process, with parameters that are whole, that is all of it:

1. `Engine.update` hands every stack the statistics of its layers, and lets the method refresh what is due.
2. `InPlace.precondition` hands every stack the gradients of its layers, and writes the updates back.

On a GPU the gradients of a stack are gathered, preconditioned by a few kernels and scattered. On a CPU, where a kernel
costs nothing to start and a copy does, each layer is preconditioned in its own ``.grad``. What several ranks do besides
is in the objects that are given to the engine when it is made (`mkor_core.engines.choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mkor_core.capture.blocks import Block
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.capture.statistics import Captured, Sums
from mkor_core.devices import Deferred
from mkor_core.engines.diagnostics import NOISE, NOT_FINITE, Diagnostics
from mkor_core.engines.stacks import Stack, States
from mkor_core.maths.products import Gradient
from mkor_core.method import HostAssisted, InPlaceMethod, Known, LayerState, LearningRate, Method
from mkor_core.ranks.owners import Owners

Phases = Callable[[str], AbstractContextManager[object]]
"""Returns the context manager of a phase of the work, given its name."""


class PhasesOfWork:
    """The context managers of the phases of the work, which a clock may set later."""

    def __init__(self) -> None:
        self.of: Phases = nullcontext
        """Returns that of a phase: capture, communication, factor or precondition."""

    def __call__(self, name: str) -> AbstractContextManager[object]:
        """Return that of a phase."""
        return self.of(name)


GradientParts = Mapping[str, Sequence[Tensor]]
"""By layer, the gradient of the weight and, if D has a column for it, of the bias: what `Layer.gradient_parts` returns,
or whole gradients in their place. Updates are written into these tensors."""


class Refreshing(Protocol):
    """The division of refreshes among ranks."""

    def refresh(self, states: States, layers: Sequence[Layer], step: int, accept: Tensor | None) -> None:
        """Refresh the states of layers, each on the rank that does it for others; a collective call."""


class Preconditioning(Protocol):
    """The way from gradients to updates."""

    def precondition(
        self, states: States, gradients: GradientParts, rates: Mapping[str, LearningRate], scale: Tensor | None
    ) -> None:
        """Replace the gradients D of layers by the updates V.

        Args:
            states: the layers' states.
            gradients: those of the layers that have one.
            rates: the layers' learning rates.
            scale: the loss scale by which the gradients are multiplied; None for 1. Updates are multiplied by it too.
        """


class Engine:
    """The states of a model's layers under a method, and how a step's statistics change them.

    Args:
        states: the layers' states.
        method: the method.
        diagnostics: gets the reports.
        phases: returns the context manager of a phase of the work.
        preconditioning: makes updates of gradients.
        refreshing: divides the refreshes among ranks; None: every rank refreshes all states that it has.
        owners: the ranks that get the whole gradients of layers; None: every rank has them, or its blocks of them.
        sum_squares: returns ``|D|^2`` of layers, given those of this rank's blocks; None: no layer is cut into blocks.
    """

    def __init__(
        self,
        states: States,
        method: Method,
        diagnostics: Diagnostics,
        phases: Phases,
        preconditioning: Preconditioning,
        refreshing: Refreshing | None = None,
        owners: Owners | None = None,
        sum_squares: Callable[[Sequence[Layer], Sequence[Tensor]], list[Tensor]] | None = None,
    ) -> None:
        self._states = states
        self.method = method
        self._refreshes = type(method).refresh is not Method.refresh
        self._wants_norms = method.statistic.norms
        self._diagnostics = diagnostics
        self._phases = phases
        self._preconditioning = preconditioning
        self._refreshing = refreshing
        self._owners = owners
        self._sum_squares = sum_squares

    def update(
        self,
        layers: Sequence[Layer],
        statistics: Mapping[str, Sums],
        step: int,
        will_step: Tensor | None,
        scale: Tensor | None,
    ) -> None:
        """Fold a step's statistics into the states, and refresh those that are due.

        Args:
            layers: those that are trained.
            statistics: the statistics of this step, over all ranks, by layer.
            step: the step (from 0).
            will_step: whether the optimizer takes this step, as a boolean device scalar; None for yes.
            scale: the loss scale by which the gradients are multiplied; None for 1.
        """
        stacks = self._states.stacks  # made by `States.prepare` at the beginning of the step
        norms = self._gradient_norms(layers, scale) if statistics and self._wants_norms else None
        with self._phases("factor"):
            if statistics and self._diagnostics.flags:
                self._diagnostics.settle()
            reports: list[_Report] = []
            for stack in stacks:
                captured = joined(stack, statistics, norms, scale)
                if captured is not None and (report := self._accumulate(stack, captured, step, will_step)) is not None:
                    reports.append(report)
            if reports:
                self._hand_on(reports, will_step)
            if not self._refreshes or not self.method.refreshes(step):
                return
            if self._refreshing is None:  # one process, or a method that all ranks refresh alike
                for stack in stacks:
                    self.refresh_stack(stack, step, will_step)
        if self._refreshing is not None:
            self._refreshing.refresh(self._states, layers, step, will_step)

    def precondition(self, layers: Sequence[Layer], rates: Mapping[str, LearningRate], scale: Tensor | None) -> None:
        """Replace the gradients D of layers by the updates V.

        Args:
            layers: those that have a gradient.
            rates: their learning rates, if the method has a clip.
            scale: the loss scale by which the gradients are multiplied; None for 1. Updates are multiplied by it too.
        """
        gradients: GradientParts
        if self._owners is None:
            gradients = own = {}
            for layer in layers:
                own[layer.name] = layer.gradient_parts()
            self._preconditioning.precondition(self._states, gradients, rates, scale)
            return
        with self._phases("communication"):
            gradients = self._owners.gather(layers)
        self._preconditioning.precondition(self._states, gradients, rates, scale)
        with self._phases("communication"):
            self._owners.scatter(layers, gradients)

    def _accumulate(self, stack: Stack, captured: Captured, step: int, will_step: Tensor | None) -> _Report | None:
        """Fold the statistics of a stack into its state, for those of its layers of which they count.

        Returns:
            What may have to be reported; None if the host knows, without waiting, that there is nothing.
        """
        lead = captured.number.dim()  # 1 for a stack, 0 for a layer alone
        # A NaN or infinite entry makes its sum NaN or infinite. Large finite entries whose sum overflows fail, too.
        finite = (captured.x.flatten(lead).sum(-1) + captured.g.flatten(lead).sum(-1)).isfinite()
        # With several ranks every layer takes part in the sums, even if no rank used it: its number is then 0.
        accept = finite & (captured.number > 0)
        if will_step is not None:
            accept = accept & will_step
        # Where the host knows that all layers count, nothing need be masked; a layer alone that does not is left out.
        host_reads = goes_alone(accept.device)
        all_count = host_reads and bool(accept.all().tolist())
        noise: Tensor | None = None
        try:
            if stack.is_assisted:
                assert isinstance(self.method, HostAssisted)
                # A step that comes again, because the optimizer skipped it, cannot use what was requested after it.
                is_later = stack.requested is not None and stack.requested < step
                self.method.make_room(stack.state, step, will_step, _on_host(stack.host) if is_later else None)
            if all_count or not host_reads or lead:
                noise = self.method.accumulate(stack.state, captured, step, None if all_count else accept)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            self._diagnostics.report_failure(*(layer.name for layer in stack.layers))
        if stack.is_assisted:
            assert isinstance(self.method, HostAssisted)
            stack.host, stack.requested = _requested(self.method.host_inputs(stack.state, step)), step
        return None if all_count and noise is None else _Report(stack, finite, accept, noise)

    def refresh_stack(self, stack: Stack, step: int, accept: Tensor | None) -> None:
        """Call `Method.refresh`; a decomposition that fails is reported."""
        try:
            self.method.refresh(stack.state, step, accept)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            self._diagnostics.report_failure(*(layer.name for layer in stack.layers))

    def _hand_on(self, reports: Sequence[_Report], will_step: Tensor | None) -> None:
        """Note layers whose statistics are not finite, or were noise, to be reported at the next update."""
        names = [layer.name for report in reports for layer in report.stack.layers]
        # A step that the optimizer skips may have infinite statistics.
        wrong = [~r.finite if will_step is None else ~r.finite & will_step for r in reports]
        noisy = [r.accept & r.noise for r in reports if r.noise is not None]
        self._diagnostics.note(NOT_FINITE, names, wrong)
        self._diagnostics.note(NOISE, names, noisy)

    def _gradient_norms(self, layers: Sequence[Layer], scale: Tensor | None) -> dict[str, Tensor]:
        """Return ``|D|`` by layer, 0 for one without a gradient; scale: that of the gradients."""
        with self._phases("factor"):
            squares = [_square_norm(layer) for layer in layers]  # of this rank's blocks
        if self._sum_squares is not None:
            squares = self._sum_squares(layers, squares)
        roots = [square.sqrt() if scale is None else square.sqrt() / scale for square in squares]
        return dict(zip((layer.name for layer in layers), roots, strict=True))


class _Report(NamedTuple):
    """What became of a stack's statistics."""

    stack: Stack
    finite: Tensor
    """Which of its layers have finite statistics, all those without any among them."""
    accept: Tensor
    """Which are updated."""
    noise: Tensor | None
    """What `Method.accumulate` returned."""


class InPlace:
    """The preconditioning of an `InPlaceMethod` without a clip, where gradients are whole."""

    def __init__(self, method: InPlaceMethod, phases: Phases) -> None:
        self.method = method
        self._phases = phases

    def precondition(
        self, states: States, gradients: GradientParts, rates: Mapping[str, LearningRate], scale: Tensor | None
    ) -> None:
        """See `Preconditioning`. V is linear in D, so that the loss scale does not matter."""
        method = self.method
        with self._phases("precondition"):
            for stack in states.stacks:
                for unit in units(stack, gradients):  # one stack's gradients live at a time
                    method.apply(unit.state, unit.grad, Known(method.products(unit.state, unit.grad)))
                    unit.write_back()


class Unit(NamedTuple):
    """Gradients that are preconditioned together: those of a stack, or that of one layer."""

    layers: Sequence[Layer]
    state: LayerState
    grad: Gradient
    parts: Sequence[Sequence[Tensor]]
    """The tensors of `GradientParts` from which ``grad`` was gathered."""
    block: Block | None
    """The part of D that ``grad`` is; None: all of it."""

    def write_back(self) -> None:
        """Copy ``grad`` into the parts that do not share its memory."""
        weight, bias = self.grad
        if weight.dim() == 2:
            ((*parts,),) = self.parts
            if parts[0].data_ptr() != weight.data_ptr():  # a copy was made: half precision, or a strided gradient
                parts[0].copy_(weight.view(parts[0].shape))
            if bias is not None and parts[1].data_ptr() != bias.data_ptr():
                parts[1].copy_(bias)
            return
        targets = [parts[0] for parts in self.parts]
        sources = [*weight.unbind()]  # [d_out, d_w] each; of a Conv2d, the target is [d_out, C, kh, kw]
        if any(target.dim() > 2 for target in targets):
            sources = [part.view(target.shape) for part, target in zip(sources, targets, strict=True)]
        if bias is not None:
            targets += [parts[1] for parts in self.parts]
            sources += bias.unbind()
        torch._foreach_copy_(targets, sources)


def units(stack: Stack, gradients: GradientParts, block: Block | None = None) -> list[Unit]:
    """Return the gradients of a stack's layers: one layer at a time on a CPU, together elsewhere.

    block: the part of D that ``gradients`` are; None: all of it.
    """
    dtype = wide_dtype(stack.kind.dtype)
    if goes_alone(stack.kind.device) or stack.kind.name is not None:
        found = []
        for index, layer in enumerate(stack.layers):
            if layer.name in gradients:
                parts = gradients[layer.name]
                bias = parts[1].to(dtype) if stack.kind.has_bias else None
                grad = Gradient(parts[0].flatten(1).contiguous().to(dtype), bias)
                found.append(Unit([layer], stack.state_of(index), grad, [parts], block))
        return found
    layers = [layer for layer in stack.layers if layer.name in gradients]
    if not layers:
        return []
    parts_of = [gradients[layer.name] for layer in layers]
    weights = [parts[0] for parts in parts_of]  # to become one tensor [L, d_out, d_w]
    rows, *rest = weights[0].shape
    if all(one.dim() == 2 and one.dtype == dtype for one in weights):
        weight = torch.stack(weights)  # one kernel, and no view for each layer
    else:
        weight = weights[0].new_empty((len(layers), rows, torch.Size(rest).numel()), dtype=dtype)
        torch._foreach_copy_([part.view(one.shape) for part, one in zip(weight, weights, strict=True)], weights)
    biases = torch.stack([parts[1] for parts in parts_of]).to(dtype) if stack.kind.has_bias else None
    return [Unit(layers, stack.state_for(layers), Gradient(weight, biases), parts_of, block)]


def goes_alone(device: torch.device) -> bool:
    """Return whether each layer is preconditioned in its own gradient, and the host reads values without waiting."""
    return device.type == "cpu"


def joined(
    stack: Stack, statistics: Mapping[str, Sums], norms: Mapping[str, Tensor] | None, scale: Tensor | None
) -> Captured | None:
    """Return a stack's statistics ``[L, ...]``, zeros for the layers without any; None if no layer has any.

    Args:
        stack: the stack; of a layer alone, there is no leading dimension.
        statistics: the layers' statistics.
        norms: ``|D|`` by layer, if the method wants to know them.
        scale: the loss scale by which gradients are multiplied; None for 1.
    """
    layers = stack.layers
    sums = [statistics[layer.name] for layer in layers if layer.name in statistics]
    if not sums:
        return None  # no rank has used any of the layers since the last step
    if stack.kind.name is not None:  # no leading dimension
        (layer,), (one,) = layers, sums
        return Captured(one.x, _rows_of(one, layer, scale), one.number, None if norms is None else norms[layer.name])
    if len(sums) < len(layers):  # layers that this step has not used: their number is 0, by which they do not count
        first = sums[0]
        no_g = None if first.g is None else torch.zeros_like(first.g)
        blank = Sums(torch.zeros_like(first.x), no_g, torch.zeros_like(first.number), first.locations)
        sums = [statistics.get(layer.name, blank) for layer in layers]
    x = torch.stack([one.x for one in sums])
    if all(one.g is None and not isinstance(one.locations, Tensor) for one in sums):
        g = torch.stack([layer.bias_gradient() for layer in layers]).to(x.dtype)
        g = g if scale is None else g / scale  # together, by one kernel
    else:
        g = torch.stack([_rows_of(one, layer, scale) for one, layer in zip(sums, layers, strict=True)])
    all_norms = None if norms is None else torch.stack([norms[layer.name] for layer in layers])
    return Captured(x, g, torch.stack([one.number for one in sums]), all_norms)


def _rows_of(sums: Sums, layer: Layer, scale: Tensor | None) -> Tensor:
    """Return the sum of a layer's gradient rows, which may be the gradient of its bias (`Sums.g`)."""
    return sums.of_gradients(layer.bias_gradient(scale) if sums.g is None else sums.g)


def _square_norm(layer: Layer) -> Tensor:
    """Return the part of ``|D|^2`` that counts as this rank's, in at least float32."""
    parts = layer.gradient_parts()[: None if layer.block is None or layer.block.counts_bias else 1]
    squares = [torch.linalg.vector_norm(part.to(wide_dtype(part.dtype))).square() for part in parts]
    return torch.as_tensor(sum(squares))


def _requested(inputs: Mapping[str, Tensor]) -> dict[str, Tensor | Deferred]:
    """Return tensors, those of a GPU on their way to the host."""
    return {key: Deferred(tensor) if tensor.is_cuda else tensor for key, tensor in inputs.items()}


def _on_host(requested: Mapping[str, Tensor | Deferred]) -> dict[str, Tensor]:
    """Return the tensors that `_requested` was given, on the host."""
    return {key: value.on_host() if isinstance(value, Deferred) else value for key, value in requested.items()}
