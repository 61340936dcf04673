"""IMDB's film reviews (Maas et al., ACL 2011), positive or negative, from the official folders. Imports no torch.

``<data folder>/aclImdb`` is the unpacked official archive: ``train`` and ``test``, each with the folders ``pos`` and
``neg``, which hold one text file per review. The test split is used for validation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from workflow.bench.data import features
from workflow.bench.data.features import Examples, Features, Vocabulary
from workflow.bench.data.folder import DataNotFound, data_folder

_CLASSES: Final = ("neg", "pos")
_REMEDY: Final = "unpack the official aclImdb_v1.tar.gz of the Large Movie Review Dataset in the data folder"


def load(vocabulary: Vocabulary, length: int) -> Examples:
    """Return the first ``length`` tokens of the reviews as features, from the data folder if they were made before.

    Raises:
        DataNotFound: a folder is missing or has no review.
    """
    root = data_folder() / "aclImdb"
    folders = [root / split / name for split in ("train", "test") for name in _CLASSES]
    for folder in folders:
        if not folder.is_dir():
            raise DataNotFound("IMDB", folder, _REMEDY)

    def make() -> Examples:
        return Examples(*(_encode(root / split, vocabulary, length) for split in ("train", "test")))

    return features.prepared("imdb", Examples, vocabulary, length, folders, make)


def _encode(folder: Path, vocabulary: Vocabulary, length: int) -> Features:
    texts: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(_CLASSES):
        # Sorted, because file systems list files in any order, and the order decides every batch.
        files = sorted((folder / name).glob("*.txt"))
        if not files:
            raise DataNotFound("IMDB", folder / name, f"it has no review; {_REMEDY}")
        for file in files:
            try:
                texts.append(file.read_text(encoding="utf-8").replace("<br />", " "))
            except UnicodeDecodeError as problem:
                raise DataNotFound("IMDB", f"{file} (not UTF-8 text at byte {problem.start})", _REMEDY) from None
            labels.append(label)
    return features.encode(texts, None, np.array(labels, dtype=np.int64), vocabulary, length)
