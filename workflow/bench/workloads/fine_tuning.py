"""The base of the fine-tuning workloads: a task on top of BERT's encoder, its first weights, and the tasks' metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from workflow.bench.data.batches import Batch, shuffled_indices
from workflow.bench.data.features import Features
from workflow.bench.data.folder import DataNotFound, data_folder
from workflow.bench.workloads.base import Workload, in_slices
from workflow.bench.workloads.bert import BertModel, encoder_title, inputs_of

# isort: split
# torchmetrics imports torchvision, before which `bert` declares the operators that torchvision's wheel may lack.
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.functional.classification import accuracy, binary_f1_score, binary_matthews_corrcoef
from torchmetrics.functional.text import squad

_EVALUATION_BATCH: Final = 128
_SMALLEST_SAMPLE: Final = 64
_VALIDATION_PER_SAMPLED: Final = 8  # validation examples for each training example that is evaluated on

_ENCODER: Final = "bert."  # starts the names of the encoder's weights in a model with a head
_WEIGHTS: Final = "model.safetensors"


class FineTuning(Workload):
    """A task on top of BERT's encoder, which starts untrained, published, or pre-trained by another run.

    The last layer is always new. A subclass calls `_set_data` when it has read its examples.
    """

    labels_name: ClassVar[str]
    """The name of the labels in a batch, next to BERT's inputs."""
    titles: ClassVar[Mapping[str, str]]
    """The name of each data set in tables."""

    @override
    @classmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        return encoder_title(parameters), cls.titles[parameters["dataset"]]

    def _set_data(self, train: Features, validation: Features) -> None:
        """Keep the examples, draw the training sample, and read the published encoder if one is asked for."""
        pretrained = self.parameters["pretrained"]
        self._published = published_weights(pretrained) if pretrained else None
        self._train, self._validation = train, validation
        self._sample = train[training_sample(len(train), len(validation))]
        self.train_examples = len(train)

    @override
    def model(self, seed: int) -> nn.Module:
        """Return a new model, with the published encoder if one is asked for."""
        model = super().model(seed)
        if self._published is not None:
            self.load_initial_weights(model, self._published)
        return model

    @override
    def load_initial_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load the encoder's part of another BERT's ``weights``; the last layer stays new.

        Raises:
            ValueError: a weight of the encoder is missing or has another shape.
        """
        encoder = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(_ENCODER)}
        for name, tensor in encoder.items():
            if name not in weights:
                raise ValueError(f"the weights to start from lack {name}")
            if weights[name].shape != tensor.shape:
                shapes = f"{tuple(weights[name].shape)}, the model {tuple(tensor.shape)}"
                raise ValueError(f"the weights to start from have {name} in the shape {shapes}")
        model.load_state_dict({name: weights[name] for name in encoder}, strict=False)

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield BERT's inputs, each ``[batch_size, longest]``, and the labels, ``[batch_size]`` or more."""
        for _, indices in shuffled_indices(seed, start, self.train_examples, self.batch_size):
            yield self._batch(self._train[indices])

    def _batch(self, features: Features) -> Batch:
        arrays = {**features.inputs(), self.labels_name: features.labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _outputs(self, model: nn.Module, batch: Batch) -> tuple[Any, Tensor]:
        """Return the model's output for a batch, and its labels on the model's device."""
        inputs = inputs_of(model, batch)
        labels = inputs.pop(self.labels_name)
        return model(**inputs), labels

    def _evaluation_outputs(
        self, model: nn.Module, features: Features, part: slice
    ) -> Iterator[tuple[slice, Any, Tensor]]:
        """Yield rows, and the model's output and labels for them, for ``part`` of the ``features`` in order."""
        for rows in in_slices(part, _EVALUATION_BATCH):
            yield rows, *self._outputs(model, self._batch(features[rows]))


def published_weights(name: str) -> dict[str, Tensor]:
    """Return the weights of the published model ``google-bert/<name>``, read from ``<data folder>/<name>``.

    They have the names that a model with a head gives them: ``bert.`` precedes those of the encoder.

    Raises:
        DataNotFound: the folder does not hold these weights.
    """
    folder = data_folder() / name
    remedy = f"put config.json and {_WEIGHTS} of google-bert/{name} there"
    if not (folder / _WEIGHTS).is_file() or not (folder / "config.json").is_file():
        raise DataNotFound(f"the weights of {name}", folder, remedy)
    try:
        model = BertModel.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError, json.JSONDecodeError) as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise DataNotFound(f"the weights of {name}", f"{folder} ({reason})", remedy) from problem
    return {f"{_ENCODER}{key}": tensor.to(torch.float32) for key, tensor in model.state_dict().items()}


def training_sample(training: int, validation: int) -> NDArray[np.int64]:
    """Return the indices of the training examples on which training accuracy is measured, the same in every run.

    They are one eighth as many as the validation examples, but at least 64, so that they cost little next to the
    validation. They are drawn at random, because files hold one class after the other, by a separate generator.
    """
    size = min(training, max(_SMALLEST_SAMPLE, validation // _VALIDATION_PER_SAMPLED))
    return np.sort(np.random.default_rng(0).choice(training, size, replace=False))


def score_metrics(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the correlations ``pearson`` and ``spearman``, NaN if all predictions are equal.

    Args:
        logits: ``[n, 1]``, the predicted scores.
        labels: ``[n]``, the true scores.
    """
    predicted = logits.squeeze(1)
    return {"pearson": pearson_corrcoef(predicted, labels), "spearman": spearman_corrcoef(predicted, labels)}


def class_metrics(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return ``accuracy``, and for two classes ``f1`` (of class 1) and the correlation ``matthews``.

    Args:
        logits: ``[n, classes]``.
        labels: ``[n]``, the true classes.
    """
    classes, predicted = logits.shape[1], logits.argmax(1)
    metrics = {"accuracy": accuracy(predicted, labels, task="multiclass", num_classes=classes, average="micro")}
    if classes == 2:
        metrics["f1"] = binary_f1_score(predicted, labels)
        metrics["matthews"] = binary_matthews_corrcoef(predicted, labels)
    return metrics


def answer_metrics(predicted: Sequence[str], correct: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return SQuAD's ``exact_match`` and ``f1``, from 0 to 1.

    Args:
        predicted: an answer for each question.
        correct: the correct answers to each question; the best match counts.
    """
    predictions = [{"prediction_text": text, "id": str(number)} for number, text in enumerate(predicted)]
    targets: list[dict[str, Any]] = [
        {"answers": {"text": list(texts), "answer_start": [0] * len(texts)}, "id": str(number)}
        for number, texts in enumerate(correct)
    ]
    percent = squad(predictions, targets)
    return {name: percent[name].item() / 100 for name in ("exact_match", "f1")}
