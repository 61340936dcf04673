"""What a layer saw in a step: the rows of its inputs and output gradients, reduced as they pass.

One hook implementation serves Linear and Conv2d. A Linear on ``[..., d_in]`` has one row per leading index; a Conv2d
has one row per output location, the unfolded patch, ``d_in = C kh kw``. With a trainable bias every input row gets a
trailing 1. Gradient rows are ``raw``: autograd's rows of the global mean loss, so that ``G^T X`` is the gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Supported = nn.Linear | nn.Conv2d


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to accumulate in: float64 stays, everything narrower is widened to float32."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class Statistic:
    """What the hooks keep of a layer's rows.

    kind: ``mean`` keeps sums of rows, ``moment`` second moments, ``rows`` the rows themselves.
    clamp: limit on every entry of the rows before their mean; gradient rows are scaled to their number first.
    examples: only rows of the first so many examples of the global batch are kept.
    """

    kind: Literal["mean", "moment", "rows"]
    clamp: float | None = None
    examples: int | None = None

    def clamped(self, limit: float) -> Self:
        """Return the same statistic over rows clamped to ``[-limit, limit]``."""
        return replace(self, clamp=limit)

    def first(self, examples: int) -> Self:
        """Return the same statistic over the first ``examples`` examples of the global batch."""
        return replace(self, examples=examples)


MEAN = Statistic("mean")
MOMENT = Statistic("moment")
ROWS = Statistic("rows")


class Sums(NamedTuple):
    """A statistic that is a sum, so that micro-batches and ranks add up.

    MEAN: x = sum of input rows / locations ``[d_in]``, g = sum of raw gradient rows / locations ``[d_out]``, number =
    multiplicity (Linear: rows; Conv2d: examples). So ``x / number`` is the mean input row, ``g`` the mean *scaled*
    gradient row and ``g / number`` the mean raw one.
    MOMENT: x = ``X^T X / n`` ``[d_in, d_in]`` and g = ``G^T G / n`` ``[d_out, d_out]`` of rows divided by the number of
    locations, one summand a micro-batch and rank; number = how many.
    """

    x: Tensor
    g: Tensor
    number: Tensor


class Rows(NamedTuple):
    """Raw rows of one call of a layer: x ``[n, d_in]``, g ``[n, d_out]``, n = examples * locations, example-major."""

    x: Tensor
    g: Tensor
    locations: int

    def per_example(self) -> Rows:
        """Average a Conv2d's rows over its locations: one row an example, n = examples."""
        if self.locations == 1:
            return self
        x, g = (rows.unflatten(0, (-1, self.locations)).mean(1) for rows in (self.x, self.g))
        return Rows(x, g, 1)


Captured = Sums | list[Rows]


