"""Windows of running text, whose next tokens are to be predicted."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from workflow.bench.data.batches import Batch
from workflow.bench.data.corpus import SEP, Split


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
