"""ImageNet (ILSVRC 2012), one folder per class: ``imagenet/train/<class>/*.JPEG`` and ``imagenet/val/<class>/*``.

Importing this module imports neither torch nor torchvision.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.arrays import load_or_make
from workflow.bench.data.folder import DataNotFound, data_folder

if TYPE_CHECKING:
    from PIL.Image import Image


CLASSES: Final = 1000
VALIDATION_EXAMPLES: Final = 50000
_REMEDY: Final = (
    "get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from image-net.org "
    '(after registration) into that folder; torchvision.datasets.ImageNet(folder, split), split "train" and "val", '
    "unpacks them to train/<class>/ and val/<class>/"
)
_SPLITS: Final = ("train", "val")
_RECIPE: Final = "v1"


class Files:
    """The files of one split with their labels; an image is read when it is indexed.

    root: the folder of the split.
    names: the files within it, ``<class>/<name>``, class after class.
    """

    def __init__(self, root: Path, names: list[str]) -> None:
        self.root, self.names = root, names
        folders = [name.partition("/")[0] for name in names]
        self.classes = list(dict.fromkeys(folders))
        label_of = {name: label for label, name in enumerate(self.classes)}
        self.labels = [label_of[folder] for folder in folders]

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        """Return the image and the label of a file."""
        from PIL import Image

        # Converted while the file is open, since Pillow reads pixels late; some of the files are gray, some CMYK.
        with self.path(index).open("rb") as file:
            return Image.open(file).convert("RGB"), self.labels[index]

    def path(self, index: int) -> Path:
        """Return the path of a file."""
        return self.root / self.names[index]


class ImageNet(NamedTuple):
    """Both splits."""

    train: Files
    validation: Files

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the names and classes of all files, since the pixels are 140 GB."""
        digest = hashlib.sha256()
        for split in self:
            lines = (f"{name} {label}\n" for name, label in zip(split.names, split.labels, strict=True))
            digest.update(os.fsencode("".join(lines)))
        return digest.hexdigest()


@dataclass(frozen=True)
class _Listing:
    """The names of both splits' files as bytes, separated by zeros, in the order in which ImageFolder lists them."""

    train: NDArray[np.uint8]
    val: NDArray[np.uint8]


def load() -> ImageNet:
    """Return the files of both splits.

    Their names are kept in the data folder until a class's folder changes: to list 1.3 million files on every rank of
    every job would keep a parallel file system busy for minutes.

    Raises:
        DataNotFound: the files are missing, or the splits do not have the same thousand classes.
    """
    root = data_folder() / "imagenet"
    try:
        listing = load_or_make(_kept_at(root), _Listing, lambda: _list(root))
    except FileNotFoundError:  # also torchvision's error for a class without an image
        raise DataNotFound("ImageNet", root, _REMEDY) from None
    names = (os.fsdecode(split.tobytes()).split("\0") for split in (listing.train, listing.val))
    data = ImageNet(*(Files(root / split, files) for split, files in zip(_SPLITS, names, strict=True)))
    for split in data:
        if len(split.classes) != CLASSES:
            number = f"{split.root} has {len(split.classes)} classes"
            raise DataNotFound("all of ImageNet", root, f"{number}; {_REMEDY}")
    if data.train.classes != data.validation.classes:
        raise DataNotFound("all of ImageNet", root, f"train and val have different classes; {_REMEDY}")
    return data


def _kept_at(root: Path) -> Path:
    """Return the file that keeps the names; its own name states when a file last came to each class, or left it."""
    # A folder's own date changes when an entry is added to it or removed.
    stamps = [
        sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(root / split) if entry.is_dir())
        for split in _SPLITS
    ]
    key = hashlib.sha256(json.dumps([_RECIPE, str(root), stamps]).encode()).hexdigest()[:16]
    return data_folder() / "prepared" / f"imagenet-{key}.npz"


def _list(root: Path) -> _Listing:
    from workflow.bench.data.vision import datasets

    names = []
    for split in _SPLITS:
        samples = datasets.ImageFolder(root / split).samples
        files = [Path(path).relative_to(root / split).as_posix() for path, _ in samples]
        names.append(np.frombuffer(os.fsencode("\0".join(files)), np.uint8))
    return _Listing(*names)
