"""Spectra of KFAC's right factors over training: smallest and largest eigenvalue, and condition number.

``python -m workflow.bench.probes.spectra --tier embedded --out spectra.csv`` trains each workload with KAISA, updating
its factors in every step, and writes one row for each layer, factor and inspected step. Columns:

- workload, optimizer, seed, step (number of earlier steps), loss (of that step's batch), layer, dimension.
- factor: ``running``, KFAC's right factor A, the running average that it decomposes, without damping; ``batch``,
  ``X^T X / n`` of that step's batch alone (a Conv2d's rows divided by its locations), without the initial identity.
- smallest, largest: eigenvalues of the float32 factor, computed in float64; condition_number: their ratio, infinite
  if the smallest is not positive, which only rounding or a singular factor causes.
- resolution: ``d eps largest``, eps of float32. An eigenvalue below it is rounding, and a condition number above
  ``largest / resolution`` means no more than "singular".
- start_weight: the remaining weight of the identity, from which running averages start. No eigenvalue of a running
  factor is below it. 0 for a batch.
- precision: of training, that of the model's experiment; hardware, code_fingerprint, git_commit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import torch
from torch import Tensor

from baselines import KAISA
from mkor_core.capture.discovery import find_layers
from mkor_core.capture.statistics import MOMENT
from mkor_core.capture.sums import Capture
from workflow.bench.plan import Plan
from workflow.bench.probes import _command
from workflow.bench.probes._models import ProbeModel, TimedOptimizer, optimizers, probe_models
from workflow.bench.probes._timing import TimedLoop
from workflow.bench.training.clocks import Clock

EXPERIMENTS: Final = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion")
STEPS: Final = (0, 10, 25, 50, 100, 300)
SEED: Final = 0


class Row(NamedTuple):
    """One factor's extreme eigenvalues."""

    workload: str
    optimizer: str
    seed: int
    step: int
    loss: float
    layer: str
    dimension: int
    factor: str
    smallest: float
    largest: float
    condition_number: float
    resolution: float
    start_weight: float
    precision: str
    hardware: str


class Spectrum(NamedTuple):
    """Extreme eigenvalues of a symmetric matrix, and the smallest that float32 can distinguish from zero."""

    smallest: float
    largest: float
    condition_number: float
    resolution: float


def spectrum(matrix: Tensor) -> Spectrum:
    """Return the spectrum of a positive semi-definite float32 ``[d, d]``, computed in float64."""
    values = torch.linalg.eigvalsh(matrix.double())
    smallest, largest = values[0].item(), values[-1].item()
    condition = largest / smallest if smallest > 0 else math.inf
    return Spectrum(smallest, largest, condition, len(matrix) * torch.finfo(torch.float32).eps * largest)


def follow(model: ProbeModel, seed: int, steps: Iterable[int], device: str, hardware: str) -> Iterator[Row]:
    """Yield the rows of one training run."""
    inspected = frozenset(steps)
    torch.manual_seed(seed)
    (kaisa,) = optimizers(model, model.lr, ["kaisa"])
    every_step = TimedOptimizer(kaisa.label, kaisa.method, {**kaisa.hyperparameters, "factor_update_period": 1})
    loop = TimedLoop(model, every_step, device, seed=seed)
    assert loop.preconditioner is not None
    method = loop.preconditioner.method
    assert isinstance(method, KAISA)
    capture = Capture(find_layers(loop.model, model.data.exclude), MOMENT)
    for step, batch in enumerate(islice(model.data.batches(seed), max(inspected) + 1)):
        capture.enabled = step in inspected
        loss = loop.backward(batch, Clock())
        loop.precision.step(loop.optimizer)
        if not capture.enabled:
            continue
        running = loop.preconditioner.state_dict()["layers"]
        for name, moments in capture.take().items():
            factors = {
                "running": (running[name]["right"], method.factor_decay ** (step + 1)),
                "batch": (moments.x / moments.number, 0.0),
            }
            of_layer = model.name, kaisa.label, seed, step, loss.item(), name
            for factor, (matrix, weight) in factors.items():
                values = spectrum(matrix)
                yield Row(*of_layer, len(matrix), factor, *values, weight, model.precision, hardware)
    capture.remove()


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    for model in probe_models(plan):
        yield from follow(model, SEED, STEPS, plan.tier.device, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("spectra", measure))
