"""Texts as BERT's inputs: rows of token ids with the borders of their segments. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import corpus
from workflow.bench.data.arrays import load_or_make
from workflow.bench.data.corpus import CLS, PAD, SEP
from workflow.bench.data.folder import DataNotFound, data_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HIGHEST_SCORE: Final = 5.0
"""The largest similarity score, as in STS-B; the smallest is 0."""

_RECIPE: Final = "v1"

P = TypeVar("P")


@dataclass(frozen=True)
class Features:
    """Examples, one a row: ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``, then padding."""

    tokens: NDArray[np.uint16]
    """``[n, sequence_length]``."""
    second: NDArray[np.uint16]
    """``[n]``, the column in which the second segment starts; if there is none, the column of the first padding."""
    lengths: NDArray[np.uint16]
    """``[n]``, the number of tokens before the padding."""
    labels: NDArray
    """``[n]``: classes (int64) or scores (float32); ``[n, 2]``: first and last column of the answer (int64)."""

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.lengths)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Features:
        """Return the examples at ``rows``."""
        return Features(self.tokens[rows], self.second[rows], self.lengths[rows], self.labels[rows])

    def inputs(self) -> dict[str, NDArray[np.int64]]:
        """Return ``input_ids``, ``token_type_ids`` and ``attention_mask``, each ``[n, longest of these examples]``."""
        # No longer than the longest of these: the cost of attention grows with the square of the length.
        column = np.arange(int(self.lengths.max()))
        is_text = column < self.lengths[:, None]
        return {
            "input_ids": self.tokens[:, : len(column)].astype(np.int64),
            "token_type_ids": (is_text & (column >= self.second[:, None])).astype(np.int64),
            "attention_mask": is_text.astype(np.int64),
        }


@dataclass(frozen=True)
class Examples:
    """Both splits of a task."""

    train: Features
    validation: Features


@dataclass(frozen=True)
class Questions:
    """Both splits of a task whose answers lie inside a context; a feature is a question and a window of its context.

    Labels are the columns of the answer's first and last token.
    """

    train: Features
    validation: Features
    question: NDArray[np.int64]
    """``[features]``, rising: the question that each validation feature belongs to."""
    offsets: NDArray[np.int32]
    """``[features, length, 2]``: first character, and last one plus 1, of each token of a validation feature in its
    context; equal, such as (0, 0), for tokens outside the context."""
    texts: NDArray[np.uint8]
    """What `packed_texts` makes of each validation question's context, and of its correct answers."""

    def contexts_and_answers(self) -> tuple[list[str], list[list[str]]]:
        """Return the context of each validation question, and the answers to it, each of which is accepted."""
        contexts, answers = json.loads(self.texts.tobytes())
        return contexts, answers


def packed_texts(contexts: Sequence[str], answers: Sequence[Sequence[str]]) -> NDArray[np.uint8]:
    """Return `Questions.texts`, as bytes of JSON."""
    return np.frombuffer(json.dumps([contexts, answers]).encode(), dtype=np.uint8)


def pack(segments: Iterable[tuple[Sequence[int], Sequence[int] | None]], labels: NDArray, length: int) -> Features:
    """Return the features of segments that are token ids already; the end that exceeds ``length`` is cut off.

    Args:
        segments: for each example its first segment, and its second one or None.
        labels: ``[n]`` or ``[n, 2]``, see `Features.labels`.
        length: tokens of a row.
    """
    rows = []
    for first, after in segments:
        head = [CLS, *first[: length - 2], SEP]
        rows.append((head if after is None else [*head, *after[: length - len(head) - 1], SEP], len(head)))
    return _padded(rows, labels, length)


def from_encodings(encodings: Sequence[Any], labels: NDArray, length: int) -> Features:
    """Return the features of texts that a tokenizer has encoded, cut to ``length`` tokens, with [CLS] and [SEP]."""
    # A token's type id is 1 in the second segment.
    rows = [(encoding.ids, len(encoding.ids) - sum(encoding.type_ids)) for encoding in encodings]
    return _padded(rows, labels, length)


