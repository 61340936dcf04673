"""A small GPT: a decoder that predicts the next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.workloads.next_token import TITLE, NextToken


class LanguageModel(NextToken):
    """A pre-norm transformer decoder with the layout of GPT-2 (Radford et al., 2019), without dropout.

    A block has the linear layers ``query``, ``key``, ``value``, ``out``, ``widen`` and ``narrow``, which are those that
    get preconditioned. The scores of tokens are products with the embeddings, whose weight is therefore shared.

    Raises:
        ValueError: ``heads`` does not divide ``hidden_size``; see also `NextToken`.
    """

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        _refuse_sizes(parameters)  # before any data is read
        super().__init__(parameters, for_tuning=for_tuning)

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        _refuse_sizes(parameters)
        return _Decoder(parameters)

    @override
    @classmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        return f"GPT, {parameters['layers']} layers x {parameters['hidden_size']}, {parameters['heads']} heads", TITLE


def _refuse_sizes(parameters: Mapping[str, Any]) -> None:
    hidden_size, heads = parameters["hidden_size"], parameters["heads"]
    if hidden_size % heads:
        raise ValueError(f"{hidden_size=} must be a multiple of {heads=}.")


class _DecoderBlock(nn.Module):
    """Causal self-attention and a feed-forward layer four times as wide, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.forward_norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the block's output for ``hidden``, both ``[n, length, width]``."""
        normed = self.attention_norm(hidden)
        query, key, value = (
            layer(normed).unflatten(-1, (self._heads, -1)).transpose(1, 2)  # [n, heads, length, width / heads]
            for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.narrow(functional.gelu(self.widen(self.forward_norm(hidden))))


class _Decoder(nn.Module):
    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        width, layers, deviation = (parameters[name] for name in ("hidden_size", "layers", "initializer_range"))
        self.tokens = nn.Embedding(parameters["vocabulary_size"], width)
        self.positions = nn.Embedding(parameters["sequence_length"], width)
        blocks = [_DecoderBlock(width, parameters["heads"]) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=deviation)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for block in blocks:
            # As in GPT-2: 2 * layers outputs are added up, whose sum keeps its scale.
            for layer in (block.out, block.narrow):
                nn.init.normal_(layer.weight, std=deviation / (2 * layers) ** 0.5)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits ``[n, length, vocabulary]`` for tokens ``[n, length]``."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.norm(self.blocks(self.tokens(input_ids) + self.positions(places)))
        return functional.linear(hidden, self.tokens.weight)
