"""What a workload is: one data set, one model and one loss, the same for every optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from workflow.bench.data.batches import Batch


class Workload(ABC):
    """One data set, model and loss.

    The same seed gives every optimizer the same initial weights and the same batches.
    """

    exclude: tuple[str, ...] = ()
    """Modules that are never preconditioned, as regular expressions of their names."""
    model_name: str
    """The model as tables name it."""
    dataset_name: str
    """The data as tables name it."""
    train_examples: int
    validation_examples: int
    batch_size: int
    data_fingerprint: str
    """SHA-256 of the data that is really used."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that an epoch fills; what is left over waits for another epoch's order."""
        return self.train_examples // self.batch_size

    @classmethod
    @abstractmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return the model of a workload with these parameters, all of them given, without any of its data.

        Its weights come from the current generator and lie on the current default device, ``meta`` for instance.
        """

    @classmethod
    @abstractmethod
    def described(cls, **parameters: Any) -> tuple[str, str]:
        """Return ``model_name`` and ``dataset_name`` of a workload with these parameters, without any of its data."""

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """Return a new model, on the CPU, in training mode, its weights fixed by ``seed``.

        The random generators are left as they were found.
        """

    def start(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load ``weights``, the final ones of another run, into a new ``model``.

        Raises `RuntimeError` where they are not this model's.
        """
        model.load_state_dict(weights)

    @abstractmethod
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the training batches ``start``, ``start + 1``, ... without end.

        Batch k is a function of ``seed`` and k alone, so that a run resumes at any position.
        """

    def rows_of_batches(self, seed: int, start: int, rows: slice) -> Iterator[Batch]:
        """Yield the examples ``rows`` of each batch that `batches` yields: a rank's part of it.

        Here by making the whole batch, which is cheap for small ones; the same values however it is done.
        """
        for batch in self.batches(seed, start):
            yield {name: tensor[rows] for name, tensor in batch.items()}

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of ``batch``, a scalar on the model's device.

        Where the batch has a ``loss_weight`` (see `loss_terms`), what `loss_terms` counts is weighed with it.
        """

    def loss_terms(self, batch: Batch) -> Tensor | None:
        """Return how many terms the loss of ``batch`` is a mean over; None where these are its examples.

        Ranks that share a batch have unequal numbers of them, and so weigh their means.
        """
        return None

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics on the validation split, ``loss`` among them.

        The model's mode and the random generators are left as they were found.
        """

    def evaluate_training(self, model: nn.Module) -> dict[str, float]:
        """Return metrics on training data, beside the training loss; none here.

        The model's mode and the random generators are left as they were found.
        """
        return {}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode, without gradients, and each module back into the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def beside(model: nn.Module, batch: Batch) -> Batch:
    """Return ``batch`` on the model's device."""
    device = next(model.parameters()).device
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
