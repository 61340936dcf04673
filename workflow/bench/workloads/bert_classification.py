"""BERT fine-tuned to classify or score texts and pairs of texts: GLUE, IMDB, and stand-ins for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data import docstring_tasks, glue, imdb
from workflow.bench.data.arrays import fingerprint
from workflow.bench.data.batches import Batch, tuning_split
from workflow.bench.data.features import HIGHEST_SCORE, Features, Vocabulary
from workflow.bench.workloads import bert
from workflow.bench.workloads.base import ONE_PROCESS, Team, evaluation_mode
from workflow.bench.workloads.fine_tuning import FineTuning, class_metrics, score_metrics


class Task(NamedTuple):
    """A classification or scoring task."""

    title: str
    """Its name in tables."""
    classes: int
    """0 for a score."""
    main_metric: str
    """The metric that the paper reports; it is also returned as ``score``."""


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


class BertClassification(FineTuning):
    """BERT with a linear layer on its pooled first token; the loss is the cross-entropy.

    If the task is a score from 0 to 5, the layer has one output, and the loss is the mean squared error of the score
    rescaled to [-1, 1]. ``dropout`` also precedes the linear layer.

    Raises:
        ValueError: ``heads`` does not divide ``hidden_size``, or the vocabulary has another size.
        workflow.bench.data.folder.DataNotFound: the data or the published weights are not on this machine.
    """

    labels_name = "labels"
    titles: ClassVar = {dataset: task.title for dataset, task in TASKS.items()}

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        super().__init__(parameters, for_tuning=for_tuning)
        _config(parameters)  # refuses impossible sizes before any data is read
        dataset, size, length = (parameters[name] for name in ("dataset", "vocabulary_size", "sequence_length"))
        self._task = TASKS[dataset]
        if dataset in docstring_tasks.CLASSIFICATION:
            examples = docstring_tasks.CLASSIFICATION[dataset](size, length)
        else:
            vocabulary = Vocabulary(cased=parameters["cased"], size=size)
            read = imdb.load if dataset == "imdb" else partial(glue.load, dataset)
            examples = read(vocabulary, length)
        train, validation = examples.train, examples.validation
        if for_tuning:
            train, validation = (train[part] for part in tuning_split(len(train)))
        self._set_data(train, validation[: parameters["validation_examples"]])
        self.validation_examples = len(self._validation)
        self.data_fingerprint = fingerprint(examples)

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        model: nn.Module = bert.BertForSequenceClassification(_config(parameters))
        return model

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy, or the mean squared error of scores in [-1, 1]."""
        output, labels = self._outputs(model, batch)
        return self._loss(output.logits, labels)

    @override
    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``loss``, the task's metrics, and ``score``, the one of them that the paper reports.

        The metrics are those of `class_metrics` for classes and of `score_metrics` for scores.
        """
        logits, labels = self._predict(model, self._validation, team)
        measure = class_metrics if self._task.classes else score_metrics
        metrics = {"loss": self._loss(logits, labels), **measure(logits, labels)}
        metrics["score"] = metrics[self._task.main_metric]
        return {name: value.item() for name, value in metrics.items()}

    @override
    def evaluate_training(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``accuracy`` on a fixed sample of training examples, in evaluation mode; nothing for scores."""
        if not self._task.classes:
            return {}
        return {"accuracy": class_metrics(*self._predict(model, self._sample, team))["accuracy"].item()}

    def _predict(self, model: nn.Module, features: Features, team: Team) -> tuple[Tensor, Tensor]:
        """Return logits ``[n, outputs]`` in evaluation mode, and labels ``[n]``, both on the CPU, of all processes."""
        with evaluation_mode(model):
            outputs = self._evaluation_outputs(model, features, team.part(len(features)))
            logits = [output.logits.float().cpu() for _, output, _ in outputs]
        return torch.cat([each for part in team.gathered(logits) for each in part]), torch.from_numpy(features.labels)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._task.classes:
            return functional.cross_entropy(logits, labels)
        return functional.mse_loss(logits.squeeze(1), labels / (HIGHEST_SCORE / 2) - 1)


def _config(parameters: Mapping[str, Any]) -> bert.BertConfig:
    dataset = parameters["dataset"]
    # Published weights have 512 positions, which the stand-ins do not start from.
    positions = None if dataset in docstring_tasks.CLASSIFICATION else bert.POSITIONS
    return bert.encoder_config(parameters, positions=positions, num_labels=TASKS[dataset].classes or 1)
