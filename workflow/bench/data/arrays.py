"""Arrays of data sets: digests that are the same on every machine, and images with labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class LabelledImages(NamedTuple):
    """Images ``[n, channels, height, width]`` and their labels ``[n]``, in two splits."""

    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    validation: NDArray[np.uint8]
    validation_labels: NDArray[np.int64]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all pixels and labels."""
        return digest(self)


def digest(arrays: Iterable[NDArray]) -> str:
    """Return the SHA-256 of the shapes and contents of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(repr(array.shape).encode())
        total.update(little_endian(array).tobytes())
    return total.hexdigest()


def little_endian(array: NDArray) -> NDArray:
    """Return an array with its numbers in little-endian byte order; itself if they are."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
