"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 color images of 32 x 32 pixels, 10,000 of them for validation.

``python -m workflow.bench.data.cifar cifar100`` downloads one of them into the data folder. If its archive lies there
already, it is only checked and unpacked. Importing this module imports neither torch nor torchvision.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import numpy as np

from workflow.bench.data.arrays import LabelledImages
from workflow.bench.data.folder import DataNotFound, data_folder
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError, shown_path

TITLES: Final = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
"""Titles by name."""
SHAPE: Final = (3, 32, 32)
"""An image's channels, height and width."""
TRAIN_EXAMPLES: Final = 50000


def load(name: str) -> LabelledImages:
    """Return ``cifar10`` or ``cifar100`` after checking its files against their published checksums.

    The training images are ``[50000, 3, 32, 32]``, the validation images ``[10000, 3, 32, 32]``.

    Raises:
        DataNotFound: a file is missing or damaged.
    """
    kind, root = _torchvision_class(name), data_folder()
    command = f"python -m workflow.bench.data.cifar {name}"
    path = root / kind.base_folder
    if not path.is_dir():
        raise DataNotFound(TITLES[name], path, f"{command} downloads it")
    arrays = []
    for train in (True, False):
        try:
            split = kind(str(root), train=train)
        except RuntimeError:  # torchvision's error for a checksum that differs
            remedy = f"a file there is missing or damaged: remove that folder, then {command} downloads it"
            raise DataNotFound(f"all of {TITLES[name]}", path, remedy) from None
        # torchvision puts the channels last.
        arrays += [np.ascontiguousarray(split.data.transpose(0, 3, 1, 2)), np.array(split.targets, dtype=np.int64)]
    return LabelledImages(*arrays)


def _torchvision_class(name: str) -> Any:
    from workflow.bench.data.vision import datasets

    return {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]


def _run(options: argparse.Namespace) -> None:
    """Download the missing files, check them, and unpack them."""
    title = TITLES[options.dataset]
    try:
        data_folder().mkdir(parents=True, exist_ok=True)
        _torchvision_class(options.dataset)(str(data_folder()), download=True)
    except (OSError, RuntimeError) as problem:  # no network, a full disk, or a checksum that differs
        raise ConfigError(f"{title}: {problem}") from None
    print(f"{title} is in {shown_path(data_folder())}")


def main(arguments: list[str] | None = None) -> int:
    """Download CIFAR-10 or CIFAR-100 into the data folder (MKOR_DATA, or data/) and check it."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.data.cifar", description=main.__doc__)
    parser.add_argument("dataset", choices=sorted(TITLES))
    return run_command(parser, _run, arguments)


if __name__ == "__main__":
    sys.exit(main())
