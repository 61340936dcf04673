"""BERT fine-tuned to classify, or to score, texts and pairs of texts: GLUE, IMDB, and their stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.data import docstring_tasks, glue, imdb
from workflow.bench.data.batches import Batch, shuffled
from workflow.bench.data.docstring_tasks import HIGHEST_SCORE
from workflow.bench.data.features import Examples, Features, Vocabulary, fingerprint
from workflow.bench.workloads import bert
from workflow.bench.workloads.base import beside, evaluating

# isort: split
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.functional.classification import accuracy, binary_f1_score, binary_matthews_corrcoef
from transformers import BertForSequenceClassification

_VALIDATION_BATCH: Final = 128


class Task(NamedTuple):
    """What is asked of the texts."""

    title: str
    """What tables call it."""
    classes: int
    """0 for a score."""
    own_metric: str
    """The metric that counts as the task's ``score``: the paper's."""


TASKS: Final[Mapping[str, Task]] = {
    "package": Task("docstrings: which package", docstring_tasks.PACKAGES, "accuracy"),
    "library": Task("docstrings: which library", 2, "accuracy"),
    "copy": Task("docstrings: copy with a word dropped", 2, "f1"),
    "similarity": Task("docstrings: similarity", 0, "pearson"),
    "mnli": Task("GLUE MNLI", 3, "accuracy"),
    "qqp": Task("GLUE QQP", 2, "f1"),
    "qnli": Task("GLUE QNLI", 2, "accuracy"),
    "sst2": Task("GLUE SST-2", 2, "accuracy"),
    "cola": Task("GLUE CoLA", 2, "matthews"),
    "stsb": Task("GLUE STS-B", 0, "pearson"),
    "mrpc": Task("GLUE MRPC", 2, "f1"),
    "rte": Task("GLUE RTE", 2, "accuracy"),
    "imdb": Task("IMDB", 2, "accuracy"),
}

_OF_DOCSTRINGS: Final[Mapping[str, Callable[[int, int], Examples]]] = {
    "package": docstring_tasks.package,
    "library": docstring_tasks.library,
    "copy": docstring_tasks.copy,
    "similarity": docstring_tasks.similarity,
}


class BertClassification(bert.FineTuning):
    """BERT with a linear layer on its pooled first token; the loss is the cross-entropy.

    Where the task is a score from 0 to 5, the layer has one output, and the loss is the mean squared error of a score
    brought to [-1, 1].

    dataset: a task of `TASKS`.  batch_size: examples a step.  layers, hidden_size, heads, vocabulary_size,
    initializer_range, dropout: as `bert_pretraining.BertPretraining`'s; dropout is before the linear layer too.
    sequence_length: tokens of an example, at most.  validation_examples: how many to evaluate on, at most; None, all.
    cased: whether published vocabularies keep capitals.  pretrained: a published model whose encoder new models start
    from, or None.

    Raises `ValueError` where ``heads`` does not divide ``hidden_size``, or the vocabulary has another size.
    """

    def __init__(
        self,
        *,
        dataset: str,
        batch_size: int,
        layers: int,
        hidden_size: int,
        heads: int,
        vocabulary_size: int,
        sequence_length: int,
        initializer_range: float,
        dropout: float,
        validation_examples: int | None,
        cased: bool,
        pretrained: str | None,
    ) -> None:
        self._parameters: dict[str, Any] = {
            "dataset": dataset,
            "layers": layers,
            "hidden_size": hidden_size,
            "heads": heads,
            "vocabulary_size": vocabulary_size,
            "sequence_length": sequence_length,
            "initializer_range": initializer_range,
            "dropout": dropout,
        }
        _configuration(self._parameters)
        self._task = TASKS[dataset]
        examples = _load(dataset, vocabulary_size, sequence_length, cased=cased)
        self._published = bert.published(pretrained) if pretrained else None
        self._train, self._validation = examples.train, examples.validation[:validation_examples]
        self._sample = self._train[bert.training_sample(len(self._train), len(self._validation))]
        self.batch_size = batch_size
        self.model_name, self.dataset_name = self.described(**self._parameters)
        self.train_examples, self.validation_examples = len(self._train), len(self._validation)
        self.data_fingerprint = fingerprint(examples.arrays())

    @classmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return a model in BERT's initialisation."""
        return BertForSequenceClassification(_configuration(parameters))

    @classmethod
    def described(cls, **parameters: Any) -> tuple[str, str]:
        """Return the encoder's size, and the task."""
        return bert.size(parameters), TASKS[parameters["dataset"]].title

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of BERT's inputs ``[batch_size, longest]`` and ``labels`` ``[batch_size]``."""
        for _, indices in shuffled(seed, start, self.train_examples, self.batch_size):
            yield _batch(self._train[indices])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy, or the mean squared error of scores in [-1, 1]."""
        inputs = beside(model, batch)
        labels = inputs.pop("labels")
        return self._loss(model(**inputs).logits, labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return ``loss``, the task's metrics, and ``score``, which is the one of them that the paper reports.

        Classes: ``accuracy``, and for two of them ``f1`` (of class 1) and ``matthews`` (correlation).  Scores:
        ``pearson`` and ``spearman`` (correlations, NaN where all predictions are equal).
        """
        logits, labels = self._predict(model, self._validation)
        found = {"loss": self._loss(logits, labels), **_metrics(logits, labels, self._task.classes)}
        found["score"] = found[self._task.own_metric]
        return {name: value.item() for name, value in found.items()}

    def evaluate_training(self, model: nn.Module) -> dict[str, float]:
        """Return ``accuracy`` on a fixed sample of training examples, in evaluation mode; nothing for scores."""
        if not self._task.classes:
            return {}
        logits, labels = self._predict(model, self._sample)
        return {"accuracy": _metrics(logits, labels, self._task.classes)["accuracy"].item()}

    def _predict(self, model: nn.Module, features: Features) -> tuple[Tensor, Tensor]:
        """Return logits ``[n, outputs]`` in evaluation mode, and labels ``[n]``, both on the CPU."""
        outputs = []
        with evaluating(model):
            for first in range(0, len(features), _VALIDATION_BATCH):
                inputs = beside(model, _batch(features[first : first + _VALIDATION_BATCH]))
                inputs.pop("labels")
                outputs.append(model(**inputs).logits.float().cpu())
        return torch.cat(outputs), torch.from_numpy(features.labels)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._task.classes:
            return functional.cross_entropy(logits, labels)
        return functional.mse_loss(logits.squeeze(1), labels / (HIGHEST_SCORE / 2) - 1)


