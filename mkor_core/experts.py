"""The linear layers of a mixture's experts in one tensor, which one batched product computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override


class ExpertLinear(nn.Module):
    """A linear layer for each expert: ``y[e] = x[e] W[e]^T + b[e]``. A `Preconditioner` treats each as a layer.

    A forward of your own that multiplies by a parameter ``[experts, out, in]`` shows nobody which rows belong to which
    expert; this module's input does. All experts get the same number of rows. Where an expert has fewer tokens, fill
    its rows up with zeros and drop their outputs. Such rows count: they shrink the expert's mean input.

    Args:
        experts: their number.
        in_features: the columns of an input row.
        out_features: the columns of an output row.
        bias: whether each expert has a bias.
        device: of the parameters.
        dtype: of the parameters.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        experts: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        # The experts come first: they are the batch of torch.bmm.
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features, device=device, dtype=dtype))
        """``[experts, out_features, in_features]``."""
        # Registered as None without one, as in torch.nn.Linear, so that state dicts leave it out.
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(experts, out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases as `torch.nn.Linear` does, uniformly within ``in_features^-1/2``."""
        bound = self.weight.shape[-1] ** -0.5 if self.weight.shape[-1] else 0.0  # 0 ** -0.5 raises
        for parameter in self.parameters():
            # torch.nn.Linear calls kaiming_uniform_(a=5 ** 0.5), which has this very bound, also for its bias.
            nn.init.uniform_(parameter, -bound, bound)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[experts, rows, out_features]`` for inputs ``[experts, rows, in_features]``."""
        if self.bias is None:
            # [e, n, d_in] by [e, d_in, d_out]. With 3, 5, 0 and 4 tokens for 4 experts, n is 5; 8 rows are zeros.
            return torch.bmm(inputs, self.weight.mT)
        return torch.baddbmm(self.bias[:, None], inputs, self.weight.mT)  # bias [e, 1, d_out]: one for all rows

    @override
    def extra_repr(self) -> str:
        experts, out_features, in_features = self.weight.shape
        return f"{experts}, {in_features}, {out_features}, bias={self.bias is not None}"
