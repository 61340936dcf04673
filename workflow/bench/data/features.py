"""Texts as BERT's inputs: rows of token ids with the borders of their segments. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import array_cache, corpus
from workflow.bench.data.arrays import little_endian
from workflow.bench.data.corpus import CLS, PAD, SEP
from workflow.bench.data.folder import DataNotFound, data_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HIGHEST_SCORE: Final = 5.0
"""The largest similarity score, as in STS-B; the smallest is 0."""

_RECIPE: Final = "v1"

P = TypeVar("P", bound=array_cache.Prepared)


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
        column = np.arange(int(self.lengths.max()))
        is_text = column < self.lengths[:, None]
        return {
            "input_ids": self.tokens[:, : len(column)].astype(np.int64),
            "token_type_ids": (is_text & (column >= self.second[:, None])).astype(np.int64),
            "attention_mask": is_text.astype(np.int64),
        }

    def arrays(self, prefix: str) -> dict[str, NDArray]:
        """Return the arrays that `from_arrays` takes, their names starting with ``prefix``."""
        return {f"{prefix}_{field.name}": getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, prefix: str, arrays: Mapping[str, NDArray]) -> Features:
        """Return the features that `arrays` returned."""
        return cls(**{field.name: arrays[f"{prefix}_{field.name}"] for field in fields(cls)})


class Examples(NamedTuple):
    """Both splits of a task."""

    train: Features
    validation: Features

    def arrays(self) -> dict[str, NDArray]:
        """Return the arrays that `from_arrays` takes."""
        return {**self.train.arrays("train"), **self.validation.arrays("validation")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> Examples:
        """Return the examples that `arrays` returned."""
        return cls(Features.from_arrays("train", arrays), Features.from_arrays("validation", arrays))


def pack(segments: Iterable[tuple[Sequence[int], Sequence[int] | None]], labels: NDArray, length: int) -> Features:
    """Return the features of segments that are token ids already; the end that exceeds ``length`` is cut off.

    Args:
        segments: for each example its first segment, and its second one or None.
        labels: ``[n]`` or ``[n, 2]``, see `Features.labels`.
        length: tokens of a row.
    """
    tokens = np.full((len(labels), length), PAD, dtype=np.uint16)
    second = np.zeros(len(labels), dtype=np.uint16)
    lengths = np.zeros(len(labels), dtype=np.uint16)
    for row, (first, after) in enumerate(segments):
        head = [CLS, *first[: length - 2], SEP]
        text = head if after is None else [*head, *after[: length - len(head) - 1], SEP]
        tokens[row, : len(text)] = text
        second[row], lengths[row] = len(head), len(text)
    return Features(tokens, second, lengths, labels)


def encode(
    first: Sequence[str], second: Sequence[str] | None, labels: NDArray, vocabulary: Vocabulary, length: int
) -> Features:
    """Return the features of texts or pairs of texts; if a pair is too long, its longer text is cut first."""
    tokenizer = vocabulary.tokenizer()
    tokenizer.enable_truncation(length, strategy="longest_first")
    texts = list(first) if second is None else list(zip(first, second, strict=True))
    encodings = tokenizer.encode_batch(texts)
    tokens = np.full((len(texts), length), PAD, dtype=np.uint16)
    starts = np.zeros(len(texts), dtype=np.uint16)
    lengths = np.zeros(len(texts), dtype=np.uint16)
    for row, encoding in enumerate(encodings):
        lengths[row] = len(encoding.ids)
        tokens[row, : lengths[row]] = encoding.ids
        starts[row] = lengths[row] - sum(encoding.type_ids)  # a token's type id is 1 in the second segment
    return Features(tokens, starts, lengths, labels)


def fingerprint(arrays: Mapping[str, NDArray]) -> str:
    """Return the SHA-256 of named arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.kind}{array.dtype.itemsize} {array.shape}\n".encode())
        digest.update(little_endian(array).tobytes())
    return digest.hexdigest()


def prepared(
    name: str, kind: type[P], settings: Mapping[str, object], sources: Sequence[Path], make: Callable[[], P]
) -> P:
    """Return prepared data from the data folder, or make it and keep it there.

    Args:
        name: the first part of the file's name.
        kind: the type that ``make`` returns.
        settings: the settings that the data depends on.
        sources: the files, or folders of files, that it is made of; it is made anew if one has another size or date.
        make: returns the data.
    """
    stamps = [(str(path), status.st_size, status.st_mtime_ns) for path in sources for status in [path.stat()]]
    key = json.dumps([_RECIPE, version("tokenizers"), dict(settings), stamps], sort_keys=True)
    path = data_folder() / "prepared" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    return array_cache.load_or_make(path, kind, make)


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
        name = "bert-cased" if cased else "bert-uncased"
        path = data_folder() / name / "vocab.txt"
        remedy = f"put the vocab.txt of google-bert/bert-{'base' if cased else 'large'}-{name[5:]} there"
        self.name, self._cased, self.path = name, cased, path
        try:
            self.pieces = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise DataNotFound(f"{name}'s vocabulary", path, remedy) from None
        except UnicodeDecodeError as problem:
            reason = f"it is not UTF-8 text at byte {problem.start}"
            raise DataNotFound(f"{name}'s vocabulary", path, f"{reason}; {remedy}") from None
        missing = [piece for piece in corpus.SPECIAL_TOKENS if piece not in self.pieces]
        if missing:
            raise DataNotFound(f"{name}'s vocabulary", path, f"{missing[0]} is not in the file; {remedy}")
        if size is not None and len(self.pieces) != size:
            raise ValueError(f"vocabulary_size={size}: {path} has {len(self.pieces)} word pieces.")

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
