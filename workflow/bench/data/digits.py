"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels, and their labels.

Imports neither torch nor, before `load`, scikit-learn.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.folder import damaged, versions

_LEVELS = 16  # pixels are whole numbers from 0 to 16
_SPLIT_SEED = 0  # of the split, which every run shares


class Digits(NamedTuple):
    """Images in [0, 1], split once and for all: four in five to train on."""

    train: NDArray[np.float32]  # [1437, 8, 8]
    validation: NDArray[np.float32]  # [360, 8, 8]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of both splits' pixels."""
        digest = hashlib.sha256()
        for images in self:
            digest.update(repr(images.shape).encode())
            digest.update(np.ascontiguousarray(images, dtype="<f4").tobytes())
        return digest.hexdigest()


def version() -> str:
    """Return what fixes the data."""
    return versions("scikit-learn", recipe="v1")


def load() -> Digits:
    """Return the images, split.  Raises `folder.DataDamaged` where a pixel is out of range or not a number."""
    from sklearn.datasets import load_digits

    images = (load_digits().images / _LEVELS).astype(np.float32)
    # One pixel that is no number would spoil every weight, and look like an optimizer's divergence.
    wrong = ~((images >= 0) & (images <= 1)).all(axis=(1, 2))
    if wrong.any():
        what = f"image {wrong.argmax()} has pixels that are not from 0 to {_LEVELS}"
        raise damaged("scikit-learn's digits", "digits.csv.gz of this Python's scikit-learn", what)
    return Digits(*_split(images))


def labels() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which digits `load`'s images show: those of the training images, and those of the validation images."""
    from sklearn.datasets import load_digits

    train, validation = _split(load_digits().target.astype(np.int64))
    return train, validation


def _split(values: NDArray) -> list[NDArray]:
    """Return the part of ``values`` to train on, and the part to validate on."""
    # The legacy generator, whose numbers NumPy never changes. A stride would not do: the digits come in turn.
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(values))
    return np.split(values[order], [len(values) * 4 // 5])