def _configuration(parameters: Mapping[str, Any]) -> Any:
    dataset = parameters["dataset"]
    positions = None if dataset in _OF_DOCSTRINGS else bert.POSITIONS
    return bert.configuration(parameters, positions=positions, num_labels=TASKS[dataset].classes or 1)


def _load(dataset: str, vocabulary_size: int, length: int, *, cased: bool) -> Examples:
    if dataset in _OF_DOCSTRINGS:
        return _OF_DOCSTRINGS[dataset](vocabulary_size, length)
    vocabulary = Vocabulary(cased=cased, size=vocabulary_size)
    return imdb.load(vocabulary, length) if dataset == "imdb" else glue.load(dataset, vocabulary, length)


def _batch(features: Features) -> Batch:
    arrays = {**features.inputs(), "labels": features.labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _metrics(logits: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    if not classes:
        predicted = logits.squeeze(1)
        return {"pearson": pearson_corrcoef(predicted, labels), "spearman": spearman_corrcoef(predicted, labels)}
    predicted = logits.argmax(1)
    found = {"accuracy": accuracy(predicted, labels, task="multiclass", num_classes=classes, average="micro")}
    if classes == 2:
        found["f1"] = binary_f1_score(predicted, labels)
        found["matthews"] = binary_matthews_corrcoef(predicted, labels)
    return found
