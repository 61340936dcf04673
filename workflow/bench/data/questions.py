"""Questions with an answer inside a context, as features, and the texts of answers.  Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.features import Features


@dataclass(frozen=True)
class Questions:
    """Both splits, a feature being a window of a context with its question before it.

    The labels are the columns of the answer's first and last token.
    """

    train: Features
    validation: Features
    question: NDArray[np.int64]
    """Which question each validation feature belongs to, ``[features]``, rising."""
    offsets: NDArray[np.int32]
    """Where each token of a validation feature stands in its context, ``[features, length, 2]``; an empty place, such
    as (0, 0), for what is no part of it."""
    contexts: tuple[str, ...]
    """Of each validation question."""
    answers: tuple[list[str], ...]
    """The right answers to each validation question, any of which will do."""

    def arrays(self) -> dict[str, NDArray]:
        """Return what `from_arrays` takes."""
        texts = json.dumps([self.contexts, self.answers]).encode()
        return {
            **self.train.arrays("train"),
            **self.validation.arrays("validation"),
            "question": self.question,
            "offsets": self.offsets,
            "texts": np.frombuffer(texts, dtype=np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> Questions:
        """Return the questions that `arrays` gave out."""
        contexts, answers = json.loads(arrays["texts"].tobytes())
        return cls(
            Features.from_arrays("train", arrays),
            Features.from_arrays("validation", arrays),
            arrays["question"],
            arrays["offsets"],
            tuple(contexts),
            tuple(answers),
        )
