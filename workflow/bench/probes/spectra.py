"""Spectra of KFAC's right factors over training: smallest and largest eigenvalue, and condition number.

``python -m workflow.bench.probes.spectra --tier embedded --out spectra.csv`` trains each workload with KAISA, whose
factors are updated in every step here, and writes one row a layer, factor and step looked at. Columns:

- workload, optimizer, seed, step (number of steps taken before), loss (of that step's batch), layer, dimension.
- factor: ``running``, KFAC's right factor A, the running average that it decomposes, without damping; ``batch``,
  ``X^T X / n`` of that step's batch alone (a Conv2d's rows divided by its locations), which knows no start.
- smallest, largest: eigenvalues of the float32 factor, computed in float64; condition_number: their ratio, infinite
  where the smallest is not positive, which only rounding, or a singular factor, makes it.
- resolution: ``d eps largest``, eps of float32: an eigenvalue below it is rounding, and a condition number above
  ``largest / resolution`` says no more than "singular".
- start_weight: the weight that the identity, from which running averages start, still has in the factor; as long as
  it stands, no eigenvalue is below it. 0 for a batch.
- hardware, code_fingerprint, git_commit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import torch
from torch import Tensor

from baselines import KAISA, build
from mkor_core.capture import MOMENT, Capture
from mkor_core.discovery import find_layers
from workflow.bench.plan import Plan
from workflow.bench.probes import _command
from workflow.bench.probes._models import PERIOD, Subject, contenders, subjects

EXPERIMENTS = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion")
STEPS: Final = (0, 10, 25, 50, 100)
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
    hardware: str


class Spectrum(NamedTuple):
    """Extreme eigenvalues of a symmetric matrix, and what float32 can tell from zero."""

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


def follow(subject: Subject, seed: int, steps: Iterable[int], device: str, hardware: str) -> Iterator[Row]:
    """Yield the rows of one training."""
    looked_at = frozenset(steps)
    torch.manual_seed(seed)
    model = subject.data.model(seed).to(device)
    (contender,) = contenders(subject, subject.lr, "kaisa")
    values = {**contender.hyperparameters, "factor_update_period": 1, "inverse_update_period": PERIOD}
    optimizer, preconditioner = build(contender.method, model, values, exclude=subject.data.exclude)
    assert preconditioner is not None
    method = preconditioner.method
    assert isinstance(method, KAISA)
    capture = Capture(find_layers(model, subject.data.exclude), MOMENT)
    for step, batch in enumerate(islice(subject.data.batches(seed), max(looked_at) + 1)):
        capture.enabled = step in looked_at
        optimizer.zero_grad()
        loss = subject.data.loss(model, batch)
        loss.backward()
        optimizer.step()
        if not capture.enabled:
            continue
        running = preconditioner.state_dict()["layers"]
        for name, moments in capture.take().items():
            start = method.factor_decay ** (step + 1)
            for factor, matrix, weight in (
                ("running", running[name]["right"], start),
                ("batch", moments.x / moments.number, 0.0),
            ):
                yield Row(
                    subject.name,
                    contender.label,
                    seed,
                    step,
                    loss.item(),
                    name,
                    len(matrix),
                    factor,
                    *spectrum(matrix),
                    weight,
                    hardware,
                )
    capture.remove()


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    for subject in subjects(plan):
        yield from follow(subject, SEED, STEPS, plan.tier.device, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("spectra", measure))
