"""The view of a model for first-order optimizers that treat layers and other parameters differently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Self, cast

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mkor_core.capture.discovery import find_layers
from mkor_core.capture.layer import Layer
from mkor_core.ranges import AT_LEAST_1, require


@dataclass(frozen=True)
class LayeredModel:
    """A model and its layers, which ``optimizer_for`` gets in place of bare parameters."""

    model: nn.Module
    """The model without its DataParallel or DistributedDataParallel wrapper."""
    layers: Mapping[str, Layer]
    """The layers that a second-order method would precondition, by name: kinds that it knows, not excluded, and not
    sharing their weight with another module (a tied embedding)."""
    accumulation_steps: int
    """Micro-batches (backward passes) in a step; the loss of each is divided by their number."""
    is_parallel: bool
    """Whether the model came in a wrapper."""

    @classmethod
    def of(
        cls, model: nn.Module, exclude: str | nn.Module | Iterable[str | nn.Module] = (), accumulation_steps: int = 1
    ) -> Self:
        """Find a model's layers; arguments and errors are those of `Preconditioner`."""
        require("accumulation_steps", accumulation_steps, Annotated[int, AT_LEAST_1])
        is_parallel = isinstance(model, DataParallel | DistributedDataParallel)
        inner = cast("nn.Module", model.module) if is_parallel else model
        return cls(inner, find_layers(model, exclude), accumulation_steps, is_parallel)

    def all_but(self, taken: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return the model's parameters except ``taken``, in the model's order and without duplicates."""
        ids = {id(parameter) for parameter in taken}
        return [parameter for parameter in self.model.parameters() if id(parameter) not in ids]
