"""BERT fine-tuned to answer a question by a span of its context: SQuAD v1.1, and a stand-in for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data import docstring_tasks, squad
from workflow.bench.data.arrays import fingerprint
from workflow.bench.data.batches import Batch, tuning_split
from workflow.bench.data.features import Vocabulary
from workflow.bench.workloads import bert
from workflow.bench.workloads.base import ONE_PROCESS, Team, evaluation_mode, totals
from workflow.bench.workloads.fine_tuning import FineTuning, answer_metrics

_LONGEST_ANSWER: Final = {"quotes": docstring_tasks.LONGEST_ANSWER, "squad": squad.LONGEST_ANSWER}


class BertSpan(FineTuning):
    """BERT that scores each token as the first and as the last one of the answer.

    Two linear outputs for each token give the scores; the loss is the mean of the two cross-entropies. A training
    example is a window of a context, preceded by its question.

    Raises:
        ValueError: ``heads`` does not divide ``hidden_size``, the vocabulary has another size, or SQuAD's questions
            leave no room in a sequence.
        workflow.bench.data.folder.DataNotFound: the data or the published weights are not on this machine.
    """

    labels_name = "spans"
    titles: ClassVar = {"quotes": "docstrings: text in quotes or brackets", "squad": "SQuAD v1.1"}

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        super().__init__(parameters, for_tuning=for_tuning)
        _config(parameters)  # refuses impossible sizes before any data is read
        size, length = parameters["vocabulary_size"], parameters["sequence_length"]
        if parameters["dataset"] == "quotes":
            questions = docstring_tasks.questions(size, length)
        else:
            questions = squad.load(Vocabulary(cased=parameters["cased"], size=size), length)
        most = parameters["validation_questions"]
        self._contexts, self._answers = (texts[:most] for texts in questions.contexts_and_answers())
        # A question may have several windows; ``question`` rises, so the windows of the first questions come first.
        windows = int(np.searchsorted(questions.question, len(self._contexts)))
        self._question, self._offsets = questions.question[:windows], questions.offsets[:windows]
        train, validation = questions.train, questions.validation[:windows]
        if for_tuning:
            train, validation = (train[part] for part in tuning_split(len(train)))
        self._set_data(train, validation)
        self._longest_answer = _LONGEST_ANSWER[parameters["dataset"]]
        self.validation_examples = len(self._validation) if for_tuning else len(self._contexts)
        self.data_fingerprint = fingerprint(questions)

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        model: nn.Module = bert.BertForQuestionAnswering(_config(parameters))
        return model

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the answer's first and last column."""
        output, spans = self._outputs(model, batch)
        return _loss(output.start_logits, output.end_logits, spans)

    @override
    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return the mean ``loss`` of windows and, over questions, ``exact_match``, ``f1`` and ``score``, which is f1.

        The answer to a question is the span with the highest sum of its two scores, among the spans that are short
        enough, over all windows of the question. Metrics range from 0 to 1. A trial of a search has the loss alone,
        since the answers to training questions are known as columns and not as texts.
        """
        total = 0.0
        found: list[tuple[float, int, int]] = []  # of each window, the best span's score, first and last column
        with evaluation_mode(model):
            for rows, output, spans in self._evaluation_outputs(
                model, self._validation, team.part(len(self._validation))
            ):
                starts, ends = output.start_logits.float(), output.end_logits.float()
                total += _loss(starts, ends, spans).item() * len(spans)
                if self.for_tuning:
                    continue
                # Tokens of the question and special tokens have empty offsets, such as (0, 0).
                in_context = torch.from_numpy(self._offsets[rows, : starts.shape[1]]).diff(dim=2)[:, :, 0] > 0
                best = best_spans(starts, ends, in_context.to(starts.device), self._longest_answer)
                found += zip(*best, strict=True)
        gathered = team.gathered((total, found))
        loss = sum(part for part, _ in gathered) / len(self._validation)
        if self.for_tuning:
            return {"loss": loss}
        metrics = answer_metrics(self._best_answers([span for _, part in gathered for span in part]), self._answers)
        return {"loss": loss, **metrics, "score": metrics["f1"]}

    def _best_answers(self, spans: Iterable[tuple[float, int, int]]) -> list[str]:
        """Return each question's answer, given every window's best span: its score, first and last column."""
        best_scores = np.full(len(self._contexts), -np.inf)
        answers = [""] * len(self._contexts)
        for window, (score, first, last) in enumerate(spans):
            question = self._question[window]
            if score > best_scores[question]:
                best_scores[question] = score
                offsets = self._offsets[window]
                answers[question] = self._contexts[question][offsets[first, 0] : offsets[last, 1]]
        return answers

    @override
    def evaluate_training(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``accuracy``: the share of a fixed sample of windows with both ends predicted correctly."""
        correct = 0
        with evaluation_mode(model):
            for _, output, spans in self._evaluation_outputs(model, self._sample, team.part(len(self._sample))):
                predicted = torch.stack([output.start_logits.argmax(1), output.end_logits.argmax(1)], dim=1)
                correct += int((predicted == spans).all(1).sum())
        (correct_of_all,) = totals(team, correct)
        return {"accuracy": correct_of_all / len(self._sample)}


def best_spans(starts: Tensor, ends: Tensor, allowed: Tensor, longest: int) -> tuple[list[float], list[int], list[int]]:
    """Return the score, first column and last column of each row's best span.

    Both ends of a span must be allowed, and it covers at most ``longest`` columns.

    Args:
        starts: ``[n, length]``, each column's score as the first one of a span.
        ends: ``[n, length]``, each column's score as the last one.
        allowed: ``[n, length]``, boolean.
        longest: the largest number of columns in a span.
    """
    length = starts.shape[1]
    # Entry (i, j) is the span from column i to column j; a band above the diagonal has the right lengths.
    band = torch.ones(length, length, dtype=torch.bool, device=starts.device).triu().tril(longest - 1)
    scores = starts[:, :, None] + ends[:, None, :]
    possible = band & allowed[:, :, None] & allowed[:, None, :]
    best, flat_index = scores.masked_fill(~possible, -torch.inf).flatten(1).max(1)
    return best.tolist(), (flat_index // length).tolist(), (flat_index % length).tolist()


def _config(parameters: Mapping[str, Any]) -> bert.BertConfig:
    if parameters["dataset"] == "quotes":
        return bert.encoder_config(parameters)
    shortest = 2 * squad.LONGEST_QUESTION
    if parameters["sequence_length"] < shortest:
        raise ValueError(f"sequence_length={parameters['sequence_length']} must be at least {shortest} for SQuAD.")
    return bert.encoder_config(parameters, positions=bert.POSITIONS)


def _loss(starts: Tensor, ends: Tensor, spans: Tensor) -> Tensor:
    return (functional.cross_entropy(starts, spans[:, 0]) + functional.cross_entropy(ends, spans[:, 1])) / 2
