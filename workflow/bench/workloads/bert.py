"""BERT for the workloads on text: transformers' models, and the configuration of the encoder.

The workloads and probes import transformers' classes from here. transformers imports torchvision, so the operators
that torchvision's wheel may lack must be declared first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mkor_core import torchvision_operators  # noqa: F401  (must run before transformers is imported)

# isort: split
from torch import nn
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
)
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

from workflow.bench.data.batches import Batch
from workflow.bench.data.corpus import PAD
from workflow.bench.workloads.base import to_device_of

__all__ = [
    "BertConfig",
    "BertForPreTraining",
    "BertForPreTrainingOutput",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertModel",
]

POSITIONS: Final = 512
"""Position embeddings of the published sizes, for sequences of any length."""


def inputs_of(model: nn.Module, batch: Batch) -> Batch:
    """Return a batch on the model's device, with the attention mask in a form that transformers does not read.

    transformers looks at a mask ``[n, length]`` for padding, for which the host waits for a GPU in every forward pass.
    The same is done here while the batch lies on the CPU: without padding there is no mask, otherwise it has the shape
    ``[n, 1, length, length]`` that `torch.nn.functional.scaled_dot_product_attention` takes.
    """
    inputs = dict(batch)
    mask = inputs.pop("attention_mask").bool()
    if mask.all():
        return to_device_of(model, inputs)
    inputs = to_device_of(model, {**inputs, "attention_mask": mask})
    # Expanded on the device, so that [n, length] is copied.
    inputs["attention_mask"] = inputs["attention_mask"][:, None, None, :].expand(-1, 1, mask.shape[1], -1)
    return inputs


def encoder_config(parameters: Mapping[str, Any], *, positions: int | None = None, **head: Any) -> BertConfig:
    """Return the configuration of a workload's encoder, whose feed-forward layers are four times as wide.

    Args:
        parameters: the workload's.
        positions: the number of position embeddings; by default, the number of tokens in a sequence.
        head: further arguments of `BertConfig` that the model's head needs.

    Raises:
        ValueError: ``heads`` does not divide ``hidden_size``, or a sequence has more than ``positions`` tokens.
    """
    hidden_size, heads, length = (parameters[name] for name in ("hidden_size", "heads", "sequence_length"))
    if hidden_size % heads:
        raise ValueError(f"{hidden_size=} must be a multiple of {heads=}.")
    if positions is not None and length > positions:
        raise ValueError(f"sequence_length={length} must be at most {positions}, BERT's positions.")
    return BertConfig(
        vocab_size=parameters["vocabulary_size"],
        hidden_size=hidden_size,
        num_hidden_layers=parameters["layers"],
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=positions or length,
        initializer_range=parameters["initializer_range"],
        hidden_dropout_prob=parameters["dropout"],
        attention_probs_dropout_prob=parameters["dropout"],
        pad_token_id=PAD,
        **head,
    )


def encoder_title(parameters: Mapping[str, Any]) -> str:
    """Return the encoder's name in tables."""
    return f"BERT, {parameters['layers']} layers x {parameters['hidden_size']}, {parameters['heads']} heads"
