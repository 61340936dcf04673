"""BERT pre-training: masked language model and next-sentence prediction on English text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.data import corpus
from workflow.bench.data.batches import Batch, seeded, shuffled
from workflow.bench.data.shards import Manifest
from workflow.bench.workloads import bert
from workflow.bench.workloads.base import Workload, beside, evaluating

# isort: split
from transformers import BertForPreTraining
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

from workflow.bench.data.masked_pairs import IGNORED, Pairs, PairsOfShards

_DATA_NAMES = {"docstrings": "docstrings of scikit-learn and SciPy", "text": "a folder of text"}


_VALIDATION_SEED = 0  # of the validation pairs and masks, which every run shares


_VALIDATION_BATCH, _VALIDATION_TOKENS = 256, 32768  # pairs and tokens at once, at most


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
