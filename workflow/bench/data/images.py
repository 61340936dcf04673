"""Labeled images as batches: small data sets in memory, large ones read from files on demand."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, default_collate
from typing_extensions import override

from workflow.bench.data import cifar, digits, glyphs, imagenet
from workflow.bench.data.batches import Batch, shuffled_indices, temporary_seed, tuning_split
from workflow.bench.data.folder import DataDamaged, damaged
from workflow.bench.support.config import ConfigError

EVALUATION_BATCH: Final = 256
"""The number of images to process at once without gradients."""

ALL: Final = slice(None)

_AUGMENTATION: Final = 1  # separates the random numbers for augmentation from those for an epoch's order
_PADDING: Final = 4  # pixels on each side before a random crop (He et al., CVPR 2016, on CIFAR)
_TURN: Final = math.radians(8)
_STRETCH: Final = 1.15
_SHIFT: Final = 0.05  # of a side
_COPIES: Final = 2  # of each held-out glyph
_COPIES_SEED: Final = 0  # every run is judged by the same copies
_RESIZED: Final = 256 / 224  # shorter side of a validation image, in sides of its central crop
_MAX_READERS: Final = 16


class Facts(NamedTuple):
    """Facts about a data set that are known before it is read."""

    title: str
    """Its name in tables."""
    channels: int
    size: int
    """Pixels a side."""
    classes: int
    mean: tuple[float, ...]
    """Mean of each channel's pixels in [0, 1]."""
    deviation: tuple[float, ...]
    """Standard deviation of each channel's pixels in [0, 1]."""


Augmentation = Callable[[Tensor, np.random.Generator, int, slice], Tensor]
"""(images, random numbers for the whole batch, images in the whole batch, those of them that are given) -> images"""

