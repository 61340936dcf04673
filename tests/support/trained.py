"""Runs of the autoencoder that a test trains in its own process: how they are set up, disturbed and compared."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.experiments import TIMES, block, load, optimizer, rows, write
from workflow.bench.data.batches import Batch
from workflow.bench.plan.runs import Run
from workflow.bench.training import checkpoint, one_run
from workflow.bench.training.build import RunSetting
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder, Status
from workflow.bench.workloads.autoencoder import Autoencoder
from workflow.bench.workloads.base import ONE_PROCESS, Team, Workload

SMALL: dict[str, Any] = {"name": "autoencoder", "batch_size": 128, "hidden": [32, 8, 32]}


def run_of(folder: Path, name: str, shared: dict[str, Any] | None = None, **hyperparameters: Any) -> Run:
    """Return the single run of one optimizer, of a new experiment in a configuration folder."""
    write(folder, "one", block(optimizer(name, **hyperparameters), **{"workload": SMALL, **(shared or {})}))
    return load(folder).job("one", name).runs[0]


def never() -> bool:
    """Ask for no stop."""
    return False


def after(steps: int) -> Callable[[], bool]:
    """Return a function that asks for a stop after this number of steps."""
    counter = iter(range(1, 10**9))
    return lambda: next(counter) >= steps


def setting(stop: Callable[[], bool] = never, **changes: Any) -> RunSetting:
    """Return how a run is trained here: on the CPU, with a checkpoint only where it is asked to stop."""
    given = {"device": torch.device("cpu"), "checkpoint_minutes": 60, "progress": Progress(1, io.StringIO())}
    return RunSetting(**{**given, "stop": stop, **changes})


def train(run: Run, workload: Any, place: RunFolder, stop: Callable[[], bool] = never, **changes: Any) -> Status:
    """Train a run with a `setting`, and keep its weights."""
    return one_run.train(run, workload, place, setting(stop, **changes), keep_weights=True)


def weights(place: RunFolder, run: Run) -> dict[str, Tensor]:
    """Return a run's final weights."""
    return checkpoint.load(place.weights, run.id)


def assert_same_result(one: RunFolder, other: RunFolder, run: Run) -> None:
    """Check that two trainings of a run have the same rows, except for times, and the same weights, bit for bit."""
    assert rows(one.metrics, TIMES) == rows(other.metrics, TIMES)
    first, second = weights(one, run), weights(other, run)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def slow_steps() -> Callable[..., Tensor]:
    """Return the autoencoder's loss with a pause of ten milliseconds, so that a test can meet a run on its way."""
    quick = Autoencoder.loss

    def slow(self: Autoencoder, model: nn.Module, one: Batch) -> Tensor:
        time.sleep(0.01)
        return quick(self, model, one)

    return slow


class Changed:
    """A workload whose loss is changed in some of its calls, counted from 1; everything else is its own."""

    def __init__(self, workload: Workload, calls: Collection[int], change: Callable[[Tensor], Tensor]) -> None:
        self._workload = workload
        self._calls, self._change = calls, change
        self._call = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def loss(self, model: nn.Module, one: Batch) -> Tensor:
        """Return the loss, changed or not."""
        self._call += 1
        loss = self._workload.loss(model, one)
        return self._change(loss) if self._call in self._calls else loss


def amplified(workload: Workload, *calls: int) -> Any:
    """Return a workload whose loss is so large in some calls that float16's gradients overflow."""
    return Changed(workload, calls, lambda loss: loss * 1e25)


class Noisy(nn.Module):
    """A model whose input is dropped in part; a share of 0 changes nothing."""

    def __init__(self, inner: nn.Module, dropout: float) -> None:
        super().__init__()
        self.inner = inner
        self._dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's output."""
        return self.inner(self._dropout(images))


class InFloat64:
    """The autoencoder in double precision, so that sums in different orders agree to many digits."""

    def __init__(self, workload: Workload, dropout: float = 0.0) -> None:
        self._workload = workload
        self._dropout = dropout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def model(self, seed: int) -> nn.Module:
        """Return the model, whose input is dropped in part if that is asked for."""
        return Noisy(self._workload.model(seed).double(), self._dropout)

    def loss(self, model: nn.Module, one: Batch) -> Tensor:
        """Return the mean squared error of a batch."""
        images = one["images"].double()
        return nn.functional.mse_loss(model(images), images)

    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return a number that depends on all weights."""
        return {"loss": sum(float(each.detach().square().sum()) for each in model.parameters())}
