"""Texts as what BERT reads: rows of token numbers, and where segments begin and end.  Imports no torch."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import corpus
from workflow.bench.data.corpus import CLS, PAD, SEP
from workflow.bench.data.folder import DataDamaged, DataNotFound, data_folder, read_arrays
from workflow.bench.support.files import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_RECIPE: Final = "v1"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Features:
    """Examples, a row each: ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``, then padding."""

    tokens: NDArray[np.uint16]
    """``[n, sequence_length]``."""
    second: NDArray[np.uint16]
    """The column in which the second segment starts, ``[n]``; where the padding starts if there is none."""
    lengths: NDArray[np.uint16]
    """Tokens before the padding, ``[n]``."""
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
        """Return what `from_arrays` takes."""
        return {f"{prefix}_{field.name}": getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, prefix: str, arrays: Mapping[str, NDArray]) -> Features:
        """Return the features that `arrays` gave out."""
        return cls(**{field.name: arrays[f"{prefix}_{field.name}"] for field in fields(cls)})


class Examples(NamedTuple):
    """Both splits of a task."""

    train: Features
    validation: Features

    def arrays(self) -> dict[str, NDArray]:
        """Return what `from_arrays` takes."""
        return {**self.train.arrays("train"), **self.validation.arrays("validation")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> Examples:
        """Return the examples that `arrays` gave out."""
        return cls(Features.from_arrays("train", arrays), Features.from_arrays("validation", arrays))


def pack(segments: Iterable[tuple[Sequence[int], Sequence[int] | None]], labels: NDArray, length: int) -> Features:
    """Return features of segments that are tokens already; what does not fit in ``length`` is cut off their end."""
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
    """Return the features of texts, or of pairs of texts, the longer one cut first where a pair is too long."""
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
        starts[row] = lengths[row] - sum(encoding.type_ids)
    return Features(tokens, starts, lengths, labels)


def fingerprint(arrays: Mapping[str, NDArray]) -> str:
    """Return the SHA-256 of named arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.kind}{array.dtype.itemsize} {array.shape}\n".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def cached(
    name: str, settings: Mapping[str, object], sources: Sequence[Path], make: Callable[[], dict[str, NDArray]]
) -> dict[str, NDArray]:
    """Return what ``make`` returns, from the data folder if it was made there before with the same settings.

    sources: the files, or folders of files, that it is made of; one with another size or date makes it anew.  A
    folder that cannot be written is no error.
    """
    stamps = [(str(path), status.st_size, status.st_mtime_ns) for path in sources for status in [path.stat()]]
    key = json.dumps([_RECIPE, version("tokenizers"), dict(settings), stamps], sort_keys=True)
    path = data_folder() / "prepared" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    try:
        return read_arrays(path)
    except FileNotFoundError:
        pass
    except DataDamaged as problem:
        _log.warning("%s; it is made anew", problem)
    arrays = make()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as problem:
        _log.warning("%s cannot be kept, each job makes it anew: %s", path, problem.strerror)
    return arrays


class Vocabulary:
    """A published BERT vocabulary, of ``<data folder>/bert-uncased/vocab.txt`` or ``bert-cased``.

    Raises `DataNotFound` where the file is not there or is no such vocabulary, `ValueError` where ``size`` is given and
    it has not as many word pieces.
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
            why = f"it is no text in UTF-8 at byte {problem.start}"
            raise DataNotFound(f"{name}'s vocabulary", path, f"{why}; {remedy}") from None
        missing = [piece for piece in corpus.SPECIAL_TOKENS if piece not in self.pieces]
        if missing:
            raise DataNotFound(f"{name}'s vocabulary", path, f"{missing[0]} is not in the file; {remedy}")
        if size is not None and len(self.pieces) != size:
            raise ValueError(f"vocabulary_size={size}: {path} has {len(self.pieces)} word pieces.")

    def special(self) -> tuple[int, ...]:
        """Return the numbers of PAD, UNKNOWN, CLS, SEP and MASK."""
        return tuple(self.pieces.index(piece) for piece in corpus.SPECIAL_TOKENS)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which sets [CLS] and [SEP]."""
        from tokenizers import processors

        tokenizer = corpus.tokenizer(self.pieces, lowercase=not self._cased)
        _, _, cls, sep, _ = self.special()
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
        return tokenizer
