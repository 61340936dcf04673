"""The base of all workloads: one data set, one model and one loss, the same for every optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mkor_core.devices import upload
from workflow.bench.data.batches import Batch, temporary_seed

_T = TypeVar("_T")


class Team:
    """Processes that evaluate a model together, each on its own part of the examples; here a single process.

    A subclass stands for several.
    """

    def part(self, examples: int) -> slice:
        """Return the rows of ``examples`` that this process evaluates, which may be none."""
        return slice(0, examples)

    def gathered(self, value: _T) -> list[_T]:
        """Return the ``value`` of every process, in the order of their parts; all of them make this call."""
        return [value]


ONE_PROCESS: Final = Team()


class Workload(ABC):
    """One data set, model and loss.

    The same seed gives every optimizer the same initial weights and the same batches. A subclass sets the attributes
    without a value below when it loads its data.

    Args:
        parameters: a value for every parameter in the workload's schema, checked against it.
        for_tuning: evaluate on examples that no other run is evaluated on, for the trials of a search. Where there are
            no others, they are a fifth of the training examples, which is then not trained on.
    """

    exclude: tuple[str, ...] = ()
    """Regular expressions that match the names of modules never to precondition."""
    train_examples: int
    validation_examples: int
    data_fingerprint: str
    """SHA-256 of the data that the workload reads."""

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        self.parameters = parameters
        self.for_tuning = for_tuning
        self.batch_size: int = parameters["batch_size"]
        self.model_name, self.dataset_name = self.shown_names(parameters)

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in an epoch."""
        return self.train_examples // self.batch_size

    @classmethod
    @abstractmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        """Return the model for these parameters, without loading any data.

        Its weights are drawn from torch's current generator and lie on the current default device, which may be
        ``meta``.
        """

    @classmethod
    @abstractmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        """Return the names of the model and the data in tables, without loading any data."""

    @classmethod
    def shown_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        """Return `display_names`; the model's says so if its inputs are centred (`centre_inputs`)."""
        model, data = cls.display_names(parameters)
        return (f"{model}, centred inputs" if parameters.get("centred_inputs") else model), data

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of a model's parameters and buffers, counted without allocating them."""
        with torch.device("meta"):
            model = self.architecture(self.parameters)
        return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))

    def model(self, seed: int) -> nn.Module:
        """Return a new model on the CPU, in training mode, its weights fixed by ``seed``.

        The random generators keep their state.
        """
        with temporary_seed(seed):
            model = self.architecture(self.parameters)
        if self.parameters.get("centred_inputs"):
            centre_inputs(model)
        return model

    def load_initial_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load ``weights``, the final ones of another run, into a new ``model``.

        Raises:
            RuntimeError: names or shapes do not fit the model.
        """
        model.load_state_dict(weights)

    def validation_rows(self, name: str, available: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the held-out examples to evaluate on, as many as the parameter ``name`` says, in a random order.

        Trials of a search get the next ones of that order.

        Raises:
            ValueError: none would be left for trials.
        """
        # One order for both: trials are judged by the examples after those that results are judged by.
        most, order = self.parameters[name], rng.permutation(available)
        if not self.for_tuning:
            return order[:most]
        if available <= most:
            raise ValueError(f"{name}={most} must be fewer than the {available} that there are, for trials.")
        return order[most : 2 * most]

    @abstractmethod
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the training batches ``start``, ``start + 1``, ... without end.

        Batch k is a function of ``seed`` and k alone, so that a run can resume at any step.
        """

    def sliced_batches(self, seed: int, start: int, rows: slice) -> Iterator[Batch]:
        """Yield the examples ``rows`` of each batch of `batches`: one rank's share of it.

        A subclass whose batches are expensive overrides this so as to read only those rows; the values are the same.
        """
        for batch in self.batches(seed, start):
            yield {name: tensor[rows] for name, tensor in batch.items()}

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of ``batch``, a scalar on the model's device, on which all parameters have an influence.

        Ranks that train together wait for the gradients of all parameters, in every step.

        If the batch has a ``loss_weight``, it multiplies the part of the loss that `loss_terms` counts.
        """

    def loss_terms(self, batch: Batch) -> Tensor | None:
        """Return how many terms the loss of ``batch`` averages over; None if it averages over examples.

        The shares of a batch on different ranks may hold different numbers of terms; their means are then weighted.
        """
        return None

    @abstractmethod
    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return the metrics on the validation split, ``loss`` among them.

        The model's mode and the random generators keep their state.

        team: the processes that evaluate together. All have the same model, and all get the metrics.
        """

    def evaluate_training(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return metrics on training data other than the training loss; none by default. See `evaluate`."""
        return {}


CENTRING_DECAY: Final = 0.9
"""The weight of earlier batches in the mean that `centre_inputs` subtracts in evaluation mode."""


def centre_inputs(model: nn.Module) -> None:
    """Subtract the mean from the inputs of each Linear and Conv2d: of a feature or, in a Conv2d, of a channel.

    This is mean-only batch normalization (Salimans and Kingma, 2016) of the inputs. In training mode the
    mean is the batch's, and gradients flow through it; in evaluation mode it is a running mean that counts each earlier
    batch `CENTRING_DECAY` times the next one. The layer computes ``W (x - mean) + b``: with a bias and without padding
    it changes what the layer's parameters mean and not the functions that they can express.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            size = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
            layer.register_buffer("input_sum", layer.weight.new_zeros(size))
            layer.register_buffer("input_weight", layer.weight.new_zeros(()))
            layer.register_forward_pre_hook(_centred)


def _centred(layer: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    (x,) = inputs  # [..., features] or [n, channels, height, width]
    total, weight = layer.get_buffer("input_sum"), layer.get_buffer("input_weight")
    if layer.training:
        channels_last = x.movedim(1, -1) if isinstance(layer, nn.Conv2d) else x
        # Gradients must flow through the mean. If it is a constant, it follows the biases of the layer before, gradient
        # steps no longer descend, and the loss ends above a constant prediction's.
        mean = channels_last.flatten(0, -2).mean(0)
        with torch.no_grad():
            total.lerp_(mean.to(total.dtype), 1 - CENTRING_DECAY)
            weight.lerp_(torch.ones_like(weight), 1 - CENTRING_DECAY)
    else:
        mean = (total / weight.clamp(min=torch.finfo(weight.dtype).tiny)).to(x.dtype)
    return x - (mean[:, None, None] if isinstance(layer, nn.Conv2d) else mean)


def totals(team: Team, *values: float) -> list[float]:
    """Return each of the values summed over the processes of ``team``."""
    return [sum(column) for column in zip(*team.gathered(values), strict=True)]


def in_slices(part: slice, most: int) -> Iterator[slice]:
    """Yield ``part`` in slices of ``most`` rows; the last one may be shorter."""
    for first in range(part.start, part.stop, most):
        yield slice(first, min(first + most, part.stop))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` in evaluation mode without gradients for the block, then restore the mode of each module."""
    # Of each module, since some may be in evaluation mode for good, such as a frozen normalization.
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def to_device_of(model: nn.Module, batch: Batch) -> Batch:
    """Return ``batch`` on the model's device; the host does not wait for the copies."""
    device = next(model.parameters()).device
    return {name: upload(tensor, device) for name, tensor in batch.items()}
