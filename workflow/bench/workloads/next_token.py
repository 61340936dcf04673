"""The base of the workloads that predict the next token of English text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data import corpus
from workflow.bench.data.batches import Batch, shuffled_indices
from workflow.bench.data.corpus import SEP, Split
from workflow.bench.workloads.base import ONE_PROCESS, Team, Workload, evaluation_mode, in_slices, to_device_of, totals

TITLE: Final = "docstrings of scikit-learn and SciPy"
"""The name of the data in tables."""
_VALIDATION_SEED: Final = 0  # every run has the same validation windows
_VALIDATION_TOKENS: Final = 32768  # the most tokens to evaluate at once


class TokenWindows:
    """A split of a corpus, cut into adjacent windows; `SEP` follows every docstring.

    Window n has the tokens ``n * length`` to ``(n + 1) * length``, both included: its last token is the first one of
    the next window, which predicts nothing there. Tokens that do not fill the last window are left out.
    """

    def __init__(self, split: Split, length: int) -> None:
        ends = split.sentences[split.docstrings[1:]]  # in tokens
        self._text: NDArray[np.uint16] = np.insert(split.tokens, ends, SEP)
        self._length = length

    def __len__(self) -> int:
        """Return the number of windows."""
        return (len(self._text) - 1) // self._length

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """Return ``input_ids`` and ``labels``, each ``[n, length]``; a label is the token that follows its input."""
        columns = indices[:, None] * self._length + np.arange(self._length + 1)
        tokens = torch.from_numpy(self._text[columns].astype(np.int64))
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


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

        rng = np.random.default_rng(_VALIDATION_SEED)
        self._validation = held_out.batch(self.validation_rows("validation_windows", len(held_out), rng))
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
