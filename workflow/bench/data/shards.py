"""Pre-training pairs that ``python -m workflow.bench.prepare`` made from a folder of text. Imports no torch.

``<data folder>/pretraining/<vocabulary>-<sequence length>`` holds two files for each shard, both uint16:

- ``<split>-<number>.tokens.npy``, ``[pairs, sequence_length]``
- ``<split>-<number>.pairs.npy``, ``[pairs, 3]``: the column in which the second segment starts, the number of tokens,
  and whether the second segment is a random one

and ``manifest.json``, which is written last. Shards are memory-mapped, so they may be larger than the memory.
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
"""Format version; increase it, and the version of the data set, whenever the files change. Others cannot be read."""
MANIFEST: Final = "manifest.json"
SPLITS: Final = ("train", "validation")
_DTYPE: Final = np.dtype(np.uint16)


class Specials(NamedTuple):
    """The ids of a vocabulary's special tokens."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int


def shards_folder(vocabulary: str, length: int) -> Path:
    """Return the folder of the shards of a vocabulary and a sequence length."""
    return data_folder() / "pretraining" / f"{vocabulary}-{length}"


class Shards:
    """The pairs of one split of a folder of shards.

    Raises:
        DataNotFound: a shard does not agree with the manifest, or the split has no pair.
    """

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._folder, self._vocabulary_size = manifest.folder, manifest.vocabulary_size
        self._tokens, self._pairs, self._names = [], [], []
        for shard in manifest.content["shards"][split]:
            tokens, pairs = (_mapped(manifest, f"{shard['name']}.{kind}.npy") for kind in ("tokens", "pairs"))
            shapes = (shard["pairs"], manifest.content["sequence_length"]), (shard["pairs"], 3)
            if (tokens.shape, pairs.shape) != shapes or {tokens.dtype, pairs.dtype} != {_DTYPE}:
                raise manifest.unusable(f"{shard['name']} does not have {shard['pairs']} pairs")
            self._names.append(shard["name"])
            self._tokens.append(tokens)
            self._pairs.append(pairs)
        self._ends = np.cumsum([len(pairs) for pairs in self._pairs])
        if not len(self):
            raise manifest.unusable(f"it has no {split} pair")

    def __len__(self) -> int:
        """Return the number of pairs."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens ``[n, sequence_length]`` and the three numbers ``[n, 3]`` of the pairs at ``indices``.

        Raises:
            DataDamaged: the numbers or tokens of one of them are impossible.
        """
        # With shards of 10 and 20 pairs, ends are [10, 30], and pair 12 is row 2 of shard 1.
        shard_of = np.searchsorted(self._ends, indices, side="right")
        tokens = np.empty((len(indices), self._tokens[0].shape[1]), dtype=np.int64)
        pairs = np.empty((len(indices), 3), dtype=np.int64)
        for shard in np.unique(shard_of):
            chosen = np.flatnonzero(shard_of == shard)
            rows = indices[chosen] - self._start(shard)
            tokens[chosen], pairs[chosen] = self._tokens[shard][rows], self._pairs[shard][rows]
        second, lengths, is_random = pairs.T
        # The shortest pair is [CLS] a [SEP] b [SEP].
        is_pair = (second > 2) & (second + 1 < lengths) & (lengths <= tokens.shape[1]) & (is_random < 2)
        wrong = np.flatnonzero(~is_pair | (tokens >= self._vocabulary_size).any(axis=1))
        if len(wrong):
            shard, index = shard_of[wrong[0]], indices[wrong[0]]
            reason = f"row {index - self._start(shard)} is not a pair"
            raise damaged("pre-training shards", self._folder / self._names[shard], reason)
        return tokens, pairs

    def _start(self, shard: int) -> int:
        """Return the index of a shard's first pair."""
        return int(self._ends[shard]) - len(self._pairs[shard])


class Manifest:
    """The manifest of a folder of shards.

    Raises:
        DataNotFound: it is missing, damaged, or for another vocabulary or length; the message has the command that
            makes it.
    """

    def __init__(self, vocabulary: str, length: int) -> None:
        self.folder = shards_folder(vocabulary, length)
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
            facts = tuple(self.content[key] for key in ("format", "vocabulary", "sequence_length"))
            self.specials = Specials(**self.content["specials"])
            self.vocabulary_size: int = self.content["vocabulary_size"]
        except (ValueError, RecursionError) as problem:
            raise self.unusable(f"its manifest is damaged: {problem}") from None
        if facts != (FORMAT, vocabulary, length):
            raise self.unusable(f"its manifest has format {facts[0]}, for {facts[1]} and {facts[2]} tokens")
        self.fingerprint = hashlib.sha256(text).hexdigest()
        """SHA-256 of the manifest, which contains those of all shards."""

    def unusable(self, problem: str) -> DataNotFound:
        """Return the error of a folder of shards that cannot be used."""
        return DataNotFound("pre-training shards", f"{self.folder} ({problem})", self._remedy)


def _mapped(manifest: Manifest, name: str) -> NDArray[np.uint16]:
    try:
        array: NDArray[np.uint16] = np.load(manifest.folder / name, mmap_mode="r", allow_pickle=False)
    # NumPy parses the header of an array as Python source, hence SyntaxError and TokenError.
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as problem:
        raise manifest.unusable(f"{name}: {problem}") from None
    return array