class Layer:
    """A Linear or Conv2d as a matrix: its rows and its gradient ``D = [dL/dW, dL/db]``, ``[d_out, d_in (+1)]``.

    A bias that is frozen when this is made takes no part; one that is frozen later has a gradient of zero.
    """

    def __init__(self, name: str, module: Supported) -> None:
        self.name = name
        self.module = module
        self.has_bias = module.bias is not None and module.bias.requires_grad
        self.d_out = module.weight.shape[0]
        self.d_in = module.weight[0].numel() + self.has_bias

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the gradient matrix covers: weight, then bias."""
        parameters = [self.module.weight, self.module.bias] if self.has_bias else [self.module.weight]
        return cast("list[nn.Parameter]", parameters)

    def has_gradient(self) -> bool:
        """Tell whether the weight has a gradient."""
        return self.module.weight.grad is not None

    def gradient(self) -> Tensor:
        """Return D ``[d_out, d_in (+1)]`` in float32, or float64 if the parameters are."""
        grads = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in self.parameters]
        columns = [grad.flatten(1) if grad.dim() > 1 else grad[:, None] for grad in grads]
        matrix = torch.cat(columns, 1) if self.has_bias else columns[0]
        return matrix.to(wide_dtype(matrix.dtype))

    def write_gradient(self, matrix: Tensor) -> None:
        """Copy a matrix ``[d_out, d_in (+1)]`` back into the parameters' gradients, in place."""
        start = 0
        for parameter in self.parameters:
            width = parameter[0].numel()
            if parameter.grad is not None:
                parameter.grad.copy_(matrix[:, start : start + width].reshape(parameter.shape))
            start += width

    def locations(self, output: Tensor) -> int:
        """Return the output locations of one example: height x width for a Conv2d, 1 for a Linear."""
        return output.shape[-1] * output.shape[-2] if isinstance(self.module, nn.Conv2d) else 1

    def input_rows(self, inputs: Tensor) -> Tensor:
        """Return X ``[n, d_in (+1)]``; inputs: ``[..., d_in]`` or ``[batch, channels, height, width]``."""
        if isinstance(self.module, nn.Conv2d):
            rows = _patches(self.module, inputs).transpose(1, 2).flatten(0, 1)
        else:
            rows = inputs.reshape(-1, inputs.shape[-1])
        return torch.cat([rows, rows.new_ones(rows.shape[0], 1)], 1) if self.has_bias else rows

    def gradient_rows(self, grad: Tensor) -> Tensor:
        """Return G ``[n, d_out]`` from the gradient with respect to the layer's output."""
        if isinstance(self.module, nn.Conv2d):
            return grad.flatten(2).transpose(1, 2).flatten(0, 1)
        return grad.reshape(-1, grad.shape[-1])

    def input_sum(self, inputs: Tensor) -> Tensor:
        """Return the sum of the rows of X ``[d_in (+1)]`` without making them: unfolding is linear in the images."""
        if isinstance(self.module, nn.Conv2d):
            patches = _patches(self.module, inputs.sum(0, keepdim=True))
            total, number = patches.sum((0, 2)), inputs.shape[0] * patches.shape[-1]
        else:
            total, number = inputs.sum(tuple(range(inputs.dim() - 1))), inputs.numel() // inputs.shape[-1]
        return torch.cat([total, total.new_full((1,), number)]) if self.has_bias else total


