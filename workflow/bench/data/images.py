"""Labelled images, as batches: small sets in memory, large ones read from files as they are asked for."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, default_collate

from workflow.bench.data import cifar, digits, imagenet
from workflow.bench.data.batches import Batch, seeded, shuffled
from workflow.bench.data.folder import DataDamaged, damaged

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

EVALUATION_BATCH: Final = 256
"""Images at once where no gradient is needed."""

ALL: Final = slice(None)

_AUGMENTATION: Final = 1  # keeps the numbers behind augmentation apart from those behind an epoch's order
_PADDING: Final = 4  # pixels on each side before a random crop (He et al., CVPR 2016, on CIFAR)
_RESIZED: Final = 256 / 224  # of the shorter side before the central crop, over the crop's side
_MOST_READERS: Final = 16


class Facts(NamedTuple):
    """What is known of a data set before it is read; mean and deviation of pixels in [0, 1], by channel."""

    title: str
    channels: int
    size: int
    classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


_IMAGENET_PIXELS: Final = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FACTS: Final = {
    "digits": Facts("scikit-learn's digits", 1, 8, 10, (0.305,), (0.376,)),
    "cifar10": Facts("CIFAR-10", 3, 32, 10, (0.491, 0.482, 0.447), (0.247, 0.244, 0.262)),
    "cifar100": Facts("CIFAR-100", 3, 32, 100, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    "imagenet": Facts("ImageNet", 3, 224, imagenet.CLASSES, *_IMAGENET_PIXELS),
}


class Images(Protocol):
    """Training and validation images of one size.

    A batch holds ``images`` ``[n, channels, size, size]``, uint8 or float32 in [0, 1], and ``labels`` ``[n]``, int64.
    """

    train_examples: int
    validation_examples: int
    fingerprint: str

    def batches(self, seed: int, start: int, batch_size: int, rows: slice = ALL) -> Iterator[Batch]:
        """Yield augmented training batches, or ``rows`` of each; batch k is a function of ``seed`` and k alone."""

    def validation(self) -> Iterator[Batch]:
        """Yield all validation images once."""

    def training(self, number: int) -> Iterator[Batch]:
        """Yield the first ``number`` training images, as they are."""


def load(dataset: str, size: int) -> Images:
    """Return a data set, its images scaled to ``size`` pixels a side.

    Raises `workflow.bench.data.folder.DataNotFound` where it is not on this machine.
    """
    match dataset:
        case "digits":
            pixels, labels = digits.load(), digits.labels()
            fingerprint = hashlib.sha256(pixels.fingerprint.encode() + b"".join(part.tobytes() for part in labels))
            parts = [torch.from_numpy(part)[:, None] for part in pixels]
            train, validation = (_scaled(part, size) for part in parts)
            label = [torch.from_numpy(part) for part in labels]
            # A mirrored digit is none.
            return InMemory(train, label[0], validation, label[1], fingerprint.hexdigest(), augmented=False)
        case "cifar10" | "cifar100":
            found = cifar.load(dataset)
            train, label_train, validation, label_validation = (torch.from_numpy(array) for array in found)
            return InMemory(
                _scaled(train, size), label_train, _scaled(validation, size), label_validation, found.fingerprint
            )
        case "imagenet":
            return InFiles(imagenet.load(), size)
        case _:
            raise ValueError(f"{dataset=} must be one of {', '.join(FACTS)}.")


def _scaled(images: Tensor, size: int) -> Tensor:
    """Return ``images`` at ``size`` pixels a side, interpolated between pixels, in the type they have."""
    if images.shape[-1] == size:
        return images
    shrinks = images.shape[-1] > size
    found = functional.interpolate(images.float(), size=size, mode="bilinear", antialias=shrinks)
    return found.round().to(images.dtype) if images.dtype == torch.uint8 else found


@dataclass(eq=False)
class InMemory:
    """Images that fit in memory.

    train, validation: ``[n, channels, size, size]``.  augmented: shift training images by up to 4 pixels a side, the
    rest black, and mirror every second one.
    """

    train: Tensor
    train_labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor
    fingerprint: str
    augmented: bool = True

    def __post_init__(self) -> None:
        self.train_examples = len(self.train)
        self.validation_examples = len(self.held_out)

    def batches(self, seed: int, start: int, batch_size: int, rows: slice = ALL) -> Iterator[Batch]:
        """Yield training batches, as `Images` says."""
        for k, indices in shuffled(seed, start, self.train_examples, batch_size):
            chosen = torch.from_numpy(indices)
            images = self.train[chosen]
            if self.augmented:
                images = shifted_and_mirrored(images, np.random.default_rng([seed, k, _AUGMENTATION]))
            yield {"images": images[rows], "labels": self.train_labels[chosen[rows]]}

    def validation(self) -> Iterator[Batch]:
        """Yield all validation images once."""
        return _in_chunks(self.held_out, self.held_out_labels)

    def training(self, number: int) -> Iterator[Batch]:
        """Yield the first ``number`` training images, as they are."""
        return _in_chunks(self.train[:number], self.train_labels[:number])


def _in_chunks(images: Tensor, labels: Tensor) -> Iterator[Batch]:
    for chunk in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
        yield dict(zip(("images", "labels"), chunk, strict=True))


def shifted_and_mirrored(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Return each of ``images [n, channels, size, size]`` shifted by up to 4 pixels a side, and mirrored half the time.

    What a shift uncovers is black (He et al., CVPR 2016, on CIFAR).
    """
    number, _, size, _ = images.shape
    padded = functional.pad(images, [_PADDING] * 4)
    top, left = torch.from_numpy(rng.integers(2 * _PADDING + 1, size=(2, number, 1)))
    is_mirrored = torch.from_numpy(rng.random((number, 1)) < 0.5)
    along = torch.arange(size)
    columns = left + torch.where(is_mirrored, size - 1 - along, along)
    # Indices in three dimensions around a slice put the channels last.
    found = padded[torch.arange(number)[:, None, None], :, (top + along)[:, :, None], columns[:, None, :]]
    return found.permute(0, 3, 1, 2).contiguous()


