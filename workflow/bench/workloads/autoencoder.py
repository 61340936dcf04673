"""A deep autoencoder of images, the classic test of second-order methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.data import cifar, digits
from workflow.bench.data.batches import Batch, seeded, shuffled
from workflow.bench.workloads.base import Workload, beside, evaluating

_DATASETS: dict[str, Callable[[], digits.Digits | cifar.Cifar]] = {
    "digits": digits.load,
    "cifar100": partial(cifar.load, "cifar100"),
}
_PIXELS = {"digits": 64, "cifar100": 3 * 32 * 32}
_DATA_NAMES = {"digits": "scikit-learn's digits, 8 x 8", "cifar100": "CIFAR-100"}


class Autoencoder(Workload):
    """A fully connected autoencoder for images of d pixels, with d-256-64-16-64-256-d units by default.

    Hidden layers, the code among them, are rectified; the output is a sigmoid, since pixels lie in [0, 1].  The
    loss is the mean squared error of a pixel.  Predicting the mean image scores 0.074 on the digits.

    dataset: "digits", scikit-learn's, or "cifar100".  batch_size: images a step.  hidden: the hidden layers' widths.
    """

    def __init__(self, *, dataset: str, batch_size: int, hidden: Sequence[int]) -> None:
        images = _DATASETS[dataset]()
        self._train, self._validation = (
            torch.from_numpy(split).flatten(1) for split in (images.train, images.validation)
        )
        self._parameters: dict[str, Any] = {"dataset": dataset, "batch_size": batch_size, "hidden": hidden}
        self.batch_size = batch_size
        self.model_name, self.dataset_name = self.described(**self._parameters)
        self.train_examples = len(self._train)
        self.validation_examples = len(self._validation)
        self.data_fingerprint = images.fingerprint

    @classmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return an autoencoder in PyTorch's default initialisation."""
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(_widths(parameters)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers[-1] = nn.Sigmoid()
        return nn.Sequential(*layers)

    @classmethod
    def described(cls, **parameters: Any) -> tuple[str, str]:
        """Return the model's units, layer by layer, and the data's name."""
        return f"autoencoder {'-'.join(map(str, _widths(parameters)))}", _DATA_NAMES[parameters["dataset"]]

    def model(self, seed: int) -> nn.Module:
        """Return a new autoencoder, as `architecture` makes it."""
        with seeded(seed):
            return self.architecture(**self._parameters)

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches ``{"images": [batch_size, d]}``, pixels in [0, 1] or, for CIFAR, whole numbers up to 255."""
        for _, indices in shuffled(seed, start, self.train_examples, self.batch_size):
            yield {"images": self._train[torch.from_numpy(indices)]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of a pixel."""
        images = beside(model, batch)["images"]
        if images.dtype == torch.uint8:
            images = images.float() / 255
        return functional.mse_loss(model(images), images)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return ``loss``, the mean squared error of a pixel of the validation images."""
        with evaluating(model):
            return {"loss": self.loss(model, {"images": self._validation}).item()}


def _widths(parameters: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the units of all layers, from the image to the image."""
    pixels = _PIXELS[parameters["dataset"]]
    return (pixels, *parameters["hidden"], pixels)
