"""A recurrent network with Kronecker-product weights that predicts the next token.

Such a weight is computed by two linear layers, which optimizers treat as any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from workflow.bench.workloads.next_token import TITLE, NextToken


class KroneckerLinear(nn.Module):
    """The map ``x -> (P kron B) x`` without bias, for P ``[a1, a2]`` and B ``[b1, b2]``.

    With x as a matrix ``[a2, b2]`` in row-major order it is ``P x B^T``: ``inner`` applies B to each of the a2 rows of
    an example, ``outer`` applies P to each of the b1 columns of what comes out. So they have a2 and b1 times as many
    rows as there are examples.

    Args:
        outer: ``(a1, a2)``.
        inner: ``(b1, b2)``.
    """

    def __init__(self, outer: tuple[int, int], inner: tuple[int, int]) -> None:
        super().__init__()
        self.outer = nn.Linear(outer[1], outer[0], bias=False)
        self.inner = nn.Linear(inner[1], inner[0], bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[..., a1 b1]`` for ``[..., a2 b2]``."""
        matrices = inputs.unflatten(-1, (self.outer.in_features, self.inner.in_features))
        return self.outer(self.inner(matrices).mT).mT.flatten(-2)


def factor_sizes(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Return the sizes of the factors of a square map of ``hidden_size``: ``outer_size``, and what remains.

    Raises:
        ValueError: ``outer_size`` does not divide ``hidden_size``.
    """
    width, outer = parameters["hidden_size"], parameters["outer_size"]
    if width % outer:
        raise ValueError(f"outer_size={outer} must divide hidden_size={width}.")
    return outer, width // outer


class KroneckerRnn(NextToken):
    """The recurrence ``h_t = tanh((P_x kron B_x) x_t + (P_h kron B_h) h_{t-1} + b)`` (Jose et al., ICML 2018).

    The factors are linear layers. Those of the recurrent weight are called once for each token of a window, and their
    statistics are those of all calls. The layer that scores the tokens is excluded from preconditioning.

    Raises:
        ValueError: ``outer_size`` does not divide ``hidden_size``; see also `NextToken`.
    """

    exclude = (r"^scores$",)

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        return _Network(parameters)

    @override
    @classmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        # The names are asked for before any data is read, so that impossible sizes are refused first.
        outer, inner = factor_sizes(parameters)
        return f"RNN {outer * inner}, factors {outer} and {inner}", TITLE


class _Network(nn.Module):
    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        width = parameters["hidden_size"]
        outer, inner = factor_sizes(parameters)
        self.tokens = nn.Embedding(parameters["vocabulary_size"], width)
        self.inputs = KroneckerLinear((outer, outer), (inner, inner))
        self.recurrent = KroneckerLinear((outer, outer), (inner, inner))
        self.bias = nn.Parameter(torch.zeros(width))
        self.scores = nn.Linear(width, parameters["vocabulary_size"])
        for factor in (self.recurrent.outer, self.recurrent.inner):
            nn.init.orthogonal_(factor.weight)  # so their Kronecker product is orthogonal, too

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits ``[n, length, vocabulary]`` for tokens ``[n, length]``."""
        inputs = self.inputs(self.tokens(input_ids)) + self.bias
        hidden = torch.zeros_like(inputs[:, 0])
        states = []
        for column in inputs.unbind(1):
            hidden = torch.tanh(column + self.recurrent(hidden))
            states.append(hidden)
        logits: Tensor = self.scores(torch.stack(states, 1))
        return logits
