"""A deep autoencoder of handwritten digits, the classic test of second-order methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.workloads import digits
from workflow.bench.workloads.base import Batch, Workload, beside, evaluating, seeded, shuffled

_DATASETS = {"digits": digits.load}


class Autoencoder(Workload):
    """A fully connected autoencoder for images of d pixels, with d-256-64-16-64-256-d units by default.

    Hidden layers, the code among them, are rectified; the output is a sigmoid, since pixels lie in [0, 1].  The
    loss is the mean squared error of a pixel.  Predicting the mean image scores 0.074 on the digits.

    dataset: "digits", scikit-learn's.  batch_size: images a step.  hidden: the hidden layers' widths.
    """

    def __init__(self, *, dataset: str, batch_size: int, hidden: Sequence[int]) -> None:
        images = _DATASETS[dataset]()
        self._train, self._validation = (torch.from_numpy(split).flatten(1) for split in images)
        self._widths = (self._train.shape[1], *hidden, self._train.shape[1])
        self.batch_size = batch_size
        self.model_name = f"autoencoder {'-'.join(map(str, self._widths))}"
        self.dataset_name = "scikit-learn's digits, 8 x 8"
        self.train_examples = len(self._train)
        self.validation_examples = len(self._validation)
        self.data_fingerprint = images.fingerprint

    def model(self, seed: int) -> nn.Module:
        """Return a new autoencoder in PyTorch's default initialisation."""
        layers: list[nn.Module] = []
        with seeded(seed):
            for inputs, outputs in pairwise(self._widths):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers[-1] = nn.Sigmoid()
        return nn.Sequential(*layers)

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches ``{"images": [batch_size, d]}``, as `Workload` says."""
        for _, indices in shuffled(seed, start, self.train_examples, self.batch_size):
            yield {"images": self._train[torch.from_numpy(indices)]}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of a pixel."""
        images = beside(model, batch)["images"]
        return functional.mse_loss(model(images), images)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return ``loss``, the mean squared error of a pixel of the validation images."""
        with evaluating(model):
            return {"loss": self.loss(model, {"images": self._validation}).item()}
