"""BERT fine-tuned to answer questions by a span of their context: SQuAD v1.1, and its stand-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.data import docstring_tasks, squad
from workflow.bench.data.batches import Batch, shuffled
from workflow.bench.data.features import Features, Vocabulary, fingerprint
from workflow.bench.data.questions import Questions
from workflow.bench.workloads import bert
from workflow.bench.workloads.base import beside, evaluating

# isort: split
from torchmetrics.functional.text import squad as squad_metrics
from transformers import BertForQuestionAnswering

_TITLES: Final = {"quotes": "docstrings: text in quotes or brackets", "squad": "SQuAD v1.1"}
_LONGEST_ANSWER: Final = {"quotes": docstring_tasks.LONGEST_ANSWER, "squad": squad.LONGEST_ANSWER}
_VALIDATION_BATCH: Final = 128


class BertSpan(bert.FineTuning):
    """BERT with two linear scores a token: of being the answer's first, and its last; the loss is their mean entropy.

    dataset: "quotes", the docstrings' stand-in, or "squad".  batch_size: windows of a context, each with its question,
    a step.  layers, hidden_size, heads, vocabulary_size, initializer_range, dropout: as
    `bert_pretraining.BertPretraining`'s.
    sequence_length: tokens of question and window.  validation_questions: how many to evaluate on, at most; None, all.
    cased: whether SQuAD's vocabulary keeps capitals.  pretrained: a published model whose encoder new models start
    from, or None.

    Raises `ValueError` where ``heads`` does not divide ``hidden_size``, the vocabulary has another size, or SQuAD's
    questions leave no room in a sequence.
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
        validation_questions: int | None,
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
        questions = _load(dataset, vocabulary_size, sequence_length, cased=cased)
        self._published = bert.published(pretrained) if pretrained else None
        self._train = questions.train
        self._contexts = questions.contexts[:validation_questions]
        self._answers = questions.answers[:validation_questions]
        windows = int(np.searchsorted(questions.question, len(self._contexts)))
        self._validation, self._question = questions.validation[:windows], questions.question[:windows]
        self._offsets = questions.offsets[:windows]
        self._sample = self._train[bert.training_sample(len(self._train), len(self._validation))]
        self._longest_answer = _LONGEST_ANSWER[dataset]
        self.batch_size = batch_size
        self.model_name, self.dataset_name = self.described(**self._parameters)
        self.train_examples, self.validation_examples = len(self._train), len(self._contexts)
        self.data_fingerprint = fingerprint(questions.arrays())

    @classmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return a model in BERT's initialisation."""
        return BertForQuestionAnswering(_configuration(parameters))

    @classmethod
    def described(cls, **parameters: Any) -> tuple[str, str]:
        """Return the encoder's size, and the data."""
        return bert.size(parameters), _TITLES[parameters["dataset"]]

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of BERT's inputs ``[batch_size, longest]`` and ``spans`` ``[batch_size, 2]``."""
        for _, indices in shuffled(seed, start, self.train_examples, self.batch_size):
            yield _batch(self._train[indices])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the answer's first and last column."""
        inputs = beside(model, batch)
        spans = inputs.pop("spans")
        output = model(**inputs)
        return _loss(output.start_logits, output.end_logits, spans)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return ``loss`` (of windows), and of questions ``exact_match`` and ``f1``, from 0 to 1, which is ``score``.

        An answer is the span of the context with the highest sum of scores among those not too long, over all windows
        of the question.
        """
        total = 0.0
        scores = np.full(len(self._contexts), -np.inf)
        answers = [""] * len(self._contexts)
        with evaluating(model):
            for begin in range(0, len(self._validation), _VALIDATION_BATCH):
                rows = slice(begin, begin + _VALIDATION_BATCH)
                inputs = beside(model, _batch(self._validation[rows]))
                spans = inputs.pop("spans")
                output = model(**inputs)
                starts, ends = output.start_logits.float(), output.end_logits.float()
                total += _loss(starts, ends, spans).item() * len(spans)
                allowed = torch.from_numpy(self._offsets[rows, : starts.shape[1]]).diff(dim=2)[:, :, 0] > 0
                best, first, last = best_spans(starts, ends, allowed.to(starts.device), self._longest_answer)
                for row, (score, one, two) in enumerate(zip(best, first, last, strict=True), begin):
                    question = self._question[row]
                    if score > scores[question]:
                        scores[question] = score
                        places = self._offsets[row]
                        answers[question] = self._contexts[question][places[one, 0] : places[two, 1]]
        predicted = [{"prediction_text": text, "id": str(number)} for number, text in enumerate(answers)]
        right: list[dict[str, Any]] = [
            {"answers": {"text": texts, "answer_start": [0] * len(texts)}, "id": str(number)}
            for number, texts in enumerate(self._answers)
        ]
        percent = squad_metrics(predicted, right)
        f1 = percent["f1"].item() / 100
        return {
            "loss": total / len(self._validation),
            "exact_match": percent["exact_match"].item() / 100,
            "f1": f1,
            "score": f1,
        }

    def evaluate_training(self, model: nn.Module) -> dict[str, float]:
        """Return ``accuracy``: the share of a fixed sample of windows of which both ends are the most likely tokens."""
        right = 0
        with evaluating(model):
            for first in range(0, len(self._sample), _VALIDATION_BATCH):
                inputs = beside(model, _batch(self._sample[first : first + _VALIDATION_BATCH]))
                spans = inputs.pop("spans")
                output = model(**inputs)
                likely = torch.stack([output.start_logits.argmax(1), output.end_logits.argmax(1)], dim=1)
                right += int((likely == spans).all(1).sum())
        return {"accuracy": right / len(self._sample)}


def best_spans(starts: Tensor, ends: Tensor, allowed: Tensor, longest: int) -> tuple[list[float], list[int], list[int]]:
    """Return score, first and last column of each row's best span of at most ``longest`` allowed columns.

    starts, ends: ``[n, length]`` scores of being its first and its last column.  allowed: ``[n, length]``, bool.
    """
    length = starts.shape[1]
    shape = torch.ones(length, length, dtype=torch.bool, device=starts.device).triu().tril(longest - 1)
    scores = starts[:, :, None] + ends[:, None, :]
    possible = shape & allowed[:, :, None] & allowed[:, None, :]
    best, place = scores.masked_fill(~possible, -torch.inf).flatten(1).max(1)
    return best.tolist(), (place // length).tolist(), (place % length).tolist()


def _configuration(parameters: Mapping[str, Any]) -> Any:
    if parameters["dataset"] == "quotes":
        return bert.configuration(parameters)
    if parameters["sequence_length"] < 2 * squad.LONGEST_QUESTION:
        least = 2 * squad.LONGEST_QUESTION
        raise ValueError(f"sequence_length={parameters['sequence_length']} must be at least {least} for SQuAD.")
    return bert.configuration(parameters, positions=bert.POSITIONS)


def _load(dataset: str, vocabulary_size: int, length: int, *, cased: bool) -> Questions:
    if dataset == "quotes":
        return docstring_tasks.questions(vocabulary_size, length)
    return squad.load(Vocabulary(cased=cased, size=vocabulary_size), length)


def _batch(features: Features) -> Batch:
    arrays = {**features.inputs(), "spans": features.labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _loss(starts: Tensor, ends: Tensor, spans: Tensor) -> Tensor:
    return (functional.cross_entropy(starts, spans[:, 0]) + functional.cross_entropy(ends, spans[:, 1])) / 2
