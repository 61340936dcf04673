"""The best constant prediction of a workload: the same output for every example, that of the training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.data.masked_pairs import IGNORED
from workflow.bench.workloads.base import Workload


class Constant(nn.Module):
    """A model whose output does not depend on its input's values."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(()))  # workloads ask the first parameter for the device
        self.answer = answer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer(*args, **kwargs)


def evaluated(workload: Workload) -> dict[str, dict[str, float]]:
    """Return every metric of the best constant prediction, by split, as the workload itself measures a model.

    Classes and tokens get the logarithm of their frequency in an epoch of training batches, with one more of each, so
    that those of the validation data alone have one. An image is the mean image.
    """
    model = Constant(_ANSWERS[type(workload).__name__](workload))
    return {"validation": workload.evaluate(model), "train": workload.evaluate_training(model)}


def _epoch(workload: Workload, name: str) -> Iterator[Tensor]:
    for batch in islice(workload.batches(0), workload.steps_per_epoch):
        yield batch[name]


def _log_shares(values: Tensor, number: int) -> Tensor:
    counts = torch.bincount(values.flatten(), minlength=number) + 1
    return (counts / counts.sum()).log().float()


def _image(workload: Workload) -> Callable[..., Tensor]:
    mean = torch.cat([*_epoch(workload, "images")]).float().mean(0)
    return lambda images: mean.expand(len(images), -1)


def _classes(workload: Any) -> Callable[..., Tensor]:
    logits = _log_shares(torch.cat([*_epoch(workload, "labels")]), workload._facts.classes)
    return lambda images: logits.expand(len(images), -1)


def _tokens(workload: Workload) -> Callable[..., Tensor]:
    logits = _log_shares(torch.cat([*_epoch(workload, "labels")]), workload.parameters["vocabulary_size"])
    return lambda input_ids: logits.expand(*input_ids.shape, -1)


def _masked(workload: Workload) -> Callable[..., Any]:
    labels = torch.cat([each[each != IGNORED] for each in _epoch(workload, "labels")])
    tokens = _log_shares(labels, workload.parameters["vocabulary_size"])
    pairs = _log_shares(torch.cat([*_epoch(workload, "next_sentence_label")]), 2)

    def answer(positions: Tensor, labels: Tensor, next_sentence_label: Tensor, **_: Tensor) -> SimpleNamespace:
        logits, relationship = tokens.expand(len(positions), -1), pairs.expand(len(next_sentence_label), -1)
        loss = functional.cross_entropy(logits, labels) + functional.cross_entropy(relationship, next_sentence_label)
        return SimpleNamespace(loss=loss, prediction_logits=logits, seq_relationship_logits=relationship)

    return answer


def _texts(workload: Any) -> Callable[..., Any]:
    logits = _log_shares(torch.cat([*_epoch(workload, "labels")]), workload._task.classes)
    return lambda input_ids, **_: SimpleNamespace(logits=logits.expand(len(input_ids), -1))


def _spans(workload: Workload) -> Callable[..., Any]:
    spans = torch.cat([*_epoch(workload, "spans")])
    starts, ends = (_log_shares(column, workload.parameters["sequence_length"]) for column in spans.unbind(1))

    def answer(input_ids: Tensor, **_: Tensor) -> SimpleNamespace:
        shape = input_ids.shape
        return SimpleNamespace(
            start_logits=starts[: shape[1]].expand(*shape), end_logits=ends[: shape[1]].expand(*shape)
        )

    return answer


_ANSWERS: Mapping[str, Callable[[Any], Callable[..., Any]]] = {
    "Autoencoder": _image,
    "AlexNet": _classes,
    "ResNet20": _classes,
    "ResNet50": _classes,
    "LanguageModel": _tokens,
    "KroneckerRnn": _tokens,
    "BertPretraining": _masked,
    "BertClassification": _texts,
    "BertKrona": _texts,
    "BertSpan": _spans,
}
