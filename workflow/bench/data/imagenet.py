"""ImageNet (ILSVRC 2012), one folder per class: ``imagenet/train/<class>/*.JPEG`` and ``imagenet/val/<class>/*``.

Importing this module imports neither torch nor torchvision.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from workflow.bench.data.folder import DataNotFound, data_folder

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

DATASETS: Final = ("imagenet",)

CLASSES: Final = 1000
_REMEDY: Final = (
    "get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from image-net.org "
    '(after registration) into that folder; torchvision.datasets.ImageNet(folder, split), split "train" and "val", '
    "unpacks them to train/<class>/ and val/<class>/"
)


class ImageNet(NamedTuple):
    """Both splits as lists of files and labels; an image is read when it is indexed."""

    train: ImageFolder
    validation: ImageFolder

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the names and classes of all files, since the pixels are 140 GB."""
        digest = hashlib.sha256()
        for split in self:
            for path, label in split.samples:
                digest.update(f"{Path(path).relative_to(split.root).as_posix()} {label}\n".encode())
        return digest.hexdigest()


def version() -> str:
    """Return the version of the data."""
    return "ILSVRC 2012, v1"


def load() -> ImageNet:
    """Return the files of both splits.

    Raises:
        DataNotFound: the files are missing, or the splits do not have the same thousand classes.
    """
    from workflow.bench.data.vision import datasets

    root = data_folder() / "imagenet"
    try:
        data = ImageNet(*(datasets.ImageFolder(str(root / split)) for split in ("train", "val")))
    except FileNotFoundError:  # torchvision raises it for a missing folder and for a class without an image
        raise DataNotFound("ImageNet", root, _REMEDY) from None
    for split in data:
        if len(split.classes) != CLASSES:
            number = f"{split.root} has {len(split.classes)} classes"
            raise DataNotFound("all of ImageNet", root, f"{number}; {_REMEDY}")
    if data.train.classes != data.validation.classes:
        raise DataNotFound("all of ImageNet", root, f"train and val have different classes; {_REMEDY}")
    return data
