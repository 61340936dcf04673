"""Linear layers and convolutions as matrices: input rows X, output-gradient rows G, and one gradient matrix D.

A Linear on ``[..., d_in]`` has one row per leading index (so tokens are rows). A convolution has one row per output
location, the unfolded patch: ``d_in = C kh kw`` for a Conv2d. With a trainable bias every input row gets a trailing 1,
so that ``D = G^T X = [dL/dW, dL/db]`` for gradient rows G of the loss L.

D has this form also where a parameter has another: the Conv1D of Hugging Face's GPT-2 holds W transposed, and an
`mkor_core.experts.ExpertLinear` holds W for each of its experts, which are layers of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from mkor_core.capture.blocks import Block, block_of, is_dtensor, local, place_gradient
from mkor_core.devices import aligned
from mkor_core.experts import ExpertLinear

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Supported = nn.Linear | Convolution | ExpertLinear
"""The modules whose layers are preconditioned, and the Conv1D of transformers, which need not be installed."""

_KINDS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, ExpertLinear)
_TRANSPOSED = ("transformers.pytorch_utils", "transformers.modeling_utils")
"""Where the versions of transformers define Conv1D, a Linear whose weight is ``[d_in, d_out]``."""


def kind_of(module: nn.Module) -> type[nn.Module] | None:
    """Return the class of a module whose layers are preconditioned, which may be its base; None: it has no such."""
    return next((cls for cls in type(module).__mro__ if cls in _KINDS or is_transposed(cls)), None)


def is_transposed(kind: type[nn.Module]) -> bool:
    """Return whether a class is the Conv1D of transformers."""
    return kind.__name__ == "Conv1D" and kind.__module__ in _TRANSPOSED


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to accumulate in: float64 for float64, float32 for everything narrower."""
    return torch.promote_types(dtype, torch.float32)


