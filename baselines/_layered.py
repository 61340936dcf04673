"""A model as the harness sees it: layers that a method may treat as matrices, and everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self, cast

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mkor_core.discovery import find_layers
from mkor_core.layer import Layer
from mkor_core.method import require_period


@dataclass(frozen=True)
class LayeredModel:
    """What a first-order file that asks for the model gets in place of bare parameters.

    model: the model, out of its DataParallel or DistributedDataParallel wrapper.
    layers: by name, the layers that a second-order method would precondition: Linear or Conv2d, not excluded, and not
        sharing their weight with another module (a tied embedding).
    accumulation_steps: micro-batches (backward passes) that make up a step, the loss being divided by their number.
    is_parallel: whether a wrapper was taken off.
    """

    model: nn.Module
    layers: Mapping[str, Layer]
    accumulation_steps: int
    is_parallel: bool

    @classmethod
    def of(
        cls, model: nn.Module, exclude: str | nn.Module | Iterable[str | nn.Module] = (), accumulation_steps: int = 1
    ) -> Self:
        """Find a model's layers; the arguments are a `Preconditioner`'s, and so are the errors."""
        require_period("accumulation_steps", accumulation_steps)
        is_parallel = isinstance(model, DataParallel | DistributedDataParallel)
        inner = cast("nn.Module", model.module) if is_parallel else model
        return cls(inner, find_layers(model, exclude), accumulation_steps, is_parallel)

    def all_but(self, taken: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return the model's parameters without those in ``taken``, in the model's order, a shared one once."""
        ids = {id(parameter) for parameter in taken}
        return [parameter for parameter in self.model.parameters() if id(parameter) not in ids]
