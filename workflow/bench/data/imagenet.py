"""ImageNet (ILSVRC 2012) as a folder an image class: ``imagenet/train/<class>/*.JPEG`` and ``imagenet/val/<class>/*``.

Importing this imports neither torch nor torchvision.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from workflow.bench.data.folder import DataNotFound, data_folder

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

CLASSES: Final = 1000
_REMEDY: Final = (
    "get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from image-net.org "
    '(after registration) into that folder; torchvision.datasets.ImageNet(folder, split), split "train" and "val", '
    "unpacks them to train/<class>/ and val/<class>/"
)


class ImageNet(NamedTuple):
    """Both splits, as lists of files and labels: images are read when they are asked for."""

    train: ImageFolder
    validation: ImageFolder

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the names of all files, their classes among them, not of 140 GB of pixels."""
        digest = hashlib.sha256()
        for split in self:
            for path, label in split.samples:
                digest.update(f"{Path(path).relative_to(split.root).as_posix()} {label}\n".encode())
        return digest.hexdigest()


def version() -> str:
    """Return what fixes the data."""
    return "ILSVRC 2012, v1"


def load() -> ImageNet:
    """Return the files of both splits.

    Raises `DataNotFound` where there are none, or not those of the same thousand classes.
    """
    from baselines import _torchvision_operators  # noqa: F401  (before torchvision)

    # isort: split
    from torchvision.datasets import ImageFolder

    root = data_folder() / "imagenet"
    try:
        found = ImageNet(*(ImageFolder(str(root / split)) for split in ("train", "val")))
    except FileNotFoundError:  # what torchvision raises, also where a class has no image
        raise DataNotFound("ImageNet", root, _REMEDY) from None
    for split in found:
        if len(split.classes) != CLASSES:
            number = f"{split.root} has {len(split.classes)} classes"
            raise DataNotFound("all of ImageNet", root, f"{number}; {_REMEDY}")
    if found.train.classes != found.validation.classes:
        raise DataNotFound("all of ImageNet", root, f"train and val have other classes; {_REMEDY}")
    return found
