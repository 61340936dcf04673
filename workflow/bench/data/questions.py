"""Questions with an answer inside a context: features, and the texts of the answers. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.features import Features


@dataclass(frozen=True)
class Questions:
    """Both splits; a feature is a question followed by a window of its context.

    Labels are the columns of the answer's first and last token.
    """

    train: Features
    validation: Features
    question: NDArray[np.int64]
    """``[features]``, rising: the question that each validation feature belongs to."""
    offsets: NDArray[np.int32]
    """``[features, length, 2]``: first character, and last one plus 1, of each token of a validation feature in its
    context; equal, such as (0, 0), for tokens outside the context."""
    contexts: tuple[str, ...]
    """The context of each validation question."""
    answers: tuple[list[str], ...]
    """The correct answers to each validation question, each of which is accepted."""

    def arrays(self) -> dict[str, NDArray]:
        """Return the arrays that `from_arrays` takes."""
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
        """Return the questions that `arrays` returned."""
        contexts, answers = json.loads(arrays["texts"].tobytes())
        return cls(
            Features.from_arrays("train", arrays),
            Features.from_arrays("validation", arrays),
            arrays["question"],
            arrays["offsets"],
            tuple(contexts),
            tuple(answers),
        )
