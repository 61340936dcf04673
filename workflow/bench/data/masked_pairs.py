"""Pairs of text segments for BERT pre-training, and the masking of their tokens (Devlin et al., NAACL 2019)."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from workflow.bench.data.batches import Batch
from workflow.bench.data.corpus import CLS, MASK, PAD, SEP, UNKNOWN, Split
from workflow.bench.data.shards import Manifest, Shards, Specials

IGNORED: Final = -100
"""The label of a position that the masked language model's loss leaves out."""
NEXT, RANDOM = 0, 1
"""The labels of a second segment that follows the first one in the text, and of a random one."""

_PREDICTED: Final = 0.15  # share of a text's tokens
_MAX_PREDICTED_OF_32: Final = 5  # the most predicted tokens per 32 tokens of a sequence from shards
_MASKED, _REPLACED = 0.8, 0.1  # shares of the predicted tokens; the rest are left unchanged

_CORPUS_SPECIALS: Final = Specials(pad=PAD, unknown=UNKNOWN, cls=CLS, sep=SEP, mask=MASK)
_ALL: Final = slice(None)
_DRAWN_AT_ONCE: Final = 2**14  # numbers


class SentencePairs:
    """Pairs of text segments from a split: one for each boundary between two sentences of a docstring.

    The first segment ends at the boundary. The second one starts there or, half the time, at such a boundary in
    another document. Together they fill ``sequence_length``, each half of it if its docstring is long enough. Neither
    kind of second segment ever starts a docstring, so the first words do not reveal the kind.

    Raises:
        ValueError: fewer than two documents have such a boundary.
    """

    def __init__(self, split: Split, vocabulary_size: int, sequence_length: int) -> None:
        self._tokens = split.tokens.astype(np.int64)
        self._vocabulary_size = vocabulary_size
        self._length = sequence_length

        # The sentences that do not start a docstring; pair i has its boundary before sentence[i].
        follows = np.ones(len(split.sentences) - 1, dtype=bool)
        follows[split.docstrings[:-1]] = False
        sentence = np.flatnonzero(follows)
        docstring = np.searchsorted(split.docstrings, sentence, side="right") - 1
        document = np.searchsorted(split.documents, docstring, side="right") - 1
        ends = split.sentences[split.docstrings].astype(np.int64)  # of docstrings, in tokens
        self._boundary = split.sentences[sentence].astype(np.int64)
        self._low, self._high = ends[docstring], ends[docstring + 1]
        # Pairs of one document have consecutive indices, from same_low[i] to same_high[i] - 1 for pair i.
        self._same_low = np.searchsorted(document, document, side="left")
        self._same_high = np.searchsorted(document, document, side="right")
        if len(np.unique(document)) < 2:
            raise ValueError("next-sentence prediction needs two documents of several sentences.")

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._boundary)

    def batch(self, indices: NDArray[np.int64], rng: np.random.Generator, rows: slice = _ALL) -> Batch:
        """Return the pairs at ``indices[rows]``, masked, as BERT's inputs and labels.

        Random numbers are drawn for all ``indices``, so that the slices of a batch together equal the whole batch.

        Returns:
            int64 tensors: ``input_ids``, ``token_type_ids``, ``attention_mask`` and ``labels``
            ``[n, sequence_length]``, and ``next_sentence_label`` ``[n]``.
        """
        is_random = rng.random(len(indices)) < 0.5
        second = np.where(is_random, self._in_another_document(indices, rng), indices)
        tokens, segments = self._assemble(indices[rows], second[rows])
        shape = (len(indices), self._length)
        is_text = (tokens != CLS) & (tokens != SEP) & (tokens != PAD)
        draw = np.where(is_text, uniform_rows(rng, shape, rows, np.dtype(np.float64)), 2.0)
        # Each token with probability 0.15; if that would be none, the one with the lowest number.
        predicted = draw <= np.maximum(_PREDICTED, draw.min(axis=1, keepdims=True))
        replaced = _replaced(tokens, predicted, rng, shape, rows, _CORPUS_SPECIALS, self._vocabulary_size)
        return _batch(tokens, segments, is_random[rows], predicted, replaced)

    def _in_another_document(self, indices: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Return for each index one of another document, all equally likely."""
        # Drawn from the indices without the document's own, low to high - 1, which are then skipped.
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
        before = self._boundary[first] - self._low[first]
        after = self._high[second] - self._boundary[second]
        in_first = np.minimum(before, np.maximum(room // 2, room - after))
        in_second = np.minimum(after, room - in_first)

        column = np.arange(self._length)
        middle = (in_first + 1)[:, None]  # the column of the first [SEP]
        last = middle + (in_second + 1)[:, None]  # the column of the second [SEP]
        source = np.where(
            column < middle,
            self._boundary[first][:, None] + column - middle,
            self._boundary[second][:, None] + column - middle - 1,
        )
        # Columns of special tokens and padding may point outside the text; they are overwritten.
        tokens = self._tokens.take(source, mode="clip")
        tokens[:, 0] = CLS
        tokens[(column == middle) | (column == last)] = SEP
        tokens[column > last] = PAD
        return tokens, np.where(column > last, 0, np.where(column > middle, 2, 1))


class PairsOfShards:
    """Pairs of text segments that `workflow.bench.prepare` made, masked anew in each batch.

    15 % of a pair's text is predicted, rounded: at least one token, and at most 5 per 32 tokens of a sequence, which
    is 80 of 512 and 20 of 128 as in BERT's own script.
    """

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._shards = Shards(manifest, split)
        self._specials = manifest.specials
        self._vocabulary_size = manifest.vocabulary_size

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._shards)

    def batch(self, indices: NDArray[np.int64], rng: np.random.Generator, rows: slice = _ALL) -> Batch:
        """Return the pairs at ``indices[rows]``, masked, as `SentencePairs.batch` does."""
        tokens, pairs = self._shards.rows(indices[rows])
        shape = (len(indices), tokens.shape[1])
        second, lengths, is_random = pairs.T[:, :, None]
        column = np.arange(tokens.shape[1])
        segments = np.where(column >= lengths, 0, np.where(column >= second, 2, 1))
        is_text = (segments > 0) & (tokens != self._specials.cls) & (tokens != self._specials.sep)
        draw = np.where(is_text, uniform_rows(rng, shape, rows, np.dtype(np.float32)), np.float32(2))
        # A row's ``number`` text tokens with the lowest random numbers are predicted.
        share = np.rint(_PREDICTED * is_text.sum(axis=1)).astype(np.int64)
        number = np.clip(share, 1, _MAX_PREDICTED_OF_32 * tokens.shape[1] // 32)
        highest = np.take_along_axis(np.sort(draw, axis=1), number[:, None] - 1, axis=1)
        predicted = is_text & (draw <= highest)
        replaced = _replaced(tokens, predicted, rng, shape, rows, self._specials, self._vocabulary_size)
        return _batch(tokens, segments, is_random[:, 0] > 0, predicted, replaced)


def _replaced(
    tokens: NDArray[np.int64],
    predicted: NDArray[np.bool_],
    rng: np.random.Generator,
    shape: tuple[int, int],
    rows: slice,
    specials: Specials,
    vocabulary_size: int,
) -> NDArray[np.int64]:
    """Return ``tokens`` with 80 % of the predicted ones masked, 10 % replaced by word pieces, and 10 % unchanged.

    Word pieces are drawn from the ids after the special tokens. They are the last numbers that a batch draws.
    """
    fate = uniform_rows(rng, shape, rows, np.dtype(np.float64))
    pieces = last_integer_rows(rng, max(specials) + 1, vocabulary_size, shape, rows)
    masked = np.where(predicted & (fate < _MASKED), specials.mask, tokens)
    return np.where(predicted & (fate >= _MASKED) & (fate < _MASKED + _REPLACED), pieces, masked)


def uniform_rows(rng: np.random.Generator, shape: tuple[int, int], rows: slice, dtype: np.dtype) -> NDArray:
    """Return ``rng.random(shape, dtype)[rows]``, and leave ``rng`` as that would, without drawing the other rows.

    rng: a generator with PCG64, NumPy's default, which can be advanced.
    dtype: float64 or float32.
    """
    number, length = shape
    first, last, _ = rows.indices(number)
    _skip(rng, first * length, dtype)
    drawn: NDArray = rng.random((last - first, length), dtype=dtype.type)
    _skip(rng, (number - last) * length, dtype)
    return drawn


def _skip(rng: np.random.Generator, numbers: int, dtype: np.dtype) -> None:
    """Leave ``rng`` as ``rng.random(numbers, dtype)`` would."""
    generator = rng.bit_generator
    assert isinstance(generator, np.random.PCG64)
    if not numbers:
        return
    if dtype == np.float32:
        # PCG64 makes 64 bits at a time and keeps the second half for the next number of 32 bits.
        if generator.state["has_uint32"]:
            rng.random(dtype=np.float32)
            numbers -= 1
        generator.advance(numbers // 2)  # drops the half that is kept, of which there is none
        if numbers % 2:
            rng.random(dtype=np.float32)
    else:
        kept = generator.state
        generator.advance(numbers)
        # A number of 64 bits leaves the half that is kept for later.
        generator.state = {**kept, "state": generator.state["state"]}


def last_integer_rows(
    rng: np.random.Generator, low: int, high: int, shape: tuple[int, int], rows: slice
) -> NDArray[np.int64]:
    """Return ``rng.integers(low, high, shape)[rows]``; ``rng`` must not be used afterwards.

    The rows before cannot be skipped, because an integer takes as many random numbers as its rejections need. They are
    drawn a few at a time, which stay in the processor's cache.
    """
    number, length = shape
    first, last, _ = rows.indices(number)
    at_once = max(1, _DRAWN_AT_ONCE // length)
    for row in range(0, first, at_once):
        rng.integers(low, high, (min(at_once, first - row), length))
    return rng.integers(low, high, (last - first, length))


def _batch(
    tokens: NDArray[np.int64],
    segments: NDArray,
    is_random: NDArray[np.bool_],
    predicted: NDArray[np.bool_],
    inputs: NDArray[np.int64],
) -> Batch:
    return {
        "input_ids": torch.from_numpy(inputs),
        "token_type_ids": torch.from_numpy((segments == 2).astype(np.int64)),
        "attention_mask": torch.from_numpy((segments > 0).astype(np.int64)),
        "labels": torch.from_numpy(np.where(predicted, tokens, IGNORED)),
        "next_sentence_label": torch.from_numpy(np.where(is_random, RANDOM, NEXT)),
    }