class Layer:
    """A layer with its rows and its gradient matrix ``D = [dL/dW, dL/db]``, ``[d_out, d_in (+1)]``.

    A bias that is frozen at construction is left out of D. One that is frozen later keeps its column, which is zero.
    Parameters are whole on every rank, and D's rows are their first dimension; `layers_of` makes subclasses of others.
    """

    block: Block | None = None
    """The part of D that this rank holds; None: all of it."""
    was_replaced = False
    """Whether a parameter of the module has given its place to another since the layer was found."""

    def __init__(self, name: str, module: Supported) -> None:
        self.name = name
        self.module = module
        self.has_bias = module.bias is not None and module.bias.requires_grad
        self._axes = len(module.kernel_size) if isinstance(module, Convolution) else 0
        """Those along which a kernel moves: height and width for a Conv2d."""
        self.is_convolution = self._axes > 0
        self.sums_inputs = not self.is_convolution
        """Whether the sum of the input rows is that of all inputs, so that layers called with one tensor share it."""
        self.batched_dimensions = 2 + self._axes
        """The least number of dimensions of an input with a batch dimension."""
        self.d_out, *columns = self._part(module.weight).shape  # of a Conv2d [d_out, C, kh, kw]
        self.d_w = torch.Size(columns).numel()
        """Columns of the weight's part of D."""
        self.d_in = self.d_w + self.has_bias
        """Columns of D, the bias included."""
        self.known: list[Any] = self._read()
        """The parameters, as they were when `parameters` or `weight` was last asked for: once in a step is enough."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that D covers, as the optimizer has them: the weight, then the bias."""
        # Asked several times in every step, so the list is kept while the module has the same parameters.
        known, own = self.known, self.module._parameters
        if known[0] is not own.get("weight") or (self.has_bias and known[1] is not own.get("bias")):
            self.known = known = self._read()
            self.was_replaced = True
        return known

    @property
    def weight(self) -> nn.Parameter | None:
        """The weight, as the optimizer has it.

        None if it or the bias has become complex or, by prune for instance, a function of others.
        """
        parameters: list[Any] = self.parameters
        weight: nn.Parameter = parameters[0]
        for parameter in parameters:
            if parameter is None or not parameter.is_floating_point():
                return None
        return weight

    @property
    def was_sharded_later(self) -> bool:
        """Whether the weight has been sharded since the layer was found."""
        return self.block is None and is_dtensor(self.module._parameters.get("weight"))

    def _read(self) -> list[Any]:
        """Return the weight and, if D has a column for it, the bias, as the module has them now."""
        return [self._parameter(key) for key in (("weight", "bias") if self.has_bias else ("weight",))]

    def _parameter(self, key: str) -> Any:
        """Return a parameter of the module; None if it has become a function of others."""
        return self.module._parameters.get(key)

    @property
    def bias_is_trained(self) -> bool:
        """Whether backward passes add to the gradient of the bias, so that it is the sum of the gradient rows."""
        return self.has_bias and cast("nn.Parameter", self.module.bias).requires_grad

    def bias_gradient(self, scale: Tensor | None = None) -> Tensor:
        """Return the gradient of the bias, divided by ``scale``, ``[d_out]`` in `wide_dtype`; zeros without one.

        Of a sharded bias only this rank's rows.
        """
        parameters = self.parameters
        grad: Any = parameters[1].grad if self.has_bias else None
        if grad is None:
            weight = parameters[0]
            rows = self.d_out if self.block is None else self.block.rows[1] - self.block.rows[0]
            return torch.zeros(rows, dtype=wide_dtype(weight.dtype), device=weight.device)
        own: Tensor = grad if self.block is None else local(grad)
        gradient = self._part(own.to_dense()).to(wide_dtype(own.dtype))  # a dense one is not copied
        return gradient if scale is None else gradient / scale

    def has_gradient(self) -> bool:
        """Return whether the weight has a gradient, and neither it nor the bias's is sparse; see `known`."""
        grad = self.known[0].grad
        if grad is None or grad.layout != torch.strided:
            return False
        grad = self.known[-1].grad  # the bias's, or the weight's again if D has no column for a bias
        return grad is None or grad.layout == torch.strided

    def has_sparse_gradient(self) -> bool:
        """Return whether a sparse gradient was set; autograd's are dense."""
        if self.weight is None:
            return False
        return any(parameter.grad is not None and parameter.grad.layout != torch.strided for parameter in self.known)

    def gradient_parts(self) -> list[Tensor]:
        """Return the gradients of the weight and, if D has a column for it, of the bias, to be changed in place.

        The weight's has D's rows as its first dimension: it is a view, whose memory need not be contiguous, where the
        parameter has another form. Of sharded parameters this rank's parts; zeros for a gradient that is missing. See
        `known`.
        """
        parts = []
        for parameter in self.known:
            grad = parameter.grad
            parts.append(self._part(torch.zeros_like(parameter) if grad is None else grad))
        return parts

    def _part(self, tensor: Tensor) -> Tensor:
        """Return the layer's part of a parameter or its gradient, with D's rows as its first dimension; a view."""
        return tensor

    def gradient(self) -> Tensor:
        """Return D ``[d_out, d_in (+1)]`` in float32, or in float64 if the parameters are."""
        return self.join(self.gradient_parts())

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return D, given the gradients of the weight and, if it has a column, of the bias."""
        weight = parts[0].flatten(1)  # [d_out, d_w]
        dtype = wide_dtype(weight.dtype)
        if not self.has_bias:
            return weight.to(dtype)
        matrix = aligned((self.d_out, self.d_in), dtype, weight.device, torch.empty)
        return torch.cat([weight, parts[1][:, None]], 1, out=matrix)  # one kernel, into rows that are apart, too

    def split(self, matrix: Tensor) -> list[Tensor]:
        """Return the parts of a matrix like D for the weight and, if it has a column, for the bias.

        They have the shapes of `gradient_parts`.
        """
        shapes = [self._part(parameter).shape for parameter in self.parameters]
        parts = matrix.split([shape[1:].numel() for shape in shapes], 1)  # 1 column for a bias [d_out]
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def locations(self, output: Tensor) -> int:
        """Return the number of output locations of one example: height x width for a Conv2d, 1 for a Linear."""
        return output.shape[output.dim() - self._axes :].numel() if self.is_convolution else 1

    def batch_size(self, inputs: Tensor) -> int:
        """Return the number of examples of an input or output, 1 if it has no batch dimension."""
        return inputs.shape[0] if inputs.dim() >= self.batched_dimensions else 1

    def multiplicity(self, inputs: Tensor) -> int:
        """Return the number of examples of a convolution's input or output, or of rows of a Linear's."""
        return inputs.shape[0] if self.is_convolution else inputs.shape[:-1].numel()

    def input_rows(self, inputs: Tensor) -> Tensor:
        """Return X ``[n, d_w (+1)]`` of inputs ``[..., d_w]`` or ``[batch, channels, height, width]``."""
        rows = self.patches(inputs)
        return torch.cat([rows, rows.new_ones(rows.shape[0], 1)], 1) if self.has_bias else rows

    def patches(self, inputs: Tensor) -> Tensor:
        """Return the rows of X without the trailing 1 of a bias, ``[n, d_w]``."""
        if not isinstance(self.module, Convolution):
            # Not -1 rows: a tensor-parallel rank may have no columns.
            return inputs.reshape(self.multiplicity(inputs), inputs.shape[-1])
        # Of a Conv2d: [batch, C, out h, out w, kh, kw] -> [batch * locations, C kh kw], in one copy.
        n = self._axes
        return _patches(self.module, inputs).movedim(1, 1 + n).flatten(1 + n).flatten(0, n)

    def gradient_rows(self, grad: Tensor) -> Tensor:
        """Return G ``[n, d_out]`` of the gradient with respect to the layer's output."""
        if self.is_convolution:
            # Of a Conv2d: [batch, d_out, height, width] -> [batch * locations, d_out].
            return grad.flatten(2).transpose(1, 2).flatten(0, 1)
        return grad.reshape(self.multiplicity(grad), grad.shape[-1])

    def patch_sum(self, images: Tensor) -> Tensor:
        """Return the sum of a convolution's patches ``[d_w]`` in `wide_dtype`, without forming them."""
        assert isinstance(self.module, Convolution)
        # Taking patches is linear in the images, so the images can be summed first.
        image = images.sum(0, keepdim=True, dtype=wide_dtype(images.dtype))
        return _patches(self.module, image).sum((0, *range(2, 2 + self._axes))).flatten()  # [C, kh, kw] -> [d_w]

    def gradient_sum(self, grad: Tensor) -> Tensor:
        """Return the sum of the rows of G ``[d_out]`` in `wide_dtype`."""
        axes = (0, *range(2, grad.dim())) if self.is_convolution else tuple(range(grad.dim() - 1))
        return grad.sum(axes, dtype=wide_dtype(grad.dtype))

    def with_batch_dimension(self, tensor: Tensor) -> Tensor:
        """Return the layer's part of its module's input or output, with a batch dimension, added if it has none."""
        return tensor if tensor.dim() >= self.batched_dimensions else tensor[None]


