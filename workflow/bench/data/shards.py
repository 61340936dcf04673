"""Pre-training pairs that ``python -m workflow.bench.prepare`` made of a folder of text.  Imports no torch.

``<data folder>/pretraining/<vocabulary>-<sequence length>`` holds, for each shard, ``<split>-<number>.tokens.npy``
``[pairs, sequence_length]`` and ``<split>-<number>.pairs.npy`` ``[pairs, 3]`` (the column where the second segment
starts, the number of tokens, and whether the second segment is a random one), all uint16, and ``manifest.json``, which
is written last.  Shards are read where they lie, so that they may be larger than the memory.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.folder import DataNotFound, damaged, data_folder
from workflow.bench.support.config import check, schema

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SPLITS: Final = ("train", "validation")
_NUMBERS: Final = np.dtype(np.uint16)


class Specials(NamedTuple):
    """The numbers of a vocabulary's special tokens."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int


def version() -> str:
    """Return what fixes the data, but for the text, which the fingerprint tells."""
    return f"shards v{FORMAT}"


def folder_of(vocabulary: str, length: int) -> Path:
    """Return where the shards of a vocabulary and a sequence length lie."""
    return data_folder() / "pretraining" / f"{vocabulary}-{length}"


class Shards:
    """The pairs of one split of a folder of shards.

    Raises `DataNotFound` where the folder has no manifest, or a shard of it is not there as the manifest says.
    """

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._folder, self._vocabulary_size = manifest.folder, manifest.vocabulary_size
        self._tokens, self._pairs, self._names = [], [], []
        for shard in manifest.content["shards"][split]:
            tokens, pairs = (_mapped(manifest, f"{shard['name']}.{kind}.npy") for kind in ("tokens", "pairs"))
            shapes = (shard["pairs"], manifest.content["sequence_length"]), (shard["pairs"], 3)
            if (tokens.shape, pairs.shape) != shapes or {tokens.dtype, pairs.dtype} != {_NUMBERS}:
                raise manifest.odd(f"{shard['name']} has not {shard['pairs']} pairs")
            self._names.append(shard["name"])
            self._tokens.append(tokens)
            self._pairs.append(pairs)
        self._ends = np.cumsum([len(pairs) for pairs in self._pairs])
        if not len(self):
            raise manifest.odd(f"it has no {split} pair")

    def __len__(self) -> int:
        """Return the number of pairs."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens ``[n, sequence_length]`` and the three numbers ``[n, 3]`` of the pairs at ``indices``.

        Raises `DataDamaged` where one of these cannot be a pair.
        """
        shard = np.searchsorted(self._ends, indices, side="right")
        tokens = np.empty((len(indices), self._tokens[0].shape[1]), dtype=np.int64)
        pairs = np.empty((len(indices), 3), dtype=np.int64)
        for number in np.unique(shard):
            here = np.flatnonzero(shard == number)
            rows = indices[here] - (self._ends[number] - len(self._pairs[number]))
            tokens[here], pairs[here] = self._tokens[number][rows], self._pairs[number][rows]
        second, lengths, is_random = pairs.T
        # [CLS] a [SEP] b [SEP] is the shortest.
        is_pair = (second > 2) & (second + 1 < lengths) & (lengths <= tokens.shape[1]) & (is_random < 2)
        wrong = np.flatnonzero(~is_pair | (tokens >= self._vocabulary_size).any(axis=1))
        if len(wrong):
            number, first = shard[wrong[0]], indices[wrong[0]]
            row = first - (self._ends[number] - len(self._pairs[number]))
            raise damaged("pre-training shards", self._folder / self._names[number], f"pair {row} is none")
        return tokens, pairs


class Manifest:
    """What a folder of shards says of itself.

    Raises `DataNotFound` where it is not there or is not for this vocabulary and length, with the command that makes
    it.
    """

    def __init__(self, vocabulary: str, length: int) -> None:
        self.folder = folder_of(vocabulary, length)
        self._remedy = (
            "make them with python -m workflow.bench.prepare FOLDER_OF_TEXT "
            f"--vocabulary {vocabulary} --sequence-length {length}"
        )
        try:
            text = (self.folder / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise DataNotFound("pre-training shards", self.folder, self._remedy) from None
        try:
            self.content: dict[str, Any] = json.loads(text)
            check(self.content, schema("shards"), MANIFEST)
            found = tuple(self.content[key] for key in ("format", "vocabulary", "sequence_length"))
            self.specials = Specials(**self.content["specials"])
            self.vocabulary_size: int = self.content["vocabulary_size"]
        except (ValueError, RecursionError) as problem:
            raise self.odd(f"its manifest is damaged: {problem}") from None
        if found != (FORMAT, vocabulary, length):
            raise self.odd(f"its manifest is of format {found[0]}, for {found[1]} and {found[2]} tokens")
        #: SHA-256 of the manifest, which holds those of all shards.
        self.fingerprint = hashlib.sha256(text).hexdigest()

    def odd(self, what: str) -> DataNotFound:
        """Return the error of shards that are not as they should be."""
        return DataNotFound("pre-training shards", f"{self.folder} ({what})", self._remedy)


def _mapped(manifest: Manifest, name: str) -> NDArray[np.uint16]:
    try:
        array: NDArray[np.uint16] = np.load(manifest.folder / name, mmap_mode="r", allow_pickle=False)
    # SyntaxError and TokenError: NumPy reads the header of an array with Python's own parser.
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as problem:
        raise manifest.odd(f"{name}: {problem}") from None
    return array
