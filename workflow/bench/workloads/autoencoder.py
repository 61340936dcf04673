"""A deep autoencoder of images, the classic test of second-order methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data import cifar, digits
from workflow.bench.data.arrays import LabelledImages
from workflow.bench.data.batches import Batch, shuffled_indices, tuning_split
from workflow.bench.workloads.base import ONE_PROCESS, Team, Workload, evaluation_mode, to_device_of

_LOADERS: dict[str, Callable[[], digits.Digits | LabelledImages]] = {
    "digits": digits.load,
    "cifar100": partial(cifar.load, "cifar100"),
}
_SHAPES = {"digits": digits.SHAPE, "cifar100": cifar.SHAPE}
_TITLES = {"digits": "scikit-learn's digits, 8 x 8", "cifar100": "CIFAR-100"}


class Autoencoder(Workload):
    """A fully connected autoencoder for images of d pixels, with d-256-64-16-64-256-d units by default.

    ReLU follows every hidden layer, the code included; the output is a sigmoid, since pixels lie in [0, 1]. The loss
    is the mean squared error of a pixel. Predicting the mean image scores 0.074 on the digits.
    """

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        super().__init__(parameters, for_tuning=for_tuning)
        images = _LOADERS[parameters["dataset"]]()
        self._train, self._validation = (
            torch.from_numpy(split).flatten(1) for split in (images.train, images.validation)
        )
        if for_tuning:
            self._train, self._validation = (self._train[part] for part in tuning_split(len(self._train)))
        self.train_examples = len(self._train)
        self.validation_examples = len(self._validation)
        self.data_fingerprint = images.fingerprint

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(_widths(parameters)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers[-1] = nn.Sigmoid()  # in place of the last ReLU
        return nn.Sequential(*layers)

    @override
    @classmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        return f"autoencoder {'-'.join(map(str, _widths(parameters)))}", _TITLES[parameters["dataset"]]

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield ``{"images": [batch_size, d]}``: pixels in [0, 1], or for CIFAR integers from 0 to 255."""
        for _, indices in shuffled_indices(seed, start, self.train_examples, self.batch_size):
            yield {"images": self._train[torch.from_numpy(indices)]}

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of a pixel."""
        images = to_device_of(model, batch)["images"]
        # Bytes until here, which take a quarter of the memory and of the time to copy.
        if images.dtype == torch.uint8:
            images = images.float() / 255
        return functional.mse_loss(model(images), images)

    @override
    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``loss``, the mean squared error of a pixel of the validation images."""
        images = self._validation[team.part(self.validation_examples)]
        with evaluation_mode(model):
            loss = self.loss(model, {"images": images}).item() if len(images) else 0.0
        # Weighted by 1 on one process, where the loss is therefore the mean as it was computed.
        return {"loss": sum(team.gathered(loss * (len(images) / self.validation_examples)))}


def _widths(parameters: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of units of each layer, from the input image to its reconstruction."""
    pixels = math.prod(_SHAPES[parameters["dataset"]])
    return (pixels, *parameters["hidden"], pixels)