class ShardedLayer(Layer):
    """A layer whose parameters are DTensors, of which this rank has a block.

    Raises:
        TypeError: they are cut in a way of which D has no blocks.
    """

    block: Block

    def __init__(self, name: str, module: Supported) -> None:
        self._shards: dict[str, Any] = {key: value for key, value in module._parameters.items() if is_dtensor(value)}
        super().__init__(name, module)  # reads the parameters, so the shards must be known
        block = block_of(name, module.weight, module.bias if self.has_bias else None)
        assert block is not None
        self.block = block

    @property
    @override
    def parameters(self) -> list[nn.Parameter]:
        self.known = self._read()  # the module holds shards or whole parameters, by turns
        return self.known

    @override
    def _parameter(self, key: str) -> Any:
        """Return a parameter; under FSDP its shard, also while the module holds it whole."""
        own: Any = self.module._parameters.get(key)
        shard = self._shards.get(key)
        if shard is None or own is None:
            return own
        if is_dtensor(own) and own.device_mesh == shard.device_mesh:  # not one of tensor parallelism under FSDP
            self._shards[key] = own
        return self._shards[key]

    @override
    def gradient_parts(self) -> list[Tensor]:
        return [local(grad) for grad in super().gradient_parts()]

    def bias_gradient_part(self, ranks: int, scale: Tensor | None = None) -> Tensor:
        """Return what this rank adds to a sum over ``ranks`` ranks that is the gradient of a sharded bias ``[d_out]``.

        scale: what gradients are divided by.
        """
        rows = self.bias_gradient(scale)
        part = rows.new_zeros(self.d_out)
        # Ranks that hold the same rows all add them.
        part[slice(*self.block.rows)] = rows * (self.block.row_shards / ranks)  # 2 blocks, 8 ranks: a quarter each
        return part

    def place_gradients(self) -> None:
        """Divide the gradients among ranks as the parameters are; see `mkor_core.capture.blocks.place_gradient`."""
        for parameter in self.parameters:
            place_gradient(parameter)


