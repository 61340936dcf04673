"""BERT pre-training: masked language model and next-sentence prediction on English text."""

from __future__ import annotations

from collections.abc import Iterator

from baselines import _torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertForPreTraining

from workflow.bench.workloads import corpus
from workflow.bench.workloads.base import Batch, Workload, beside, evaluating, seeded, shuffled
from workflow.bench.workloads.corpus import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, Split

IGNORED = -100
"""The label of a position that the masked language model's loss leaves out."""
NEXT, RANDOM = 0, 1
"""The labels of the second segment."""

_DATASETS = {"docstrings": corpus.load}
_PREDICTED = 0.15
_MASKED, _REPLACED = 0.8, 0.1  # of the predicted; the rest stay as they are
_VALIDATION_SEED = 0  # of the validation pairs and masks, which every run shares
_VALIDATION_BATCH = 256  # pairs at once
_MASKS = 1  # keeps the numbers behind masks apart from those behind an epoch's order


class BertPretraining(Workload):
    """BERT with its two pre-training heads (Devlin et al., NAACL 2019), the loss their sum.

    The head of the masked language model is excluded from preconditioning, as in MKOR's released BERT script: its
    decoder shares the word embeddings' weight.

    dataset: "docstrings", scikit-learn's and SciPy's.  batch_size: pairs of segments a step.  layers, hidden_size,
    heads: of the encoder, whose feed-forward layers are four times as wide.  vocabulary_size: word pieces.
    sequence_length: tokens a pair.  initializer_range: standard deviation of the initial weights.  dropout: share
    of activations, and of attention, that is dropped in training.  validation_pairs: pairs to evaluate on, at most.

    Raises `ValueError` where ``heads`` does not divide ``hidden_size``, or the text has too few word pieces.
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
        if hidden_size % heads:
            raise ValueError(f"{hidden_size=} must be a multiple of {heads=}.")
        self._config = BertConfig(
            vocab_size=vocabulary_size,
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden_size,
            max_position_embeddings=sequence_length,
            initializer_range=initializer_range,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            pad_token_id=PAD,
        )
        text = _DATASETS[dataset](vocabulary_size)
        self._pairs = Pairs(text.train, vocabulary_size, sequence_length)
        self.batch_size = batch_size
        self.model_name = f"BERT, {layers} layers x {hidden_size}, {heads} heads"
        self.dataset_name = "docstrings of scikit-learn and SciPy"
        self.train_examples = len(self._pairs)
        self.data_fingerprint = text.fingerprint

        held_out = Pairs(text.validation, vocabulary_size, sequence_length)
        rng = np.random.default_rng(_VALIDATION_SEED)
        self._validation = held_out.batch(rng.permutation(len(held_out))[:validation_pairs], rng)
        self.validation_examples = len(self._validation["input_ids"])

    def model(self, seed: int) -> nn.Module:
        """Return a new model in BERT's initialisation."""
        with seeded(seed):
            return BertForPreTraining(self._config)

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as `Pairs.batch` makes them; masks and random segments differ in each epoch."""
        for k, indices in shuffled(seed, start, self.train_examples, self.batch_size):
            yield self._pairs.batch(indices, np.random.default_rng([seed, k, _MASKS]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of both heads' mean cross-entropies: over predicted tokens, and over pairs."""
        return model(**beside(model, batch)).loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return ``loss``, its part ``mlm_loss``, and ``nsp_accuracy``, on fixed pairs with fixed masks."""
        mlm_loss = nsp_loss = 0.0
        predicted = correct = 0
        with evaluating(model):
            for first in range(0, self.validation_examples, _VALIDATION_BATCH):
                here = slice(first, first + _VALIDATION_BATCH)
                inputs = beside(model, {name: tensor[here] for name, tensor in self._validation.items()})
                labels, is_random = inputs.pop("labels"), inputs.pop("next_sentence_label")
                output = model(**inputs)
                is_predicted = labels != IGNORED
                logits = output.prediction_logits[is_predicted]
                mlm_loss += functional.cross_entropy(logits, labels[is_predicted], reduction="sum").item()
                predicted += len(logits)
                logits = output.seq_relationship_logits
                nsp_loss += functional.cross_entropy(logits, is_random, reduction="sum").item()
                correct += int((logits.argmax(1) == is_random).sum())
        mlm_loss /= predicted
        nsp_loss /= self.validation_examples
        return {
            "loss": mlm_loss + nsp_loss,
            "mlm_loss": mlm_loss,
            "nsp_accuracy": correct / self.validation_examples,
        }


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

    def batch(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Return the pairs at ``indices``, masked, as BERT's inputs and labels.

        Each tensor is int64: ``input_ids``, ``token_type_ids``, ``attention_mask`` and ``labels``
        ``[n, sequence_length]``, ``next_sentence_label`` ``[n]``.
        """
        is_random = rng.random(len(indices)) < 0.5
        second = np.where(is_random, self._elsewhere(indices, rng), indices)
        tokens, segments = self._assemble(indices, second)
        inputs, labels = self._mask(tokens, rng)
        return {
            "input_ids": torch.from_numpy(inputs),
            "token_type_ids": torch.from_numpy((segments == 2).astype(np.int64)),
            "attention_mask": torch.from_numpy((segments > 0).astype(np.int64)),
            "labels": torch.from_numpy(labels),
            "next_sentence_label": torch.from_numpy(np.where(is_random, RANDOM, NEXT)),
        }

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

    def _mask(self, tokens: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return inputs and labels: 15 % of the text's tokens are to be predicted, at least one a pair.

        Of these, 80 % are masked, 10 % replaced by a random word piece, 10 % left as they are.
        """
        is_text = (tokens != CLS) & (tokens != SEP) & (tokens != PAD)
        draw = np.where(is_text, rng.random(tokens.shape), 2.0)
        predicted = draw <= np.maximum(_PREDICTED, draw.min(axis=1, keepdims=True))
        labels = np.where(predicted, tokens, IGNORED)

        fate = rng.random(tokens.shape)
        pieces = rng.integers(len(SPECIAL_TOKENS), self._vocabulary_size, tokens.shape)
        inputs = np.where(predicted & (fate < _MASKED), MASK, tokens)
        replaced = predicted & (fate >= _MASKED) & (fate < _MASKED + _REPLACED)
        return np.where(replaced, pieces, inputs), labels
