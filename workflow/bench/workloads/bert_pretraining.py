"""BERT pre-training: masked language model and next-sentence prediction on English text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.workloads import bert, corpus
from workflow.bench.workloads.base import Batch, Workload, beside, evaluating, seeded, shuffled
from workflow.bench.workloads.corpus import CLS, MASK, PAD, SEP, UNKNOWN, Split
from workflow.bench.workloads.shards import Manifest, Shards, Specials

# isort: split
from transformers import BertForPreTraining
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

IGNORED = -100
"""The label of a position that the masked language model's loss leaves out."""
NEXT, RANDOM = 0, 1
"""The labels of the second segment."""

_DATA_NAMES = {"docstrings": "docstrings of scikit-learn and SciPy", "text": "a folder of text"}
_PREDICTED, _MOST_PREDICTED = 0.15, 5  # share of a text, and tokens of 32 in a sequence of shards
_MASKED, _REPLACED = 0.8, 0.1  # of the predicted; the rest stay as they are
_VALIDATION_SEED = 0  # of the validation pairs and masks, which every run shares
_VALIDATION_BATCH, _VALIDATION_TOKENS = 256, 32768  # pairs and tokens at once, at most
_OF_CORPUS = Specials(pad=PAD, unknown=UNKNOWN, cls=CLS, sep=SEP, mask=MASK)
_ALL = slice(None)
_MASKS = 1  # keeps the numbers behind masks apart from those behind an epoch's order


class MaskedBert(BertForPreTraining):
    """BERT with its two pre-training heads; the masked language model's is asked for predicted tokens alone.

    At a vocabulary of 30,000 the scores of all tokens would take more memory than the encoder.
    """

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        next_sentence_label: Tensor,
        loss_weight: Tensor | None = None,
    ) -> BertForPreTrainingOutput:
        """Return the loss, ``prediction_logits`` ``[predicted, vocabulary]``, and ``seq_relationship_logits``.

        loss_weight: of the masked language model's part of the loss, 1 by default.
        """
        encoded = self.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        predicted = labels != IGNORED
        logits, relationship = self.cls(encoded.last_hidden_state[predicted], encoded.pooler_output)
        loss = functional.cross_entropy(logits.float(), labels[predicted])
        if loss_weight is not None:
            loss = loss * loss_weight
        loss = loss + functional.cross_entropy(relationship.float(), next_sentence_label)
        return BertForPreTrainingOutput(loss=loss, prediction_logits=logits, seq_relationship_logits=relationship)


