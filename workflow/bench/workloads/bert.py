"""BERT's encoder, which the workloads on text share: its size, and weights to start from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from baselines import _torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from workflow.bench.data.batches import seeded
from workflow.bench.data.corpus import PAD
from workflow.bench.data.folder import DataNotFound, data_folder
from workflow.bench.workloads.base import Workload

POSITIONS: Final = 512
"""Position embeddings of the published sizes, whatever the length of a sequence."""

_LEAST_SAMPLE: Final = 64
_SAMPLED: Final = 8  # validation examples for each training example that is evaluated on

_ENCODER: Final = "bert."
_WEIGHTS: Final = "model.safetensors"


def configuration(parameters: Mapping[str, Any], *, positions: int | None = None, **head: Any) -> BertConfig:
    """Return the encoder that a workload's parameters stand for, its feed-forward layers four times as wide.

    positions: position embeddings, as many as a sequence has tokens by default.  head: what the head needs.

    Raises `ValueError` where ``heads`` does not divide ``hidden_size``, or a sequence has more than ``positions``.
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


def size(parameters: Mapping[str, Any]) -> str:
    """Return what tables call an encoder."""
    return f"BERT, {parameters['layers']} layers x {parameters['hidden_size']}, {parameters['heads']} heads"


def start_encoder(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the encoder's part of another BERT's ``weights``; the head of ``model`` stays as it is.

    Raises `ValueError` where weights of the encoder are missing or have another shape.
    """
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(_ENCODER)}
    for name, tensor in wanted.items():
        if name not in weights:
            raise ValueError(f"the weights to start from lack {name}")
        if weights[name].shape != tensor.shape:
            shapes = f"{tuple(weights[name].shape)}, the model {tuple(tensor.shape)}"
            raise ValueError(f"the weights to start from have {name} in the shape {shapes}")
    model.load_state_dict({name: weights[name] for name in wanted}, strict=False)


def published(name: str) -> dict[str, Tensor]:
    """Return the weights of a published BERT: ``<data folder>/<name>`` holds the model ``google-bert/<name>``.

    Names are those of a model with a head: ``bert.`` stands before the encoder's.  Raises `DataNotFound` where the
    folder has no such weights.
    """
    folder = data_folder() / name
    remedy = f"put config.json and {_WEIGHTS} of google-bert/{name} there"
    if not (folder / _WEIGHTS).is_file() or not (folder / "config.json").is_file():
        raise DataNotFound(f"the weights of {name}", folder, remedy)
    try:
        model = BertModel.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, json.JSONDecodeError) as problem:
        why = str(problem).strip().partition("\n")[0]
        raise DataNotFound(f"the weights of {name}", f"{folder} ({why})", remedy) from problem
    return {f"{_ENCODER}{key}": tensor.to(torch.float32) for key, tensor in model.state_dict().items()}


def training_sample(training: int, validation: int) -> NDArray[np.int64]:
    """Return which training examples training accuracy is measured on, rising: the same in every run.

    An eighth as many as there are validation examples, at least 64, so that it costs little beside the validation.
    Drawn at random, since files hold one class after the other, by a generator of its own.
    """
    number = min(training, max(_LEAST_SAMPLE, validation // _SAMPLED))
    return np.sort(np.random.default_rng(0).choice(training, number, replace=False))


class FineTuning(Workload):
    """A task on top of BERT's encoder, which starts new, published, or pre-trained here; the last layer is new."""

    _parameters: Mapping[str, Any]
    """What `architecture` takes."""
    _published: Mapping[str, Tensor] | None
    """The encoder's published weights to start from."""

    def model(self, seed: int) -> nn.Module:
        """Return a new model, as `architecture` makes it, with the published encoder where one is asked for."""
        with seeded(seed):
            model = self.architecture(**self._parameters)
        if self._published is not None:
            start_encoder(model, self._published)
        return model

    def start(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load the encoder of a pre-trained model; the last layer stays new."""
        start_encoder(model, weights)
