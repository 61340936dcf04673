"""Checks of claims about the update rules: positive definite factors, the averaged inverse, a descent direction.

``python -m workflow.bench.probes.numerics --out numerics.csv`` writes one row for each check, rule and trial. Checks
have the ids of workflow/paper/claims.csv:

- C20 (Lemma 3.1): ``value`` is the smallest eigenvalue of a factor over a random sequence of updates; the claim holds
  if ``value > bound``. A sequence ends when that eigenvalue is no longer distinguishable from rounding: ``updates``
  below ``of`` means that the factor exceeded its precision there.
- C21 (section 3.1): ``value`` is ``||J_t (gamma J_{t-1}^-1 + (1 - gamma) v v^T) - I||_F`` after one update; the claim
  holds if ``value < bound``.
- C23 (Lemma 3.3): ``value`` is the smallest cosine, over the layers, between a gradient and its preconditioned version
  in step ``trial`` of a training run; the claim holds if ``value > bound``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

from mkor_core import MKOR, Preconditioner
from mkor_core.maths.inverses import DenseInverse, Rule
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.probes import _command

USES_GPU: Final = False
METHODS: Final = tuple(MKOR(update_rule=rule) for rule in get_args(get_type_hints(MKOR)["update_rule"]))
"""MKOR with each of its update rules, which linalg implements under the same names."""
SEQUENCES: Final = ("independent", "persistent mean")
TRIALS: Final = 8
"""A trial of C20 has one scale from 0.1 to 10."""
UPDATES: Final = 200
INVERSE_BOUND: Final = 1e-6  # the limit of C21 in workflow/paper/claims.csv
TRAINING_STEPS: Final = 400
LEARNING_RATE: Final = 0.1


class Row(NamedTuple):
    """One measured number, and the bound that decides whether its claim holds for it."""

    check: str
    update_rule: str
    dtype: str
    dimension: int
    trial: int
    value: float
    bound: float
    sequence: str
    updates: int
    of: int


def smallest_eigenvalues(method: MKOR, dimensions: Iterable[int] = (4, 16, 64)) -> Iterator[Row]:
    """Yield C20's rows: MKOR's factors over sequences of vectors, half of them around a persistent mean."""
    for dtype, dimension, trial in itertools.product((torch.float64, torch.float32), dimensions, range(TRIALS)):
        sequence = SEQUENCES[trial % 2]
        generator = torch.Generator().manual_seed(trial)
        scale = (10 ** (2 * torch.rand((), generator=generator, dtype=torch.float64) - 1)).item()
        vectors = random_vectors(UPDATES, dimension, sequence, scale, generator)
        value, updates = _follow(method, vectors.to(dtype))
        about = method.update_rule, dtype_name(dtype), dimension, trial
        yield Row("C20", *about, value, 0.0, sequence, updates, UPDATES)


def inverse_residuals(method: MKOR, dimensions: Iterable[int] = (4, 16, 64, 256)) -> Iterator[Row]:
    """Yield C21's rows: one update of a random inverse factor, against the average that it should invert."""
    decay = method.decay
    # The claim is about the update alone.
    unstabilized = replace(method.rule, threshold=torch.inf)
    for dimension, trial in itertools.product(dimensions, range(TRIALS)):
        generator = torch.Generator().manual_seed(trial)
        basis = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        identity = torch.eye(dimension, dtype=torch.float64)
        factor = basis @ basis.T / dimension + identity  # its condition number is at most about 5
        vector = torch.randn(dimension, generator=generator, dtype=torch.float64)
        updated = next_factor(method, torch.linalg.inv(factor), vector, unstabilized)
        average = decay * factor + (1 - decay) * torch.outer(vector, vector)
        value = torch.linalg.matrix_norm(updated @ average - identity).item()
        yield Row("C21", method.update_rule, "float64", dimension, trial, value, INVERSE_BOUND, "one update", 1, 1)


def descent_cosines(method: MKOR, steps: int = TRAINING_STEPS) -> Iterator[Row]:
    """Yield C23's rows: every step of training the autoencoder of digits with MKOR, up to a loss that is not finite."""
    workload = workloads.create("autoencoder")
    model = workload.model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    preconditioner = Preconditioner(model, method)
    layers = [model.get_submodule(name) for name in preconditioner.layers]
    size = sum(parameter.numel() for parameter in model.parameters())

    def gradient(layer: torch.nn.Module) -> Tensor:
        return torch.cat([one.grad.flatten() for one in layer.parameters() if one.grad is not None])

    rows = []
    for step, batch in zip(range(steps), workload.batches(seed=0), strict=False):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        # A training that diverged says nothing more about directions.
        if not torch.isfinite(loss):
            break
        loss.backward()
        before = [gradient(layer) for layer in layers]
        preconditioner.step()
        after = [gradient(layer) for layer in layers]
        cosines = [torch.cosine_similarity(d, v, dim=0) for d, v in zip(before, after, strict=True)]
        rows.append((step, torch.stack(cosines).min().item()))
        optimizer.step()
    for step, value in rows:
        yield Row("C23", method.update_rule, "float32", size, step, value, 0.0, "training", len(rows), steps)


def random_vectors(number: int, dimension: int, sequence: str, scale: float, generator: torch.Generator) -> Tensor:
    """Return ``[number, dimension]`` float64 vectors of one of the `SEQUENCES`."""
    noise = torch.randn(number, dimension, generator=generator, dtype=torch.float64)
    mean = torch.randn(dimension, generator=generator, dtype=torch.float64) if sequence == "persistent mean" else 0
    return scale * (noise + mean) / dimension**0.5


def _follow(method: MKOR, vectors: Tensor) -> tuple[float, int]:
    """Return the smallest eigenvalue of a factor over its updates, and the number of updates until it was lost.

    Beyond a condition number of ``1 / (d eps)`` the sign of the smallest eigenvalue is rounding.
    """
    dimension = vectors.shape[1]
    inverse = torch.eye(dimension, dtype=vectors.dtype)
    resolution = dimension * torch.finfo(vectors.dtype).eps
    smallest = 1.0
    for updates, vector in enumerate(vectors):
        inverse = next_factor(method, inverse, vector)
        if not torch.isfinite(inverse).all():
            return smallest, updates
        values = torch.linalg.eigvalsh(inverse.double())
        if values[0].abs() <= resolution * values[-1]:
            return smallest, updates
        smallest = min(smallest, values[0].item())
    return smallest, len(vectors)


def next_factor(method: MKOR, inverse: Tensor, vector: Tensor, rule: Rule | None = None) -> Tensor:
    """Return MKOR's inverse factor after one step, stabilized and updated: ``[d, d]``; vector: ``[d]``.

    rule: in place of the method's own.
    """
    factor = DenseInverse(inverse.clone(), torch.ones((), dtype=inverse.dtype))
    factor.update_(rule or method.rule, vector, 0, torch.tensor(True))
    return factor.to_matrix()


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type without its module: ``float32``."""
    return str(dtype).removeprefix("torch.")


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows; they do not depend on the tier."""
    del plan
    for check in (smallest_eigenvalues, inverse_residuals, descent_cosines):
        for method in METHODS:
            yield from check(method)


if __name__ == "__main__":
    sys.exit(_command.run("numerics", measure, uses_gpu=USES_GPU))
