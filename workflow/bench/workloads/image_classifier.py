"""What the image classifiers share: their data, loss and metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.data import images
from workflow.bench.data.batches import Batch, seeded
from workflow.bench.workloads.base import Workload, beside, evaluating


class ImageClassifier(Workload):
    """A network that tells which of several classes an image shows, trained on the cross-entropy."""

    def __init__(self, label_smoothing: float = 0.0, **parameters: Any) -> None:
        """Load the data; ``parameters`` are the workload's own, ``label_smoothing`` left out.

        Raises `workflow.bench.data.folder.DataNotFound` where the data is not on this machine.
        """
        self._parameters = parameters
        self._facts = images.FACTS[parameters["dataset"]]
        self._images = images.load(parameters["dataset"], self.image_size(**parameters))
        self._label_smoothing = label_smoothing
        self._scaling: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self.batch_size = parameters["batch_size"]
        self.model_name, self.dataset_name = self.described(**parameters)
        self.train_examples = self._images.train_examples
        self.validation_examples = self._images.validation_examples
        self.data_fingerprint = self._images.fingerprint

    @classmethod
    @abstractmethod
    def image_size(cls, **parameters: Any) -> int:
        """Return the pixels a side that images are scaled to."""

    @classmethod
    @abstractmethod
    def named(cls, **parameters: Any) -> str:
        """Return the model as tables name it."""

    @classmethod
    def described(cls, **parameters: Any) -> tuple[str, str]:
        """Return the model's name, and the data's with the size of the images where it is not their own."""
        known, size = images.FACTS[parameters["dataset"]], cls.image_size(**parameters)
        return cls.named(**parameters), known.title if size == known.size else f"{known.title}, at {size} x {size}"

    def model(self, seed: int) -> nn.Module:
        """Return a new model, as `architecture` makes it."""
        with seeded(seed):
            return self.architecture(**self._parameters)

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches ``{"images": [batch_size, channels, size, size], "labels": [batch_size]}``."""
        return self._images.batches(seed, start, self.batch_size)

    def rows_of_batches(self, seed: int, start: int, rows: slice) -> Iterator[Batch]:
        """Yield examples ``rows`` of the batches of `batches`; other files are not read."""
        return self._images.batches(seed, start, self.batch_size, rows)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy with smoothed labels (Szegedy et al., CVPR 2016)."""
        here = beside(model, batch)
        return functional.cross_entropy(
            model(self._inputs(here["images"])), here["labels"], label_smoothing=self._label_smoothing
        )

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return ``loss``, the cross-entropy without smoothing, and ``accuracy``, the share of right classes."""
        return self._measure(model, self._images.validation())

    def _measure(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        device = next(model.parameters()).device
        # Summed up where they are: reading a number in every chunk would make a GPU wait.
        total, correct = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        examples = 0
        with evaluating(model):
            for batch in batches:
                here = beside(model, batch)
                logits = model(self._inputs(here["images"])).float()
                total += functional.cross_entropy(logits, here["labels"], reduction="sum")
                correct += (logits.argmax(1) == here["labels"]).sum()
                examples += len(logits)
        return {"loss": total.item() / examples, "accuracy": correct.item() / examples}

    def _inputs(self, pixels: Tensor) -> Tensor:
        """Return pixels with mean 0 and deviation 1 in each channel, in float32."""
        if pixels.device not in self._scaling:
            mean, deviation = (
                torch.tensor(values, device=pixels.device)[:, None, None]
                for values in (self._facts.mean, self._facts.deviation)
            )
            self._scaling[pixels.device] = mean, deviation
        mean, deviation = self._scaling[pixels.device]
        values = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        return (values - mean) / deviation
