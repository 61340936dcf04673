"""Parameter groups that several first-order optimizers use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def decay_matrices_only(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return a group of matrices with weight decay and one of vectors (biases, norms) without; none of them empty."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in parameters:
        (matrices if parameter.dim() > 1 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
