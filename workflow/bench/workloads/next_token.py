"""The base of the workloads that predict the next token of English text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data import corpus
from workflow.bench.data.batches import Batch, shuffled_indices
from workflow.bench.data.token_windows import TokenWindows
from workflow.bench.workloads.base import (
    ONE_PROCESS,
    Team,
    Workload,
    evaluation_mode,
    in_slices,
    to_device_of,
    totals,
)

TITLE: Final = "docstrings of scikit-learn and SciPy"
"""The name of the data in tables."""
_VALIDATION_SEED: Final = 0  # every run has the same validation windows
_VALIDATION_TOKENS: Final = 32768  # the most tokens to evaluate at once


class NextToken(Workload):
    """A model of text that returns logits ``[n, length, vocabulary]`` for tokens ``[n, length]``.

    The loss is the cross-entropy of the token that follows. The validation windows are of source files that are not
    trained on; trials of a search have others of these windows.

    Raises:
        ValueError: the text has too few word pieces, or too few validation windows for trials.
        workflow.bench.data.folder.DataNotFound: the packages are not installed.
    """

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        super().__init__(parameters, for_tuning=for_tuning)
        text = corpus.load(parameters["vocabulary_size"])
        self._windows, held_out = (
            TokenWindows(split, parameters["sequence_length"]) for split in (text.train, text.validation)
        )
        self.train_examples = len(self._windows)
        self.data_fingerprint = text.fingerprint

        most = parameters["validation_windows"]
        if for_tuning and len(held_out) <= most:
            raise ValueError(
                f"validation_windows={most} must be fewer than the {len(held_out)} that there are, for trials."
            )
        order = np.random.default_rng(_VALIDATION_SEED).permutation(len(held_out))
        self._validation = held_out.batch(order[most : 2 * most] if for_tuning else order[:most])
        self.validation_examples = len(self._validation["input_ids"])

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield ``input_ids`` and ``labels``, each ``[batch_size, sequence_length]``."""
        for _, indices in shuffled_indices(seed, start, self.train_examples, self.batch_size):
            yield self._windows.batch(indices)

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the next token."""
        inputs = to_device_of(model, batch)
        logits = model(inputs["input_ids"])
        return functional.cross_entropy(logits.flatten(0, 1).float(), inputs["labels"].flatten())

    @override
    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``loss``, and ``accuracy``, the share of next tokens that have the highest score."""
        loss, correct = 0.0, 0
        at_once = max(1, _VALIDATION_TOKENS // self.parameters["sequence_length"])
        with evaluation_mode(model):
            for rows in in_slices(team.part(self.validation_examples), at_once):
                inputs = to_device_of(model, {name: tensor[rows] for name, tensor in self._validation.items()})
                logits, labels = model(inputs["input_ids"]).flatten(0, 1).float(), inputs["labels"].flatten()
                loss += functional.cross_entropy(logits, labels, reduction="sum").item()
                correct += int((logits.argmax(1) == labels).sum())
        total, right = totals(team, loss, correct)
        tokens = self._validation["labels"].numel()
        return {"loss": total / tokens, "accuracy": right / tokens}