class BertPretraining(Workload):
    """BERT with its two pre-training heads (Devlin et al., NAACL 2019), the loss their sum.

    The head of the masked language model is excluded from preconditioning, as in MKOR's released BERT script: its
    decoder shares the word embeddings' weight.

    dataset: "docstrings", scikit-learn's and SciPy's, or "text", the shards that `workflow.bench.prepare` made with
    bert-uncased's vocabulary and this ``sequence_length``.  batch_size: pairs of segments a step.  layers,
    hidden_size, heads: of the encoder, whose feed-forward layers are four times as wide.  vocabulary_size: word
    pieces.  sequence_length: tokens a pair; models of "text" have 512 positions whatever it is, so that a second phase
    starts from a first one.  initializer_range: standard deviation of the initial weights.  dropout: share of
    activations, and of attention, that is dropped in training.  validation_pairs: pairs to evaluate on, at most.

    Raises `ValueError` where ``heads`` does not divide ``hidden_size``, the text has too few word pieces, or its
    vocabulary has another size.
    """

    exclude = (r"cls\.predictions",)

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
        validation_pairs: int,
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
        data = _load(dataset, vocabulary_size, sequence_length)
        self._pairs = data.train
        self.batch_size = batch_size
        self.model_name, self.dataset_name = self.described(**self._parameters)
        self.train_examples = len(self._pairs)
        self.data_fingerprint = data.fingerprint

        held_out = data.validation
        rng = np.random.default_rng(_VALIDATION_SEED)
        self._validation = held_out.batch(rng.permutation(len(held_out))[:validation_pairs], rng)
        self.validation_examples = len(self._validation["input_ids"])

    @classmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return a model in BERT's initialisation."""
        return MaskedBert(_configuration(parameters))

    @classmethod
    def described(cls, **parameters: Any) -> tuple[str, str]:
        """Return the encoder's size, and the text's name."""
        return bert.size(parameters), _DATA_NAMES[parameters["dataset"]]

    def model(self, seed: int) -> nn.Module:
        """Return a new model, as `architecture` makes it."""
        with seeded(seed):
            return self.architecture(**self._parameters)

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as `Pairs.batch` makes them; masks and random segments differ in each epoch."""
        for k, indices in shuffled(seed, start, self.train_examples, self.batch_size):
            yield self._pairs.batch(indices, np.random.default_rng([seed, k, _MASKS]))

    def rows_of_batches(self, seed: int, start: int, rows: slice) -> Iterator[Batch]:
        """Yield examples ``rows`` of the batches of `batches`; the others' texts are not read."""
        for k, indices in shuffled(seed, start, self.train_examples, self.batch_size):
            yield self._pairs.batch(indices, np.random.default_rng([seed, k, _MASKS]), rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of both heads' mean cross-entropies: over predicted tokens, and over pairs."""
        return model(**beside(model, batch)).loss

    def loss_terms(self, batch: Batch) -> Tensor:
        """Return the number of predicted tokens, which differs from one part of a batch to another."""
        return (batch["labels"] != IGNORED).sum()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return ``loss``, its part ``mlm_loss``, and ``nsp_accuracy``, on fixed pairs with fixed masks."""
        mlm_loss = nsp_loss = 0.0
        predicted = correct = 0
        rows = max(1, min(_VALIDATION_BATCH, _VALIDATION_TOKENS // self._parameters["sequence_length"]))
        with evaluating(model):
            for first in range(0, self.validation_examples, rows):
                here = slice(first, first + rows)
                inputs = beside(model, {name: tensor[here] for name, tensor in self._validation.items()})
                labels, is_random = inputs["labels"], inputs["next_sentence_label"]
                output = model(**inputs)
                logits = output.prediction_logits.float()
                mlm_loss += functional.cross_entropy(logits, labels[labels != IGNORED], reduction="sum").item()
                predicted += len(logits)
                logits = output.seq_relationship_logits.float()
                nsp_loss += functional.cross_entropy(logits, is_random, reduction="sum").item()
                correct += int((logits.argmax(1) == is_random).sum())
        mlm_loss /= predicted
        nsp_loss /= self.validation_examples
        return {
            "loss": mlm_loss + nsp_loss,
            "mlm_loss": mlm_loss,
            "nsp_accuracy": correct / self.validation_examples,
        }


def _configuration(parameters: dict[str, Any]) -> Any:
    positions = bert.POSITIONS if parameters["dataset"] == "text" else None
    return bert.configuration(parameters, positions=positions)


class _Data(NamedTuple):
    """Both splits, and the SHA-256 of the data."""

    train: Pairs | PairsOfShards
    validation: Pairs | PairsOfShards
    fingerprint: str


def _load(dataset: str, vocabulary_size: int, length: int) -> _Data:
    if dataset == "docstrings":
        text = corpus.load(vocabulary_size)
        return _Data(
            Pairs(text.train, vocabulary_size, length),
            Pairs(text.validation, vocabulary_size, length),
            text.fingerprint,
        )
    manifest = Manifest("bert-uncased", length)
    if manifest.vocabulary_size != vocabulary_size:
        raise ValueError(f"{vocabulary_size=}: {manifest.folder} has {manifest.vocabulary_size} word pieces.")
    return _Data(PairsOfShards(manifest, "train"), PairsOfShards(manifest, "validation"), manifest.fingerprint)


class Pairs:
    """Pairs of text segments from a split: one for each place where one sentence of a docstring follows another.

    The first segment ends there.  The second one starts there, or, half the time, at such a place in another
    document.  Together they fill ``sequence_length``, each half of it where its docstring is long enough.  Neither
    kind of second segment ever starts a docstring, so that its look tells nothing.

    Raises `ValueError` if no two documents have such a place.
    """

    def __init__(self, split: Split, vocabulary_size: int, sequence_length: int) -> None:
        self._tokens = split.tokens.astype(np.int64)
        self._vocabulary_size = vocabulary_size
        self._length = sequence_length

        follows = np.ones(len(split.sentences) - 1, dtype=bool)
        follows[split.docstrings[:-1]] = False
        sentence = np.flatnonzero(follows)
        docstring = np.searchsorted(split.docstrings, sentence, side="right") - 1
        document = np.searchsorted(split.documents, docstring, side="right") - 1
        ends = split.sentences[split.docstrings].astype(np.int64)  # of docstrings, in tokens
        self._place = split.sentences[sentence].astype(np.int64)
        self._low, self._high = ends[docstring], ends[docstring + 1]
        # The places of one document stand side by side.
        self._same_low = np.searchsorted(document, document, side="left")
        self._same_high = np.searchsorted(document, document, side="right")
        if len(np.unique(document)) < 2:
            raise ValueError("next-sentence prediction needs two documents of several sentences.")

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._place)

    def batch(self, indices: NDArray[np.int64], rng: np.random.Generator, rows: slice = _ALL) -> Batch:
        """Return the pairs at ``indices``, masked, as BERT's inputs and labels; of these, ``rows``.

        What is drawn is drawn for all, so that parts of a batch are the batch.
        Each tensor is int64: ``input_ids``, ``token_type_ids``, ``attention_mask`` and ``labels``
        ``[n, sequence_length]``, ``next_sentence_label`` ``[n]``.
        """
        is_random = rng.random(len(indices)) < 0.5
        second = np.where(is_random, self._elsewhere(indices, rng), indices)
        tokens, segments = self._assemble(indices[rows], second[rows])
        shape = (len(indices), self._length)
        is_text = (tokens != CLS) & (tokens != SEP) & (tokens != PAD)
        draw = np.where(is_text, rng.random(shape)[rows], 2.0)
        predicted = draw <= np.maximum(_PREDICTED, draw.min(axis=1, keepdims=True))
        fate, pieces = _drawn(shape, rows, _OF_CORPUS, self._vocabulary_size, rng)
        return _masked(tokens, segments, is_random[rows], predicted, _OF_CORPUS, fate, pieces)

    def _elsewhere(self, indices: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Return for each index one of another document, drawn evenly."""
        low, high = self._same_low[indices], self._same_high[indices]
        drawn = rng.integers(len(self) - (high - low))
        return np.where(drawn < low, drawn, drawn + high - low)

    def _assemble(
        self, first: NDArray[np.int64], second: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tokens ``[CLS] first [SEP] second [SEP]``, padded, and the segment of each.

        Segments are 1 and 2, each with its [SEP], and 0 for padding.
        """
        room = self._length - 3
        before = self._place[first] - self._low[first]
        after = self._high[second] - self._place[second]
        in_first = np.minimum(before, np.maximum(room // 2, room - after))
        in_second = np.minimum(after, room - in_first)

        column = np.arange(self._length)
        middle = (in_first + 1)[:, None]  # the column of the first [SEP]
        last = middle + (in_second + 1)[:, None]
        source = np.where(
            column < middle,
            self._place[first][:, None] + column - middle,
            self._place[second][:, None] + column - middle - 1,
        )
        tokens = self._tokens.take(source, mode="clip")
        tokens[:, 0] = CLS
        tokens[(column == middle) | (column == last)] = SEP
        tokens[column > last] = PAD
        return tokens, np.where(column > last, 0, np.where(column > middle, 2, 1))


class PairsOfShards:
    """Pairs of text segments as `workflow.bench.prepare` made them, masked anew in each batch.

    15 % of a pair's text is to be predicted, rounded, at least one token and at most 5 in 32 of a sequence: 80 of 512,
    20 of 128, as in BERT's own script.
    """

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._shards = Shards(manifest, split)
        self._specials = manifest.specials
        self._vocabulary_size = manifest.vocabulary_size

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._shards)

    def batch(self, indices: NDArray[np.int64], rng: np.random.Generator, rows: slice = _ALL) -> Batch:
        """Return the pairs at ``indices``, or ``rows`` of them, masked, as `Pairs.batch` does."""
        tokens, pairs = self._shards.rows(indices[rows])
        shape = (len(indices), tokens.shape[1])
        second, lengths, is_random = pairs.T[:, :, None]
        column = np.arange(tokens.shape[1])
        segments = np.where(column >= lengths, 0, np.where(column >= second, 2, 1))
        is_text = (segments > 0) & (tokens != self._specials.cls) & (tokens != self._specials.sep)
        draw = np.where(is_text, rng.random(shape, dtype=np.float32)[rows], np.float32(2))
        share = np.rint(_PREDICTED * is_text.sum(axis=1)).astype(np.int64)
        number = np.clip(share, 1, _MOST_PREDICTED * tokens.shape[1] // 32)
        highest = np.take_along_axis(np.sort(draw, axis=1), number[:, None] - 1, axis=1)
        predicted = is_text & (draw <= highest)
        fate, drawn = _drawn(shape, rows, self._specials, self._vocabulary_size, rng)
        return _masked(tokens, segments, is_random[:, 0] > 0, predicted, self._specials, fate, drawn)


def _drawn(
    shape: tuple[int, int], rows: slice, specials: Specials, vocabulary_size: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return for each token of ``rows`` its fate, in [0, 1), and a word piece."""
    fate = rng.random(shape)
    return fate[rows], rng.integers(max(specials) + 1, vocabulary_size, shape)[rows]


def _masked(
    tokens: NDArray[np.int64],
    segments: NDArray,
    is_random: NDArray[np.bool_],
    predicted: NDArray[np.bool_],
    specials: Specials,
    fate: NDArray[np.float64],
    pieces: NDArray[np.int64],
) -> Batch:
    """Return a batch in which 80 % of the predicted tokens are masked, 10 % a random word piece, 10 % as they were."""
    inputs = np.where(predicted & (fate < _MASKED), specials.mask, tokens)
    replaced = predicted & (fate >= _MASKED) & (fate < _MASKED + _REPLACED)
    return {
        "input_ids": torch.from_numpy(np.where(replaced, pieces, inputs)),
        "token_type_ids": torch.from_numpy((segments == 2).astype(np.int64)),
        "attention_mask": torch.from_numpy((segments > 0).astype(np.int64)),
        "labels": torch.from_numpy(np.where(predicted, tokens, IGNORED)),
        "next_sentence_label": torch.from_numpy(np.where(is_random, RANDOM, NEXT)),
    }
