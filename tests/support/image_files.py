"""Small image data sets in the format of the real ones, for tests."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from workflow.bench.data.vision import datasets

KINDS = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
NAMES = {"cifar10": "label_names", "cifar100": "fine_label_names"}
CLASSES = {"cifar10": 10, "cifar100": 100}


def write_cifar(
    root: Path, name: str, patch: pytest.MonkeyPatch, *, train: int = 60, test: int = 20
) -> tuple[NDArray[np.uint8], list[int]]:
    """Write a CIFAR data set with random pixels: pickled batches of flat images, all red values first.

    ``patch`` makes torchvision expect these files' checksums instead of the published ones.

    Returns:
        All images, ``[train + test, 3, 32, 32]``, and their labels, the training images first.
    """
    kind = KINDS[name]
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(train + test, 3 * 32 * 32), dtype=np.uint8)
    labels = rng.integers(CLASSES[name], size=train + test).tolist()

    def write(files: list[list[str]], first: int, number: int) -> list[list[str]]:
        cuts = np.linspace(first, first + number, len(files) + 1).astype(int)
        return [
            [file, _dump(folder / file, {"data": pixels[low:high], LABELS[name]: labels[low:high]})]
            for (file, _), low, high in zip(files, cuts, cuts[1:], strict=False)
        ]

    patch.setattr(kind, "train_list", write(kind.train_list, 0, train))
    patch.setattr(kind, "test_list", write(kind.test_list, train, test))
    names = [f"class {number}" for number in range(CLASSES[name])]
    meta = kind.meta["filename"]
    patch.setattr(kind, "meta", {**kind.meta, "md5": _dump(folder / meta, {NAMES[name]: names})})
    return pixels.reshape(-1, 3, 32, 32), labels


def _dump(file: Path, content: dict[str, Any]) -> str:
    """Write a pickle and return its MD5."""
    pickled = pickle.dumps(content, protocol=2)
    file.write_bytes(pickled)
    return hashlib.md5(pickled, usedforsecurity=False).hexdigest()


def write_imagenet(root: Path, *, classes: int, train: int, validation: int) -> None:
    """Write ``imagenet/{train,val}/<class>/*.JPEG``, with images of several sizes, one of them gray.

    The red channel of an image encodes its class, ``20 + 60 * class``; its blue channel rises from left to right.

    Args:
        root: the data folder.
        classes: number of classes.
        train: number of training images of each class.
        validation: number of validation images of each class.
    """
    for split, number in (("train", train), ("val", validation)):
        for label in range(classes):
            folder = root / "imagenet" / split / f"n{label:08}"
            folder.mkdir(parents=True)
            for index in range(number):
                pixels = np.zeros((70 + 10 * index, 50 + 5 * label, 3), dtype=np.uint8)
                pixels[:, :, 0] = 20 + 60 * label
                pixels[:, :, 1] = 30 * index
                pixels[:, :, 2] = 3 * np.arange(pixels.shape[1])
                image = Image.fromarray(pixels)
                if split == "train" and label == index == 0:
                    image = image.convert("L")
                image.save(folder / f"{folder.name}_{index}.JPEG", quality=95)