_IMAGENET_PIXELS: Final = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FACTS: Final = {
    "digits": Facts("scikit-learn's digits", *digits.SHAPE[:2], 10, (0.305,), (0.376,)),
    "cifar10": Facts(cifar.TITLES["cifar10"], *cifar.SHAPE[:2], 10, (0.491, 0.482, 0.447), (0.247, 0.244, 0.262)),
    "cifar100": Facts(cifar.TITLES["cifar100"], *cifar.SHAPE[:2], 100, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    "glyphs": Facts("glyphs of matplotlib's fonts", *glyphs.SHAPE[:2], len(glyphs.CHARACTERS), (0.084,), (0.258,)),
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

    def validation(self, rows: slice = ALL) -> Iterator[Batch]:
        """Yield the validation images ``rows`` once."""

    def training(self, rows: slice) -> Iterator[Batch]:
        """Yield the training images ``rows`` without augmentation."""

    def for_tuning(self) -> Images:
        """Return the training images alone, a fifth of them in place of the validation images.

        Raises:
            ValueError: they cannot be divided.
        """


def load(dataset: str, size: int) -> Images:
    """Return a data set with its images scaled to ``size`` pixels a side.

    Raises:
        workflow.bench.data.folder.DataNotFound: it is not on this machine.
    """
    match dataset:
        case "digits":
            pixels, labels = digits.load(), digits.labels()
            content = pixels.fingerprint.encode() + b"".join(part.tobytes() for part in labels)
            train, held_out = (_scaled(torch.from_numpy(part)[:, None], size) for part in pixels)
            train_labels, held_out_labels = (torch.from_numpy(part) for part in labels)
            # No augmentation: a mirrored digit is not a digit.
            return InMemory(train, train_labels, held_out, held_out_labels, hashlib.sha256(content).hexdigest())
        case "cifar10" | "cifar100":
            data = cifar.load(dataset)
            train, train_labels, held_out, held_out_labels = (torch.from_numpy(array) for array in data)
            train, held_out = _scaled(train, size), _scaled(held_out, size)
            return InMemory(train, train_labels, held_out, held_out_labels, data.fingerprint, shifted_and_mirrored)
        case "glyphs":
            data = glyphs.load()
            train, train_labels, held_out, held_out_labels = (torch.from_numpy(array) for array in data)
            train, held_out = _scaled(train / 255, size), _scaled(held_out / 255, size)
            return InMemory(train, train_labels, held_out, held_out_labels, data.fingerprint, turned, _COPIES)
        case "imagenet":
            return InFiles(imagenet.load(), size)
        case _:
            raise ValueError(f"{dataset=} must be one of {', '.join(FACTS)}.")


def _scaled(images: Tensor, size: int) -> Tensor:
    """Return ``images`` scaled bilinearly to ``size`` pixels a side, in the same data type."""
    if images.shape[-1] == size:
        return images
    shrinks = images.shape[-1] > size
    scaled = functional.interpolate(images.float(), size=size, mode="bilinear", antialias=shrinks)
    return scaled.round().to(images.dtype) if images.dtype == torch.uint8 else scaled


@dataclass(eq=False)
class InMemory(Images):
    """Images that fit in memory, ``[n, channels, size, size]``."""

    train: Tensor
    train_labels: Tensor
    held_out: Tensor
    """The images to validate on."""
    held_out_labels: Tensor
    fingerprint: str
    augment: Augmentation | None = None
    """How to change training images, if at all."""
    changed_copies: int = 0
    """How many copies of each held-out image, changed like training images, to evaluate in place of the image."""

    def __post_init__(self) -> None:
        self.train_examples = len(self.train)
        self._validation, self._validation_labels = self.held_out, self.held_out_labels
        if self.augment and self.changed_copies:
            copies = self.held_out.repeat_interleave(self.changed_copies, 0)
            self._validation = self.augment(copies, np.random.default_rng(_COPIES_SEED), len(copies), ALL)
            self._validation_labels = self.held_out_labels.repeat_interleave(self.changed_copies, 0)
        self.validation_examples = len(self._validation)

    @override
    def batches(self, seed: int, start: int, batch_size: int, rows: slice = ALL) -> Iterator[Batch]:
        for k, indices in shuffled_indices(seed, start, self.train_examples, batch_size):
            chosen = torch.from_numpy(indices[rows])
            images = self.train[chosen]
            if self.augment:
                images = self.augment(images, np.random.default_rng([seed, k, _AUGMENTATION]), batch_size, rows)
            yield {"images": images, "labels": self.train_labels[chosen]}

    @override
    def validation(self, rows: slice = ALL) -> Iterator[Batch]:
        return _in_chunks(self._validation[rows], self._validation_labels[rows])

    @override
    def training(self, rows: slice) -> Iterator[Batch]:
        return _in_chunks(self.train[rows], self.train_labels[rows])

    @override
    def for_tuning(self) -> InMemory:
        used, held_out = tuning_split(self.train_examples)
        return replace(
            self,
            train=self.train[used],
            train_labels=self.train_labels[used],
            held_out=self.train[held_out],
            held_out_labels=self.train_labels[held_out],
        )


def _in_chunks(images: Tensor, labels: Tensor) -> Iterator[Batch]:
    if not len(images):
        return  # torch cuts an empty tensor into one empty chunk
    for chunk in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
        yield dict(zip(("images", "labels"), chunk, strict=True))


def shifted_and_mirrored(images: Tensor, rng: np.random.Generator, batch_size: int, rows: slice = ALL) -> Tensor:
    """Return each image shifted by up to 4 pixels in both directions, and mirrored half the time.

    The uncovered border is black (He et al., CVPR 2016, on CIFAR).

    Args:
        images: ``[n, channels, size, size]``; the result has the same shape.
        rng: draws the shifts and mirrors of the whole batch, so that those of an image do not depend on how ranks
            share it.
        batch_size: images in the whole batch.
        rows: those of them in ``images``.
    """
    number, _, size, _ = images.shape
    padded = functional.pad(images, [_PADDING] * 4)
    # Pixel (i, j) of image n comes from row top[n] + i and column left[n] + j of the padded image, or, if it is
    # mirrored, from column left[n] + size - 1 - j.
    top, left = torch.from_numpy(rng.integers(2 * _PADDING + 1, size=(2, batch_size, 1))[:, rows])
    is_mirrored = torch.from_numpy(rng.random((batch_size, 1))[rows] < 0.5)
    along = torch.arange(size)
    columns = left + torch.where(is_mirrored, size - 1 - along, along)
    # Three index tensors around a slice put the channels last: [n, size, size, channels].
    shifted = padded[torch.arange(number)[:, None, None], :, (top + along)[:, :, None], columns[:, None, :]]
    return shifted.permute(0, 3, 1, 2).contiguous()


def turned(images: Tensor, rng: np.random.Generator, batch_size: int, rows: slice = ALL) -> Tensor:
    """Return each image turned, made wider or narrower, higher or lower, and shifted, all at random.

    Angles lie within 8 degrees, both factors between 1 / 1.15 and 1.15, shifts within a twentieth of a side. What comes
    from outside the image is black. The arguments are those of `shifted_and_mirrored`.
    """
    draws = torch.from_numpy(rng.uniform(-1, 1, size=(5, batch_size))[:, rows]).to(images.dtype)
    angle, across, down = draws[0] * _TURN, _STRETCH ** draws[1], _STRETCH ** draws[2]
    # Where a pixel of the result comes from. Coordinates run from -1 to 1, so a side is 2.
    shifts = 2 * _SHIFT * draws[3:]
    rows_of_map = [
        torch.stack([angle.cos() / across, -angle.sin() / across, shifts[0]], dim=1),
        torch.stack([angle.sin() / down, angle.cos() / down, shifts[1]], dim=1),
    ]
    sources = functional.affine_grid(torch.stack(rows_of_map, dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, sources, align_corners=False)


class InFiles(Images):
    """Images in files, decoded by processes that run alongside the training.

    A training image is a random part of its file (8 to 100 % of the area, aspect ratio 3:4 to 4:3) scaled to a square,
    and mirrored half the time; a validation image is the center, seven eighths of the shorter side (Szegedy et al.,
    CVPR 2015, as in torchvision).
    """

    def __init__(self, data: imagenet.ImageNet, size: int) -> None:
        from workflow.bench.data.vision import transforms

        center = transforms.Compose(
            [transforms.Resize(round(size * _RESIZED)), transforms.CenterCrop(size), transforms.PILToTensor()]
        )
        random_part = transforms.Compose(
            [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        )
        self._train = _Files(data.train, random_part)
        self._train_center = _Files(data.train, center)
        self._validation = _Files(data.validation, center)
        self.train_examples = len(data.train)
        self.validation_examples = len(data.validation)
        self.fingerprint = data.fingerprint

    @override
    def batches(self, seed: int, start: int, batch_size: int, rows: slice = ALL) -> Iterator[Batch]:
        """Yield training batches; only the files of ``rows`` are read, and the number of readers changes nothing."""
        batches = (
            [(int(index), (seed, k, position)) for position, index in list(enumerate(indices))[rows]]
            for k, indices in shuffled_indices(seed, start, self.train_examples, batch_size)
        )
        return _read(self._train, batches)

    @override
    def validation(self, rows: slice = ALL) -> Iterator[Batch]:
        return _read(self._validation, _consecutive(range(self.validation_examples)[rows]))

    @override
    def training(self, rows: slice) -> Iterator[Batch]:
        """Yield the centers of the training images ``rows``."""
        return _read(self._train_center, _consecutive(range(self.train_examples)[rows]))

    @override
    def for_tuning(self) -> Images:
        raise ValueError("images in files have no tuning split: give values in place of 'tuned'.")


Draw = tuple[int, ...] | None
"""The seeds of an image's augmentation; None for an image without augmentation."""


@dataclass(frozen=True, eq=False)
class _Files:
    """Files with their labels, and the transform that makes tensors of them; indexed by (index, `Draw`).

    The item of a damaged file is the error to raise: torch would wrap an exception of a reading process in its
    traceback.
    """

    files: imagenet.Files
    transform: Any

    def __getitem__(self, item: tuple[int, Draw]) -> dict[str, Any] | DataDamaged:
        index, draw = item
        try:
            image, label = self.files[index]
        # Pillow's own errors are OSErrors; the others come from inside its readers when a file is damaged.
        except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error) as problem:
            return damaged("ImageNet", self.files.path(index), problem)
        if draw is None:
            return {"images": self.transform(image), "labels": label}
        # torchvision's transforms draw from torch's generator.
        with temporary_seed(int(np.random.SeedSequence([*draw, _AUGMENTATION]).generate_state(1)[0])):
            return {"images": self.transform(image), "labels": label}


def _consecutive(examples: range) -> Iterator[list[tuple[int, Draw]]]:
    for first in range(0, len(examples), EVALUATION_BATCH):
        yield [(index, None) for index in examples[first : first + EVALUATION_BATCH]]


def _read(files: _Files, batches: Iterator[list[Any]]) -> Iterator[Batch]:
    """Yield batches in order, read ahead by one process for each spare core, at most 16.

    Raises:
        DataDamaged: a file is not an image.
        ConfigError: there is no shared memory for the processes.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loader: DataLoader[Any] = DataLoader(
        files,  # type: ignore[arg-type]  # torch's annotation requires its own base class; it only indexes
        batch_sampler=batches,
        num_workers=min(cores - 1, _MAX_READERS),
        pin_memory=torch.cuda.is_available(),
        # Without a generator of its own, the loader draws from torch's each time it starts readers.
        generator=torch.Generator().manual_seed(0),
        collate_fn=_collate,
    )
    try:
        read = iter(loader)
    except OSError as problem:
        remedy = "give it more, such as docker run --shm-size=2g"
        raise ConfigError(f"images are read through /dev/shm: {problem.strerror}; {remedy}") from None
    for batch in read:
        if isinstance(batch, DataDamaged):
            raise batch
        yield batch


def _collate(examples: list[dict[str, Any] | DataDamaged]) -> Batch | DataDamaged:
    """Return examples as a batch, or the first error among them."""
    error = next((example for example in examples if isinstance(example, DataDamaged)), None)
    return error or default_collate(examples)
