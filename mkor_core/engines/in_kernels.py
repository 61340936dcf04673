"""The preconditioning of a method of low rank by Triton kernels, which change gradients where they are."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from mkor_core.devices import ALIGNMENT, upload
from mkor_core.engines.clipping import split_rates
from mkor_core.engines.engine import GradientParts, Phases, Preconditioning
from mkor_core.engines.stacks import Stack, States
from mkor_core.kernels.fused import FusedAdamW, FusedSGD, Pair, Pending
from mkor_core.kernels.grouped import Entry, Group, GroupKind, is_possible, is_recorded, kind_of
from mkor_core.method import InPlaceMethod, LearningRate, LowRank, Method, RankOne, Windowed

Kernels = Literal["auto", "eager", "triton"]
"""Which code preconditions with methods of low rank."""
DTYPES = {torch.float32, torch.bfloat16, torch.float16}


def form_of(method: Method) -> Windowed | RankOne | None:
    """Return the form of a method's updates, for which there are kernels; None for none."""
    if not isinstance(method, LowRank):
        return None
    # A subclass with another `apply` has another update, of which the form of its base says nothing: the class with the
    # first `apply` must name the mixin itself.
    own = next(cls for cls in type(method).__mro__ if "apply" in vars(cls))
    names_it = any(issubclass(base, LowRank) and not issubclass(base, InPlaceMethod) for base in own.__bases__)
    return method.form if names_it else None


def takes_kernels(kernels: Kernels) -> bool:
    """Return whether to use kernels where there are any.

    kernels: ``auto`` takes those on CUDA devices if Triton is installed, ``triton`` all, ``eager`` none.
    """
    return kernels == "triton" or (kernels == "auto" and torch.cuda.is_available() and _has_triton())


def refuse_kernels(kernels: Kernels, method: Method, form: Windowed | RankOne | None) -> None:
    """Raise a ValueError if kernels are asked for that cannot be used."""
    if kernels != "triton":
        return
    if form is None:
        raise ValueError(
            f"kernels='triton': there are none for this {type(method).__name__}, only for MKOR with a window and Eva "
            "whose gradients are whole on every rank; leave kernels out."
        )
    if not is_recorded() and not _has_triton():
        raise ValueError("kernels='triton': Triton is not installed; PyTorch's CUDA builds bring it.")


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