class InFiles:
    """Images in files, decoded by processes beside the training.

    A training image is a random part of its file (8 to 100 % of the area, sides 3:4 to 4:3) scaled to a square, and
    mirrored half the time; a validation image the centre, seven eighths of the shorter side (Szegedy et al., CVPR
    2015, as torchvision does it).
    """

    def __init__(self, found: imagenet.ImageNet, size: int) -> None:
        from baselines import _torchvision_operators  # noqa: F401  (before torchvision)

        # isort: split
        from torchvision.transforms import (
            CenterCrop,
            Compose,
            PILToTensor,
            RandomHorizontalFlip,
            RandomResizedCrop,
            Resize,
        )

        centre = Compose([Resize(round(size * _RESIZED)), CenterCrop(size), PILToTensor()])
        self._train = _Files(found.train, Compose([RandomResizedCrop(size), RandomHorizontalFlip(), PILToTensor()]))
        self._train_centre = _Files(found.train, centre)
        self._validation = _Files(found.validation, centre)
        self.train_examples = len(found.train)
        self.validation_examples = len(found.validation)
        self.fingerprint = found.fingerprint

    def batches(self, seed: int, start: int, batch_size: int, rows: slice = ALL) -> Iterator[Batch]:
        """Yield training batches, as `Images` says, however many processes read them; other files are not read."""
        batches = (
            [(int(index), (seed, k, position)) for position, index in list(enumerate(indices))[rows]]
            for k, indices in shuffled(seed, start, self.train_examples, batch_size)
        )
        return _read(self._train, batches)

    def validation(self) -> Iterator[Batch]:
        """Yield all validation images once."""
        return _read(self._validation, _consecutive(self.validation_examples))

    def training(self, number: int) -> Iterator[Batch]:
        """Yield the first ``number`` training images, their centres."""
        return _read(self._train_centre, _consecutive(min(number, self.train_examples)))


Draw = tuple[int, ...] | None
"""What fixes an image's augmentation; None where there is none."""


@dataclass(frozen=True, eq=False)
class _Files:
    """Files with their labels, and what makes tensors of them; read by index and `Draw`.

    A damaged file gives what is to be raised: torch would wrap an exception of a reading process in its traceback.
    """

    files: ImageFolder
    transform: Any

    def __getitem__(self, wanted: tuple[int, Draw]) -> dict[str, Any] | DataDamaged:
        index, draw = wanted
        try:
            image, label = self.files[index]
        # What Pillow raises on odd files: its own errors are OSErrors, all others come from the depths of its readers.
        except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error) as problem:
            return damaged("ImageNet", self.files.samples[index][0], problem)
        if draw is None:
            return {"images": self.transform(image), "labels": label}
        # torchvision's transforms draw from torch's generator.
        with seeded(int(np.random.SeedSequence([*draw, _AUGMENTATION]).generate_state(1)[0])):
            return {"images": self.transform(image), "labels": label}


def _consecutive(examples: int) -> Iterator[list[tuple[int, Draw]]]:
    for first in range(0, examples, EVALUATION_BATCH):
        yield [(index, None) for index in range(first, min(first + EVALUATION_BATCH, examples))]


def _read(files: _Files, batches: Iterator[list[Any]]) -> Iterator[Batch]:
    """Yield batches, in their order, that processes read ahead: one a core that is left, 16 at most.

    Raises `DataDamaged` where a file is no image.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loader: DataLoader[Any] = DataLoader(
        files,  # type: ignore[arg-type]  # torch asks for its own base class, and uses item access alone
        batch_sampler=batches,
        num_workers=min(cores - 1, _MOST_READERS),
        pin_memory=torch.cuda.is_available(),
        # Its own generator: without one, every start of readers draws from torch's.
        generator=torch.Generator().manual_seed(0),
        collate_fn=_collated,
    )
    for batch in loader:
        if isinstance(batch, DataDamaged):
            raise batch
        yield batch


def _collated(examples: list[dict[str, Any] | DataDamaged]) -> Batch | DataDamaged:
    """Return examples as a batch, or the first that is damaged."""
    wrong = next((example for example in examples if isinstance(example, DataDamaged)), None)
    return wrong or default_collate(examples)
