"""BERT pre-training: masked language model and next-sentence prediction on English text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data import corpus
from workflow.bench.data.batches import Batch, shuffled_indices
from workflow.bench.data.masked_pairs import IGNORED, PairsOfShards, SentencePairs
from workflow.bench.data.shards import Manifest
from workflow.bench.workloads import bert
from workflow.bench.workloads.base import ONE_PROCESS, Team, Workload, evaluation_mode, in_slices, totals

_TITLES = {"docstrings": "docstrings of scikit-learn and SciPy", "text": "a folder of text"}
_VOCABULARY = "bert-uncased"  # the vocabulary of the shards
_VALIDATION_SEED = 0  # every run has the same validation pairs and masks
_VALIDATION_BATCH, _VALIDATION_TOKENS = 256, 32768  # the most pairs and tokens to evaluate at once
_MASKS = 1  # separates the random numbers for masks from those for an epoch's order


class MaskedBert(bert.BertForPreTraining):
    """BERT with both pre-training heads; that of the masked language model scores only the predicted tokens.

    With a vocabulary of 30,000 the scores of all tokens would take more memory than the encoder.
    """

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        labels: Tensor,
        next_sentence_label: Tensor,
        attention_mask: Tensor | None = None,
        loss_weight: Tensor | None = None,
    ) -> bert.BertForPreTrainingOutput:
        """Return ``loss``, ``prediction_logits`` ``[predicted, vocabulary]``, and ``seq_relationship_logits``.

        positions: ``[predicted]``, the indices of the predicted tokens among all tokens ``[n * sequence_length]``.
        labels: ``[predicted]``, the tokens to predict.
        loss_weight: multiplies the masked language model's part of the loss.
        """
        encoded = self.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        predicted = encoded.last_hidden_state.flatten(0, 1).index_select(0, positions)
        logits, relationship = self.cls(predicted, encoded.pooler_output)
        loss = functional.cross_entropy(logits.float(), labels)
        if loss_weight is not None:
            loss = loss * loss_weight
        loss = loss + functional.cross_entropy(relationship.float(), next_sentence_label)
        return bert.BertForPreTrainingOutput(loss=loss, prediction_logits=logits, seq_relationship_logits=relationship)


class BertPretraining(Workload):
    """BERT with its two pre-training heads (Devlin et al., NAACL 2019); the loss is the sum of both heads' losses.

    The head of the masked language model is excluded from preconditioning, as in MKOR's released BERT script: its
    decoder shares the word embeddings' weight.

    ``dataset: text`` reads the shards that `workflow.bench.prepare` made with bert-uncased's vocabulary and this
    ``sequence_length``. Its models have 512 positions for every ``sequence_length``, so that a second phase with
    longer sequences can start from a first one.

    Raises:
        ValueError: ``heads`` does not divide ``hidden_size``, the text has too few word pieces, or its vocabulary has
            another size.
        workflow.bench.data.folder.DataNotFound: the text is not on this machine.
    """

    exclude = (r"cls\.predictions",)

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        super().__init__(parameters, for_tuning=for_tuning)
        _config(parameters)  # refuses impossible sizes before any data is read
        self._pairs, held_out, self.data_fingerprint = _load(parameters)
        self.train_examples = len(self._pairs)
        rng = np.random.default_rng(_VALIDATION_SEED)  # draws the masks, too
        self._validation = held_out.batch(self.validation_rows("validation_pairs", len(held_out), rng), rng)
        self.validation_examples = len(self._validation["input_ids"])

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        return MaskedBert(_config(parameters))

    @override
    @classmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        return bert.encoder_title(parameters), _TITLES[parameters["dataset"]]

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as `Pairs.batch` makes them; masks and random segments differ in each epoch."""
        return self.sliced_batches(seed, start, slice(None))

    @override
    def sliced_batches(self, seed: int, start: int, rows: slice) -> Iterator[Batch]:
        for k, indices in shuffled_indices(seed, start, self.train_examples, self.batch_size):
            yield self._pairs.batch(indices, np.random.default_rng([seed, k, _MASKS]), rows)

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of two mean cross-entropies: over predicted tokens, and over pairs."""
        return model(**_inputs_of(model, batch)).loss

    @override
    def loss_terms(self, batch: Batch) -> Tensor:
        """Return the number of predicted tokens, which differs between parts of a batch."""
        return (batch["labels"] != IGNORED).sum()

    @override
    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``loss``, its part ``mlm_loss``, and ``nsp_accuracy``, on fixed pairs with fixed masks."""
        mlm_loss = nsp_loss = 0.0
        predicted = correct = 0
        at_once = max(1, min(_VALIDATION_BATCH, _VALIDATION_TOKENS // self.parameters["sequence_length"]))
        with evaluation_mode(model):
            for rows in in_slices(team.part(self.validation_examples), at_once):
                batch = {name: tensor[rows] for name, tensor in self._validation.items()}
                inputs = _inputs_of(model, batch)
                is_random = inputs["next_sentence_label"]
                output = model(**inputs)
                logits = output.prediction_logits.float()
                mlm_loss += functional.cross_entropy(logits, inputs["labels"], reduction="sum").item()
                predicted += len(logits)
                logits = output.seq_relationship_logits.float()
                nsp_loss += functional.cross_entropy(logits, is_random, reduction="sum").item()
                correct += int((logits.argmax(1) == is_random).sum())
        mlm_total, tokens, nsp_total, right = totals(team, mlm_loss, predicted, nsp_loss, correct)
        mlm_loss, nsp_loss = mlm_total / tokens, nsp_total / self.validation_examples
        return {"loss": mlm_loss + nsp_loss, "mlm_loss": mlm_loss, "nsp_accuracy": right / self.validation_examples}


def _inputs_of(model: nn.Module, batch: Batch) -> Batch:
    """Return the arguments of `MaskedBert.forward`, on its device, for a batch as `Pairs.batch` makes it.

    The predicted tokens are found where the batch lies, which is the CPU: on a GPU the host would have to wait for
    their number, and ``torch.compile`` would break the graph there.
    """
    labels = batch["labels"].flatten()
    positions = (labels != IGNORED).nonzero().squeeze(1)
    return bert.inputs_of(model, {**batch, "positions": positions, "labels": labels[positions]})


def _config(parameters: Mapping[str, Any]) -> bert.BertConfig:
    positions = bert.POSITIONS if parameters["dataset"] == "text" else None
    return bert.encoder_config(parameters, positions=positions)


def _load(parameters: Mapping[str, Any]) -> tuple[SentencePairs | PairsOfShards, SentencePairs | PairsOfShards, str]:
    """Return both splits, and the SHA-256 of the data."""
    size, length = parameters["vocabulary_size"], parameters["sequence_length"]
    if parameters["dataset"] == "docstrings":
        text = corpus.load(size)
        return SentencePairs(text.train, size, length), SentencePairs(text.validation, size, length), text.fingerprint
    manifest = Manifest(_VOCABULARY, length)
    if manifest.vocabulary_size != size:
        raise ValueError(f"vocabulary_size={size}: {manifest.folder} has {manifest.vocabulary_size} word pieces.")
    return PairsOfShards(manifest, "train"), PairsOfShards(manifest, "validation"), manifest.fingerprint