class InKernels:
    """In-place updates of all layers in a few launches; layers without kernels are left to another preconditioning.

    Those have gradients that are not contiguous or of float64, or windows that are too wide.

    Args:
        method: the method, which is `LowRank`.
        phases: returns the context manager of a phase of the work.
        eager: preconditions the layers without kernels; with a clip all layers, if there are any.
        only_cuda: whether layers on other devices than CUDA's have no kernels.
    """

    def __init__(self, method: InPlaceMethod, phases: Phases, eager: Preconditioning, *, only_cuda: bool) -> None:
        self._eager = eager
        self._phases = phases
        self._only_cuda = only_cuda
        self.method = method
        self._stacks: list[Stack] = []
        self._addresses: list[int] = []
        self._layout: list[object] = []
        """Names, precisions and strides of the gradients of the last step, and how they are aligned."""
        self._groups: dict[tuple[GroupKind, tuple[tuple[int, int, bool], ...]], Group] = {}
        self._members: list[tuple[Group, list[str]]] = []
        self._others: set[str] = set()
        self._terms = torch.empty(0)
        self._rates: tuple[object, Tensor | None] = None, None
        self._pairs: dict[str, Pair] = {}
        self.fused: FusedAdamW | FusedSGD | None = None
        """The attached optimizer, if it takes its steps with V itself."""
        self.writes_gradients = False
        """Whether V must be in the gradients after the next step, because it is compared with D."""

    @property
    def method(self) -> InPlaceMethod:
        """The method."""
        return self._method

    @method.setter
    def method(self, method: InPlaceMethod) -> None:
        assert isinstance(method, LowRank)
        assert method.form is not None
        self._method, self._form = method, method.form
        self._eager.method = method  # type: ignore[attr-defined]

    def precondition(
        self, states: States, gradients: GradientParts, rates: Mapping[str, LearningRate], scale: Tensor | None
    ) -> None:
        """See `mkor_core.engines.engine.Preconditioning`."""
        addresses: list[int] = []
        layout: list[object] = []
        for name, parts in gradients.items():
            layout.append(name)
            for part in parts:
                addresses.append(address := part.data_ptr())
                layout += (part.dtype, part.is_contiguous(), address % ALIGNMENT)
        # Stacks are made anew when a state moves. Gradients mostly move only where they are freed between steps.
        if states.stacks is not self._stacks or layout != self._layout:
            self._stacks, self._layout = states.stacks, layout
            self._arrange(gradients)
        elif addresses != self._addresses:
            self._pair()
            for group, names in self._members:
                group.move([gradients[name] for name in names])
        self._addresses = addresses
        if self._others:
            self._eager.precondition(states, {name: gradients[name] for name in self._others}, rates, scale)
        clip = self.method.clip
        with self._phases("precondition"):
            first = 0
            for group, names in self._members:
                terms = self._terms[first : (first := first + len(names))]
                group.find(self._form, terms, self._learning_rates(names, {} if clip is None else rates, scale))
            for group, names in self._members:
                pairs = [self._pairs[name] for name in names]
                if self.fused is not None and not self.writes_gradients and self.fused.takes(pairs):
                    self.fused.defer(Pending(group, pairs, self._terms, clip))
                else:
                    group.correct(self._terms, clip)

    def _arrange(self, gradients: GradientParts) -> None:
        """Divide the layers into groups, and send the groups their addresses."""
        found: dict[GroupKind, list[tuple[str, Entry]]] = {}
        self._others = set()
        for stack in self._stacks:
            for index, layer in enumerate(stack.layers):
                if (parts := gradients.get(layer.name)) is None:
                    continue
                bias = parts[1] if stack.kind.has_bias else None
                if self._is_fit(stack, parts):
                    entry = Entry(parts[0], bias, stack.state, index)
                    found.setdefault(kind_of(entry, self._form), []).append((layer.name, entry))
                else:
                    self._others.add(layer.name)
        # A clip concerns all layers, whose terms must be in one place.
        if self.method.clip is not None and (self._others or len({kind.device for kind in found}) > 1):
            self._others, found = set(gradients), {}
        self._pair()
        kept, self._groups, self._members = self._groups, {}, []
        for kind, members in found.items():
            shapes = tuple((len(entry.weight), entry.weight[0].numel(), entry.bias is not None) for _, entry in members)
            group = kept.get((kind, shapes)) or Group(kind, shapes)
            group.point_to([entry for _, entry in members])
            self._groups[kind, shapes] = group
            self._members.append((group, [name for name, _ in members]))
        if found:
            number = sum(len(names) for _, names in self._members)
            self._terms = torch.zeros(number, dtype=torch.float32, device=next(iter(found)).device)

    def _pair(self) -> None:
        """Note the parameters that the gradients are of."""
        self._pairs = {
            layer.name: (layer.known[0], layer.known[1] if stack.kind.has_bias else None)
            for stack in self._stacks
            for layer in stack.layers
        }

    def _is_fit(self, stack: Stack, parts: Sequence[Tensor]) -> bool:
        """Return whether there are kernels for a layer's gradient and state."""
        right = stack.state["right"]
        return (
            not (self._only_cuda and stack.kind.device.type != "cuda")
            and parts[0].numel() > 0
            and all(part.is_contiguous() and part.dtype == parts[0].dtype for part in parts)
            and {parts[0].dtype, right.dtype} <= DTYPES
            and (isinstance(self._form, RankOne) or "right_weights" in stack.state)
            and is_possible(self._form, right.shape[-2])
        )

    def _learning_rates(self, names: Sequence[str], rates: Mapping[str, LearningRate], scale: Tensor | None) -> Tensor:
        """Return the rates of weights and biases ``[layers, 2]``, divided by the loss scale; zeros without a clip."""
        own = [rates[name] if rates else 0.0 for name in names]
        if any(isinstance(rate, Tensor) for rate in own) or own != self._rates[0] or self._rates[1] is None:
            like = self._terms[: len(names)]
            columns = [torch.broadcast_to(torch.as_tensor(part), like.shape) for part in split_rates(own, like)]
            self._rates = own, upload(torch.stack(columns, 1).to(like.dtype), like.device)
        sent = self._rates[1]
        assert sent is not None
        return sent if scale is None else sent / scale