def _patches(module: nn.Conv2d, images: Tensor) -> Tensor:
    """Unfold ``[batch, channels, height, width]`` into ``[batch, C kh kw, locations]``."""
    margins = []  # left, right, top, bottom: the last dimension first, as F.pad wants
    for axis in (1, 0):
        if isinstance(module.padding, str):  # "same" or "valid"
            total = module.dilation[axis] * (module.kernel_size[axis] - 1) if module.padding == "same" else 0
            margins += [total // 2, total - total // 2]
        else:
            margins += [module.padding[axis]] * 2
    if any(margins):
        images = F.pad(images, margins, "constant" if module.padding_mode == "zeros" else module.padding_mode)
    return F.unfold(images, module.kernel_size, module.dilation, 0, module.stride)


def _batched(layer: Layer, tensor: Tensor) -> Tensor:
    """Give an unbatched input or output its missing leading dimension."""
    missing = 4 if isinstance(layer.module, nn.Conv2d) else 2
    return tensor if tensor.dim() >= missing else tensor[None]


def _as_used(inputs: Tensor) -> Tensor:
    """Return a layer's input as autocast hands it to the layer; the one it was given may be changed in place later."""
    device = inputs.device.type
    return inputs.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else inputs


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def unsupported_reason(module: nn.Module) -> str | None:
    """Say why a module with a weight cannot be preconditioned; None where it can."""
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return f"{type(module).__name__} is neither Linear nor Conv2d"
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        return f"Conv2d with groups={module.groups} > 1"
    return None


class _Pending:
    """One layer's statistic while the micro-batches of a step come in."""

    def __init__(self) -> None:
        self.total: Sums | None = None
        self.moments: Sums | None = None  # this micro-batch's unnormalised moments and its number of rows
        self.rows: list[Rows] = []

    def fold(self) -> None:
        """Close a micro-batch: its moments, normalised by its rows, become one summand, whatever its size."""
        if self.moments is not None:
            x, g, rows = self.moments
            self.total = _plus(self.total, Sums(x / rows, g / rows, torch.ones_like(rows)))
            self.moments = None


def _plus(total: Sums | None, term: Sums) -> Sums:
    return term if total is None else Sums(*(a + b for a, b in zip(total, term, strict=True)))


class Capture:
    """Forward and gradient hooks on layers; `take` hands over what a step's micro-batches left.

    A micro-batch is over once a backward comes whose forward followed an earlier backward. When one more than
    ``micro_batches`` begins, the step that those before it belonged to was never taken (a gradient scaler skips steps
    with infinite gradients), so what they left is dropped.

    shares: the number of equal parts the global mean loss is split in over ranks, by which gradient rows are divided.
    shard: (this rank, number of ranks), which says what examples of the global batch come by.
    grad_scale: returns the loss scale that gradient rows must be divided by, or None.
    phases: makes the context in which the hooks' own work runs, named "capture": a clock's, say.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        statistic: Statistic,
        *,
        micro_batches: int = 1,
        shares: int = 1,
        shard: tuple[int, int] = (0, 1),
        grad_scale: Callable[[], Tensor | float | None] = lambda: None,
        phases: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.enabled = True
        self._statistic = statistic
        self._micro_batches = micro_batches
        self._shares = shares
        self._rank, self._world = shard
        self._grad_scale = grad_scale
        self._phases = phases
        self._pending: dict[str, _Pending] = {}
        self._micro_batch = 0
        self._forward_ran = self._backward_ran = False
        self._handles: list[RemovableHandle] = [
            layer.module.register_forward_hook(_ForwardHook(self, layer), with_kwargs=True) for layer in layers.values()
        ]

    def take(self) -> dict[str, Captured]:
        """Return what every layer that took part left since the last call, by name, and forget it."""
        taken: dict[str, Captured] = {}
        for name, pending in self._pending.items():
            pending.fold()
            taken[name] = pending.rows if pending.total is None else pending.total
        self.drop()
        return taken

    def drop(self) -> None:
        """Forget what came since the last `take`."""
        self._pending = {}
        self._micro_batch = 0
        self._forward_ran = self._backward_ran = False

    def remove(self) -> None:
        """Take the hooks off the model and forget everything."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.drop()

    def on_forward(self, layer: Layer, inputs: Tensor, output: Tensor) -> None:
        """Note a layer's forward, and hook its output for the gradient."""
        if not (self.enabled and layer.module.training and layer.module.weight.requires_grad):
            return
        if not _in_backward():
            self._forward_ran = True
        if not (torch.is_grad_enabled() and output.requires_grad):
            return  # a checkpointed layer runs forward again, inside the backward pass
        with self._phases("capture"):
            inputs = _as_used(_batched(layer, inputs.detach()))
            kept = inputs if (keep := self._examples_kept(inputs.shape[0])) is None else inputs[:keep]
            # Means are taken now and not at the gradient's turn, so that nothing but the sum outlives the forward.
            reduced = self._input_mean(layer, kept, output) if self._statistic.kind == "mean" else kept
        # Hook the output tensor, not the module: a following ReLU(inplace=True) would change what a module sees. A
        # Linear's output on [batch, tokens, d] is a view, whose hooks an inplace ReLU drops; those of its base stay.
        shape = output.shape
        whole = output._base if output._base is not None and output._base.numel() == output.numel() else output
        whole.register_hook(lambda grad: self._on_gradient(layer, reduced, keep, grad.reshape(shape)))

    def _enter_micro_batch(self) -> None:
        if self._backward_ran and self._forward_ran:
            self._micro_batch += 1
            for pending in self._pending.values():
                pending.fold()
            if self._micro_batch == self._micro_batches:
                self.drop()
        self._backward_ran, self._forward_ran = True, False

    def _examples_kept(self, batch: int) -> int | None:
        """Return how many of this micro-batch's examples lie among the first ones of the global batch; None: all."""
        if self._statistic.examples is None:
            return None
        is_next = self._backward_ran and (self._forward_ran or not _in_backward())
        micro_batch = (self._micro_batch + is_next) % self._micro_batches
        first = (self._rank * self._micro_batches + micro_batch) * batch
        return min(max(self._statistic.examples - first, 0), batch)

    @torch.no_grad()
    def _input_mean(self, layer: Layer, inputs: Tensor, output: Tensor) -> Tensor:
        inputs = inputs.to(wide_dtype(inputs.dtype))
        if self._statistic.clamp is None:
            return layer.input_sum(inputs) / layer.locations(output)
        rows = Rows(layer.input_rows(inputs), inputs, layer.locations(output))
        return rows._replace(g=rows.x).per_example().x.clamp(-self._statistic.clamp, self._statistic.clamp).sum(0)

    def _on_gradient(self, layer: Layer, reduced: Tensor, keep: int | None, grad: Tensor) -> None:
        with torch.no_grad(), self._phases("capture"):
            self._add(layer, reduced, keep, grad)

    def _add(self, layer: Layer, reduced: Tensor, keep: int | None, grad: Tensor) -> None:
        self._enter_micro_batch()
        locations = layer.locations(grad)
        grad = _batched(layer, grad)
        grad = grad if keep is None else grad[:keep]
        if grad.numel() == 0:  # no example came by, or none that is kept
            return
        grad = grad.to(wide_dtype(grad.dtype))
        divisor = self._shares if (scale := self._grad_scale()) is None else self._shares * scale
        if not isinstance(divisor, int) or divisor != 1:
            grad = grad / divisor
        pending = self._pending.setdefault(layer.name, _Pending())
        if self._statistic.kind == "mean":
            pending.total = _plus(pending.total, self._mean(layer, reduced, grad, locations))
            return
        rows = Rows(layer.input_rows(reduced.to(grad.dtype)), layer.gradient_rows(grad), locations)
        if self._statistic.kind == "rows":
            pending.rows.append(rows)
            return
        number = torch.full((), rows.x.shape[0], dtype=grad.dtype, device=grad.device)
        x, g = rows.x / locations, rows.g / locations
        pending.moments = _plus(pending.moments, Sums(x.T @ x, g.T @ g, number))

    def _mean(self, layer: Layer, input_sum: Tensor, grad: Tensor, locations: int) -> Sums:
        is_conv = isinstance(layer.module, nn.Conv2d)
        multiplicity = grad.shape[0] if is_conv else grad.numel() // grad.shape[-1]
        if self._statistic.clamp is None:
            total = grad.sum((0, 2, 3)) / locations if is_conv else grad.sum(tuple(range(grad.dim() - 1)))
        else:
            # Rows are scaled to their number before they are clamped, and back after, so that sums still add up.
            number = multiplicity * self._micro_batches * self._world
            rows = layer.gradient_rows(grad)
            rows = Rows(rows, rows, locations).per_example().g * number
            total = rows.clamp(-self._statistic.clamp, self._statistic.clamp).sum(0) / number
        return Sums(input_sum, total, torch.full((), multiplicity, dtype=grad.dtype, device=grad.device))


class _ForwardHook:
    """A layer's forward hook. A deep copy of the model carries a copy of this, which captures nothing."""

    def __init__(self, capture: Capture | None, layer: Layer | None) -> None:
        self._capture = capture
        self._layer = layer

    # A compiled model runs its hooks as they are, between the parts that it compiles.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if self._capture is not None and self._layer is not None:
            self._capture.on_forward(self._layer, args[0] if args else kwargs["input"], output)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ForwardHook:
        message = "A copy of a model under a Preconditioner is not preconditioned: make a new Preconditioner for it."
        warnings.warn(message, stacklevel=2)
        return _ForwardHook(None, None)

    def __reduce__(self) -> tuple[type[_ForwardHook], tuple[None, None]]:
        return _ForwardHook, (None, None)  # a model that is pickled whole leaves its preconditioner behind too
