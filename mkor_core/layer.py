"""Linear and Conv2d layers as matrices: input rows X, output-gradient rows G, and one gradient matrix D.

A Linear on ``[..., d_in]`` has one row per leading index (so tokens are rows). A Conv2d has one row per output
location, the unfolded patch, with ``d_in = C kh kw``. With a trainable bias every input row gets a trailing 1, so that
``D = G^T X = [dL/dW, dL/db]`` for gradient rows G of the loss L.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Supported = nn.Linear | nn.Conv2d


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to accumulate in: float64 for float64, float32 for everything narrower."""
    return torch.promote_types(dtype, torch.float32)


def unsupported_reason(module: nn.Module) -> str | None:
    """Return why a module with a weight cannot be preconditioned; None if it can."""
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return f"{type(module).__name__} is neither Linear nor Conv2d"
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        return f"Conv2d with groups={module.groups} > 1"
    if not _computes_like_torch(module):
        return f"{type(module).__name__} computes its output in a forward of its own"
    return None


def _computes_like_torch(module: Supported) -> bool:
    """Return whether a module's forward is that of nn.Linear or nn.Conv2d: not a subclass's, nor set on the module."""
    # A method's __func__ is the function of its class; a function that was set on the module has none.
    if isinstance(module, nn.Conv2d):
        own = (nn.Conv2d.forward, nn.Conv2d._conv_forward)
        return tuple(getattr(f, "__func__", None) for f in (module.forward, module._conv_forward)) == own
    return getattr(module.forward, "__func__", None) is nn.Linear.forward


class Layer:
    """A Linear or Conv2d with its rows and its gradient matrix ``D = [dL/dW, dL/db]``, ``[d_out, d_in (+1)]``.

    A bias that is frozen at construction is left out of D. One that is frozen later keeps its column, which is zero.
    """

    def __init__(self, name: str, module: Supported) -> None:
        self.name = name
        self.module = module
        self.has_bias = module.bias is not None and module.bias.requires_grad
        self.d_out = module.weight.shape[0]
        self.d_in = module.weight[0].numel() + self.has_bias
        """Columns of D, the bias included."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that D covers: the weight, then the bias."""
        parameters = [self.module.weight, self.module.bias] if self.has_bias else [self.module.weight]
        return cast("list[nn.Parameter]", parameters)

    @property
    def weight(self) -> nn.Parameter | None:
        """The weight; None if it or the bias has become complex or, by prune for instance, a function of others."""
        own = [self.module._parameters.get(key) for key in (("weight", "bias") if self.has_bias else ("weight",))]
        return own[0] if all(p is not None and p.is_floating_point() for p in own) else None

    def has_gradient(self) -> bool:
        """Return whether the weight has a gradient that is not sparse."""
        weight = self.weight
        return weight is not None and weight.grad is not None and not self.has_sparse_gradient()

    def has_sparse_gradient(self) -> bool:
        """Return whether a sparse gradient was set; autograd's are dense."""
        if self.weight is None:
            return False
        return any(p.grad is not None and p.grad.layout != torch.strided for p in self.parameters)

    def gradient(self) -> Tensor:
        """Return D ``[d_out, d_in (+1)]`` in float32, or in float64 if the parameters are."""
        grads = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in self.parameters]
        columns = [grad.flatten(1) if grad.dim() > 1 else grad[:, None] for grad in grads]
        matrix = torch.cat(columns, 1) if self.has_bias else columns[0]
        return matrix.to(wide_dtype(matrix.dtype))

    def write_gradient(self, matrix: Tensor) -> None:
        """Copy a matrix ``[d_out, d_in (+1)]`` into the parameters' gradients, in place."""
        start = 0
        for parameter in self.parameters:
            width = parameter[0].numel()
            if parameter.grad is not None:
                parameter.grad.copy_(matrix[:, start : start + width].reshape(parameter.shape))
            start += width

    def locations(self, output: Tensor) -> int:
        """Return the number of output locations of one example: height x width for a Conv2d, 1 for a Linear."""
        return output.shape[-1] * output.shape[-2] if isinstance(self.module, nn.Conv2d) else 1

    def input_rows(self, inputs: Tensor) -> Tensor:
        """Return X ``[n, d_in (+1)]`` of inputs ``[..., d_in]`` or ``[batch, channels, height, width]``."""
        if isinstance(self.module, nn.Conv2d):
            # [batch, C kh kw, locations] -> [batch * locations, C kh kw]
            rows = _patches(self.module, inputs).transpose(1, 2).flatten(0, 1)
        else:
            rows = inputs.reshape(-1, inputs.shape[-1])
        return torch.cat([rows, rows.new_ones(rows.shape[0], 1)], 1) if self.has_bias else rows

    def gradient_rows(self, grad: Tensor) -> Tensor:
        """Return G ``[n, d_out]`` of the gradient with respect to the layer's output."""
        if isinstance(self.module, nn.Conv2d):
            # [batch, d_out, height, width] -> [batch * locations, d_out]
            return grad.flatten(2).transpose(1, 2).flatten(0, 1)
        return grad.reshape(-1, grad.shape[-1])

    def input_sum(self, inputs: Tensor) -> Tensor:
        """Return the sum of the rows of X ``[d_in (+1)]`` without forming X."""
        if isinstance(self.module, nn.Conv2d):
            # Unfolding is linear in the images, so the images can be summed first: one unfolded image, not a batch.
            patches = _patches(self.module, inputs.sum(0, keepdim=True))
            total, number = patches.sum((0, 2)), inputs.shape[0] * patches.shape[-1]
        else:
            total, number = inputs.sum(tuple(range(inputs.dim() - 1))), inputs.shape[:-1].numel()
        return torch.cat([total, total.new_full((1,), number)]) if self.has_bias else total

    def with_batch_dimension(self, tensor: Tensor) -> Tensor:
        """Return an input or output of the layer with a leading batch dimension, added if it has none."""
        dimensions = 4 if isinstance(self.module, nn.Conv2d) else 2
        return tensor if tensor.dim() >= dimensions else tensor[None]


def _patches(module: nn.Conv2d, images: Tensor) -> Tensor:
    """Unfold ``[batch, channels, height, width]`` into ``[batch, C kh kw, locations]``."""
    margins = []  # left, right, top, bottom: F.pad takes the last dimension first
    for axis in (1, 0):
        if isinstance(module.padding, str):  # "same" or "valid"
            total = module.dilation[axis] * (module.kernel_size[axis] - 1) if module.padding == "same" else 0
            margins += [total // 2, total - total // 2]
        else:
            margins += [module.padding[axis]] * 2
    # F.unfold supports neither unequal margins ("same" with an even kernel) nor padding other than zeros.
    if any(margins):
        images = F.pad(images, margins, "constant" if module.padding_mode == "zeros" else module.padding_mode)
    return F.unfold(images, module.kernel_size, module.dilation, 0, module.stride)