class TransposedLayer(Layer):
    """A layer whose weight is ``[d_in, d_out]``."""

    @override
    def _part(self, tensor: Tensor) -> Tensor:
        return tensor.mT if tensor.dim() == 2 else tensor  # the bias is a vector


class ExpertLayer(Layer):
    """One expert of an `ExpertLinear`.

    ``parameters`` are those of all experts, as the optimizer has them.
    """

    def __init__(self, name: str, module: ExpertLinear, expert: int) -> None:
        self._expert = expert
        super().__init__(name, module)
        self.sums_inputs = False
        self.batched_dimensions += 2  # more than any input has: `with_batch_dimension` takes the expert's part of all

    @override
    def _part(self, tensor: Tensor) -> Tensor:
        return tensor[self._expert]  # [experts, d_out, d_in] -> [d_out, d_in]; a bias: [d_out]

    @override
    def batch_size(self, inputs: Tensor) -> int:
        return inputs.shape[1]  # inputs: [experts, rows, d_in]

    @override
    def with_batch_dimension(self, tensor: Tensor) -> Tensor:
        return tensor[self._expert]


def layers_of(name: str, module: Supported) -> dict[str, Layer]:
    """Return the layers of a module by name: the module itself, or each expert of an `ExpertLinear`, ``name.0``.

    Raises:
        TypeError: its parameters are sharded in a way of which D has no blocks.
    """
    if isinstance(module, ExpertLinear):
        names = [f"{name}.{expert}" if name else str(expert) for expert in range(len(module.weight))]
        return {own: ExpertLayer(own, module, expert) for expert, own in enumerate(names)}
    if is_dtensor(module._parameters.get("weight")):
        return {name: ShardedLayer(name, module)}
    kind = kind_of(module)
    return {name: (TransposedLayer if kind is not None and is_transposed(kind) else Layer)(name, module)}


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return each module of a model once; faster than ``modules()``, which makes names of them, too."""
    found: dict[nn.Module, None] = {}  # a set that keeps the order, so that two results can be compared
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            waiting.extend(module._modules.values())
    return [*found]


def _patches(module: Convolution, images: Tensor) -> Tensor:
    """Return the patches of images ``[batch, C, *in]`` as ``[batch, C, *out, *kernel]``, a strided view.

    `torch.nn.functional.unfold` has two axes only, and would launch a kernel for every image on a GPU.
    """
    axes = range(len(module.kernel_size))
    margins = []  # left, right, top, bottom of a Conv2d: F.pad takes the last dimension first
    for axis in reversed(axes):
        if isinstance(module.padding, str):  # "same" or "valid"
            total = module.dilation[axis] * (module.kernel_size[axis] - 1) if module.padding == "same" else 0
            margins += [total // 2, total - total // 2]  # of an odd total, torch pads the end by one more
        else:
            margins += [module.padding[axis]] * 2
    if any(margins):
        images = F.pad(images, margins, "constant" if module.padding_mode == "zeros" else module.padding_mode)
    for axis in axes:  # [batch, C, h, w] -> [batch, C, out h, w, kh] -> [batch, C, out h, out w, kh, kw]
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1  # 5 for 3 entries that lie 2 apart
        images = images.unfold(2 + axis, reach, module.stride[axis])[..., :: module.dilation[axis]]
    return images
