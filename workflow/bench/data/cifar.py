"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 colour images of 32 x 32 pixels, 10,000 of them to validate on.

``python -m workflow.bench.data.cifar cifar100`` fetches one into the data folder.  Where its archive lies there
already, that is only checked and unpacked.  Importing this imports neither torch nor torchvision.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.folder import DataNotFound, data_folder
from workflow.bench.support.config import shown_path

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

TITLES: Final = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


class Cifar(NamedTuple):
    """Images, their channels first, and their labels."""

    train: NDArray[np.uint8]  # [50000, 3, 32, 32]
    train_labels: NDArray[np.int64]
    validation: NDArray[np.uint8]  # [10000, 3, 32, 32]
    validation_labels: NDArray[np.int64]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all pixels and labels."""
        digest = hashlib.sha256()
        for array in self:
            digest.update(repr(array.shape).encode())
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()


def version() -> str:
    """Return what fixes the data: torchvision compares every file with the checksum of the one edition there is."""
    return "CIFAR, Python edition, v1"


def load(name: str) -> Cifar:
    """Return ``cifar10`` or ``cifar100``, its files checked against their published checksums.

    Raises `DataNotFound` where a file is missing or damaged.
    """
    kind, root = _kind(name), data_folder()
    command = f"python -m workflow.bench.data.cifar {name} fetches it"
    path = root / kind.base_folder
    if not path.is_dir():
        raise DataNotFound(TITLES[name], path, command)
    try:
        train, validation = (kind(str(root), train=train) for train in (True, False))
    except RuntimeError:  # what torchvision raises where checksums differ
        remedy = f"a file there is missing or damaged: remove that folder, then {command}"
        raise DataNotFound(f"all of {TITLES[name]}", path, remedy) from None
    return Cifar(*_arrays(train), *_arrays(validation))


def fetch(name: str) -> None:
    """Download what is missing of ``cifar10`` or ``cifar100``, check it, and unpack it into the data folder.

    Raises `OSError` without a network or room on the disk, `RuntimeError` where the download is damaged.
    """
    data_folder().mkdir(parents=True, exist_ok=True)
    _kind(name)(str(data_folder()), download=True)


def _kind(name: str) -> type[CIFAR10]:
    from baselines import _torchvision_operators  # noqa: F401  (before torchvision)

    # isort: split
    from torchvision.datasets import CIFAR10, CIFAR100

    return {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]


def _arrays(split: CIFAR10) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return np.ascontiguousarray(split.data.transpose(0, 3, 1, 2)), np.array(split.targets, dtype=np.int64)


def main(arguments: list[str] | None = None) -> int:
    """Fetch CIFAR-10 or CIFAR-100 into the data folder (MKOR_DATA, or data/), checked."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.data.cifar", description=main.__doc__)
    parser.add_argument("dataset", choices=sorted(TITLES))
    name = parser.parse_args(arguments).dataset
    try:
        fetch(name)
    except (OSError, RuntimeError) as problem:
        print(f"{TITLES[name]}: {problem}", file=sys.stderr)
        return 1
    print(f"{TITLES[name]} is in {shown_path(data_folder())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
