"""Errors of rank-1 approximations of every layer's covariances over training: the best one, and MKOR's mean vector.

``python -m workflow.bench.probes.rank1_error --tier embedded --out rank1_error.csv`` trains each workload with its base
optimizer and inspects the batch of some steps. With rows R ``[n, d]`` (inputs X, with the trailing 1 of a bias, or
output gradients G; a Conv2d has one row per output location) and their second moment ``M = R^T R / n``, KFAC's A or C,
it writes ``|| M - u u^T ||_F / || M ||_F`` for a vector u. Columns:

- workload, optimizer, seed, step (number of earlier steps), loss (of that step's batch).
- layer, kind (Linear or Conv2d), side (activation or gradient), rows n, dimension d.
- approximation: ``best``, ``u u^T = lambda v v^T`` of the leading eigenpair, by power iteration; ``mean``, u the mean
  row (a or g), with which MKOR updates its factors; ``scaled_mean``, the multiple of the mean row that fits best, so
  that the error of its direction can be separated from that of its length.
- error: the relative error, which lies in [0, 1] for best and scaled_mean. Empty if M is zero. Large values are not
  cut off.
- iterations: of the power iteration, `ITERATIONS` if it did not converge; empty for the other approximations.
- precision: of training, that of the model's experiment; hardware, code_fingerprint, git_commit.

Everything is computed in float64 from the captured rows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import torch
from torch import Tensor

from mkor_core.capture.discovery import find_layers
from mkor_core.capture.rows import RowCapture
from workflow.bench.plan import Plan
from workflow.bench.probes import _command
from workflow.bench.probes._models import BASE, ProbeModel, optimizers, probe_models
from workflow.bench.probes._timing import TimedLoop
from workflow.bench.training.clocks import Clock

EXPERIMENTS: Final = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion")
STEPS: Final = (0, 10, 25, 50, 100)
SEEDS: Final[Mapping[str, tuple[int, ...]]] = {"cpu": (0, 1, 2, 3), "cuda": (0,)}
"""By device: nets, over which claims have their intervals; one for BERT-Large and ResNet-50, whose data are random."""
ITERATIONS: Final = 200
TOLERANCE: Final = 1e-9


class Row(NamedTuple):
    """One approximation of one matrix."""

    workload: str
    optimizer: str
    seed: int
    step: int
    loss: float
    layer: str
    kind: str
    side: str
    rows: int
    dimension: int
    approximation: str
    error: float
    iterations: int | None
    precision: str
    hardware: str


class Leading(NamedTuple):
    """The leading eigenpair of a moment, and the number of iterations that it took."""

    value: float
    vector: Tensor
    iterations: int


class Moment:
    """``M = R^T R / n`` of rows R ``[n, d]``, used in products with vectors; formed only if d <= n."""

    def __init__(self, rows: Tensor) -> None:
        n, d = rows.shape
        self.dimension = d
        self._rows = rows
        self._formed = rows.T @ rows / n if d <= n else None
        # || R^T R || = || R R^T ||, so the smaller of the two Gram matrices suffices.
        gram = rows @ rows.T / n if self._formed is None else self._formed
        self.squared_norm = float(gram.square().sum())

    def times(self, vector: Tensor) -> Tensor:
        """Return ``M v``; v: ``[d]``."""
        if self._formed is not None:
            return self._formed @ vector
        return self._rows.T @ (self._rows @ vector) / len(self._rows)


def leading(moment: Moment, start: Tensor) -> Leading:
    """Return the leading eigenpair by power iteration from ``start`` ``[d]``; the eigenvalue of a zero moment is 0.

    The iteration stops when the eigenvalue changes by at most `TOLERANCE` of itself.
    """
    vector = start / start.norm()
    value = 0.0
    for iteration in range(1, ITERATIONS + 1):
        image = moment.times(vector)
        new = image.norm().item()
        if new == 0:
            return Leading(0.0, vector, iteration)
        vector = image / new
        if abs(new - value) <= TOLERANCE * new:
            return Leading(new, vector, iteration)
        value = new
    return Leading(value, vector, ITERATIONS)


def relative_error(moment: Moment, vector: Tensor, scale: float) -> float:
    """Return ``|| M - scale v v^T ||_F / || M ||_F``; v: ``[d]``. NaN if M is zero."""
    if moment.squared_norm == 0:
        return math.nan
    quadratic = vector.dot(moment.times(vector)).item()
    length = vector.square().sum().item()
    square = moment.squared_norm - 2 * scale * quadratic + (scale * length) ** 2
    return math.sqrt(max(square, 0.0) / moment.squared_norm)  # rounding may put a perfect fit below zero


def errors(rows: Tensor) -> dict[str, tuple[float, int | None]]:
    """Return every approximation's error, and the iterations of the best one; rows: ``[n, d]`` float64."""
    moment = Moment(rows)
    start = torch.randn(moment.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    best = leading(moment, start.to(rows))
    mean = rows.mean(0)
    length = mean.square().sum().item()
    fitting = mean.dot(moment.times(mean)).item() / length**2 if length else 0.0
    return {
        "best": (relative_error(moment, best.vector, best.value), best.iterations),
        "mean": (relative_error(moment, mean, 1.0), None),
        "scaled_mean": (relative_error(moment, mean, fitting), None),
    }


def follow(model: ProbeModel, seed: int, steps: Iterable[int], device: str, hardware: str) -> Iterator[Row]:
    """Yield the rows of one training run."""
    inspected = frozenset(steps)
    torch.manual_seed(seed)
    (base,) = optimizers(model, model.lr, [BASE])
    loop = TimedLoop(model, base, device, seed=seed)
    layers = find_layers(loop.model, model.data.exclude)
    capture = RowCapture(layers)
    for step, batch in enumerate(islice(model.data.batches(seed), max(inspected) + 1)):
        capture.enabled = step in inspected
        loss = loop.backward(batch, Clock())
        for name, calls in capture.take_rows().items():
            of_layer = model.name, base.label, seed, step, loss.item(), name, type(layers[name].module).__name__
            sides = {"activation": [call.x for call in calls], "gradient": [call.g for call in calls]}
            for side, parts in sides.items():
                rows = torch.cat(parts).double()
                for approximation, error in errors(rows).items():
                    matrix = side, len(rows), rows.shape[1], approximation
                    yield Row(*of_layer, *matrix, *error, model.precision, hardware)
        loop.precision.step(loop.optimizer)
    capture.remove()


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    device = plan.tier.device
    for model in probe_models(plan):
        for seed in SEEDS[device]:
            yield from follow(model, seed, STEPS, device, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("rank1_error", measure))