def _padded(rows: Sequence[tuple[Sequence[int], int]], labels: NDArray, length: int) -> Features:
    """Return features of rows of tokens, each with the column in which its second segment starts."""
    tokens = np.full((len(rows), length), PAD, dtype=np.uint16)
    for row, (text, _) in enumerate(rows):
        tokens[row, : len(text)] = text
    seconds, lengths = [start for _, start in rows], [len(text) for text, _ in rows]
    return Features(tokens, np.array(seconds, dtype=np.uint16), np.array(lengths, dtype=np.uint16), labels)


def encode(
    first: Sequence[str], second: Sequence[str] | None, labels: NDArray, vocabulary: Vocabulary, length: int
) -> Features:
    """Return the features of texts or pairs of texts; if a pair is too long, its longer text is cut first."""
    tokenizer = vocabulary.tokenizer()
    tokenizer.enable_truncation(length, strategy="longest_first")
    texts = list(first) if second is None else list(zip(first, second, strict=True))
    return from_encodings(tokenizer.encode_batch(texts), labels, length)


def prepared(
    name: str, kind: type[P], vocabulary: Vocabulary, length: int, files: Sequence[Path], make: Callable[[], P]
) -> P:
    """Return features from the data folder, or make them and keep them there.

    Args:
        name: the first part of the file's name.
        kind: the type that ``make`` returns.
        vocabulary: that of the tokens.
        length: tokens of a row.
        files: the files and folders that they are made of; they are made anew if one has another size or date.
        make: returns the features.
    """
    # Sizes and dates: to read the files only to see that nothing has changed would take as long as to encode them.
    stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in [*files, vocabulary.path]]
    settings = {"vocabulary": vocabulary.name, "length": length}
    key = json.dumps([_RECIPE, version("tokenizers"), settings, stamps], sort_keys=True)
    path = data_folder() / "prepared" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    return load_or_make(path, kind, make)


class Vocabulary:
    """A published BERT vocabulary: ``<data folder>/bert-uncased/vocab.txt`` or ``bert-cased``.

    Args:
        cased: whether it keeps capitals.
        size: the number of word pieces that it must have, if given.

    Raises:
        DataNotFound: the file is missing or is not such a vocabulary.
        ValueError: it does not have ``size`` word pieces.
    """

    def __init__(self, *, cased: bool, size: int | None = None) -> None:
        self.name, self._cased = "bert-cased" if cased else "bert-uncased", cased
        self.path = data_folder() / self.name / "vocab.txt"
        remedy = f"put the vocab.txt of google-bert/bert-{'base' if cased else 'large'}-{self.name[5:]} there"
        try:
            self.pieces = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise DataNotFound(f"{self.name}'s vocabulary", self.path, remedy) from None
        except UnicodeDecodeError as problem:
            reason = f"it is not UTF-8 text at byte {problem.start}"
            raise DataNotFound(f"{self.name}'s vocabulary", self.path, f"{reason}; {remedy}") from None
        missing = [piece for piece in corpus.SPECIAL_TOKENS if piece not in self.pieces]
        if missing:
            reason = f"{missing[0]} is not in the file"
            raise DataNotFound(f"{self.name}'s vocabulary", self.path, f"{reason}; {remedy}")
        if size is not None and len(self.pieces) != size:
            raise ValueError(f"vocabulary_size={size}: {self.path} has {len(self.pieces)} word pieces.")

    def special(self) -> tuple[int, ...]:
        """Return the ids of PAD, UNKNOWN, CLS, SEP and MASK."""
        return tuple(self.pieces.index(piece) for piece in corpus.SPECIAL_TOKENS)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which adds [CLS] and [SEP]."""
        from tokenizers import processors

        tokenizer = corpus.tokenizer(self.pieces, lowercase=not self._cased)
        _, _, cls, sep, _ = self.special()
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
        return tokenizer
