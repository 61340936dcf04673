"""scikit-learn's handwritten digits: 1,797 gray images of 8 x 8 pixels, and their labels.

Importing this module imports neither torch nor scikit-learn.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.arrays import digest
from workflow.bench.data.folder import damaged

SHAPE: Final = (1, 8, 8)
"""An image's channels, height and width."""
TRAIN_EXAMPLES: Final = 1437

_LEVELS = 16  # pixels are integers from 0 to 16
_SPLIT_SEED = 0  # every run has the same split


class Digits(NamedTuple):
    """Images in [0, 1]; four in five are for training, the same ones in every run."""

    train: NDArray[np.float32]
    """``[1437, 8, 8]``"""
    validation: NDArray[np.float32]
    """``[360, 8, 8]``"""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of both splits' pixels."""
        return digest(self)


def load() -> Digits:
    """Return the images, split.

    Raises:
        DataDamaged: a pixel is out of range or not a number.
    """
    from sklearn.datasets import load_digits

    images = (load_digits().images / _LEVELS).astype(np.float32)
    # A single NaN pixel would spoil every weight and look as if the optimizer had diverged.
    wrong = ~((images >= 0) & (images <= 1)).all(axis=(1, 2))
    if wrong.any():
        reason = f"image {wrong.argmax()} has pixels that are not from 0 to {_LEVELS}"
        raise damaged("scikit-learn's digits", "digits.csv.gz of this Python's scikit-learn", reason)
    return Digits(*_split(images))


def labels() -> list[NDArray[np.int64]]:
    """Return the digit that each image shows: of the training images, and of the validation images of `load`."""
    from sklearn.datasets import load_digits

    return _split(load_digits().target.astype(np.int64))


def _split(values: NDArray) -> list[NDArray]:
    """Return the training part and the validation part of ``values``."""
    # NumPy never changes the numbers of the legacy generator. A random order is needed because the file lists the
    # digits in turn: every fifth image would show two digits only.
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(values))
    return np.split(values[order], [len(values) * 4 // 5])
