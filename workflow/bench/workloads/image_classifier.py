"""The base of the image classifiers: their data, loss and metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data import images
from workflow.bench.data.batches import Batch
from workflow.bench.workloads.base import ONE_PROCESS, Team, Workload, evaluation_mode, to_device_of, totals


class ImageClassifier(Workload):
    """A network that classifies images, trained on the cross-entropy.

    Raises:
        workflow.bench.data.folder.DataNotFound: the data is not on this machine.
    """

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        super().__init__(parameters, for_tuning=for_tuning)
        self._facts = images.FACTS[parameters["dataset"]]
        self._images = images.load(parameters["dataset"], self.image_size(parameters))
        if for_tuning:
            self._images = self._images.for_tuning()
        self._label_smoothing = parameters.get("label_smoothing", 0.0)
        self._scaling: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self.train_examples = self._images.train_examples
        self.validation_examples = self._images.validation_examples
        self.data_fingerprint = self._images.fingerprint

    @classmethod
    def image_size(cls, parameters: Mapping[str, Any]) -> int:
        """Return the side in pixels to which images are scaled."""
        size: int = parameters["image_size"]
        return size

    @classmethod
    @abstractmethod
    def model_title(cls, parameters: Mapping[str, Any]) -> str:
        """Return the model's name in tables."""

    @override
    @classmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        """Return the names of the model and the data; the data's states the size of images that were scaled."""
        facts, size = images.FACTS[parameters["dataset"]], cls.image_size(parameters)
        data = facts.title if size == facts.size else f"{facts.title}, at {size} x {size}"
        return cls.model_title(parameters), data

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield ``{"images": [batch_size, channels, size, size], "labels": [batch_size]}``."""
        return self._images.batches(seed, start, self.batch_size)

    @override
    def sliced_batches(self, seed: int, start: int, rows: slice) -> Iterator[Batch]:
        return self._images.batches(seed, start, self.batch_size, rows)

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy with smoothed labels (Szegedy et al., CVPR 2016)."""
        inputs = to_device_of(model, batch)
        return functional.cross_entropy(
            model(self._standardize(inputs["images"])), inputs["labels"], label_smoothing=self._label_smoothing
        )

    @override
    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``loss``, the cross-entropy without smoothing, and ``accuracy``, the share classified correctly."""
        return self._measure(model, self._images.validation(team.part(self.validation_examples)), team)

    def _measure(self, model: nn.Module, batches: Iterable[Batch], team: Team) -> dict[str, float]:
        """Return loss and accuracy over the batches of all processes of ``team``."""
        device = next(model.parameters()).device
        # Sums stay on the device: reading a number after every chunk would make the CPU wait for the GPU.
        total, correct = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        examples = 0
        with evaluation_mode(model):
            for batch in batches:
                inputs = to_device_of(model, batch)
                logits = model(self._standardize(inputs["images"])).float()
                total += functional.cross_entropy(logits, inputs["labels"], reduction="sum")
                correct += (logits.argmax(1) == inputs["labels"]).sum()
                examples += len(logits)
        loss, right, number = totals(team, total.item(), correct.item(), examples)
        return {"loss": loss / number, "accuracy": right / number}

    def _standardize(self, pixels: Tensor) -> Tensor:
        """Return pixels in float32 with mean 0 and standard deviation 1 in each channel of the whole data set."""
        if pixels.device not in self._scaling:
            # Kept for each device: copying two small tensors to a GPU in every step would cost more than the division.
            mean, deviation = (
                torch.tensor(values, device=pixels.device)[:, None, None]
                for values in (self._facts.mean, self._facts.deviation)
            )
            self._scaling[pixels.device] = mean, deviation
        mean, deviation = self._scaling[pixels.device]
        values = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        return (values - mean) / deviation
