"""MKOR's update in half precision: its error and the paper's bound on it, and whether it stays finite.

``python -m workflow.bench.probes.half_precision --out half_precision.csv`` writes rows of three checks for claim C22:

- ``error`` (Lemma 3.2): one update of an inverse factor that half precision represents exactly. ``value`` is the
  largest entry of the difference between the update in half precision and in float64. ``bound`` is
  ``(gamma + 4 (1 - gamma) / gamma^2 m^3 d^2) eps``, the expression inside the lemma's O(.) with the constant 1, m the
  largest entry of factor and vector (``largest_entry``) and eps half the distance from 1 to the next number. A value
  below it satisfies the lemma with that constant. The lemma is stated for the ``published`` rule; the other rules have
  the expression for comparison.
- ``finite``: 10,000 successive updates, each after the stabilizer. ``value`` is the number of updates after which all
  entries were finite, ``bound`` the number of updates attempted; a smaller value is the update of the first infinity
  or NaN. ``largest_entry`` is that of the factor at the end, or at the last finite update.
- ``blend``: the same for 1,000 updates of the ``published`` rule and several blends of the stabilizer (zeta, whose
  value the paper does not state).

In ``error``, a factor beyond the range of half precision has an infinite ``largest_entry``. An update that overflowed
has an infinite ``value``, or none if it is NaN.

Columns: check, update_rule, blend (the stabilizer's zeta), dtype, arithmetic, sequence, dimension, trial, value, bound,
largest_entry, code_fingerprint, git_commit. ``arithmetic`` is ``stored`` if factors and vectors are stored in half
precision and the update is computed in float32 (as in mkor_core), ``half`` if the whole recurrence runs in half
precision (as in the released code). ``sequence``: ``independent`` vectors, or a ``persistent mean`` with noise; norms
from 0.1 to 10.

It runs on the CPU at every tier, since rounding differs between devices only by the order of sums.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from mkor_core import MKOR
from workflow.bench.plan import Plan
from workflow.bench.probes import _command
from workflow.bench.probes.numerics import METHODS, SEQUENCES, dtype_name, next_factor, random_vectors

USES_GPU: Final = False
DTYPES: Final = (torch.float16, torch.bfloat16)
ARITHMETICS: Final = ("stored", "half")
DIMENSIONS: Final = (16, 64, 256)
TRIALS: Final = 6
UPDATES: Final = 10_000
FINITE_DIMENSION: Final = 32
"""The dimension of the factors in the check ``finite``."""
BLENDS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
BLEND_UPDATES: Final = 1_000
"""Updates in the check ``blend``; a factor that grows does so by a tenth or more in each."""
HISTORY: Final = 20
"""Number of float64 updates that precede the update examined in the check ``error``."""


class Row(NamedTuple):
    """One examined update, or one sequence of updates."""

    check: str
    update_rule: str
    blend: float
    dtype: str
    arithmetic: str
    sequence: str
    dimension: int
    trial: int
    value: float
    bound: float
    largest_entry: float


def lemma_bound(decay: float, largest: float, dimension: int, dtype: torch.dtype) -> float:
    """Return ``(gamma + 4 (1 - gamma) / gamma^2 m^3 d^2) eps`` (Lemma 3.2), eps the unit roundoff."""
    unit_roundoff = torch.finfo(dtype).eps / 2
    return (decay + 4 * (1 - decay) / decay**2 * largest**3 * dimension**2) * unit_roundoff


def updated(method: MKOR, inverse: Tensor, vector: Tensor, arithmetic: str) -> Tensor:
    """Return the next factor in ``inverse``'s dtype; stabilized and updated in float32 or in that dtype itself."""
    wide = torch.float32 if arithmetic == "stored" else inverse.dtype
    return next_factor(method, inverse.to(wide), vector.to(wide)).to(inverse.dtype)


def vectors(number: int, dimension: int, trial: int, sequence: str) -> Tensor:
    """Return ``[number, dimension]`` float64 vectors; the scales of the trials are log-spaced from 0.1 to 10."""
    scale = 10 ** (2 * trial / max(TRIALS - 1, 1) - 1)
    return random_vectors(number, dimension, sequence, scale, torch.Generator().manual_seed(trial))


def update_errors(method: MKOR, dimensions: Iterable[int] = DIMENSIONS) -> Iterator[Row]:
    """Yield the rows of the check ``error``."""
    for dtype, arithmetic, sequence, dimension, trial in itertools.product(
        DTYPES, ARITHMETICS, SEQUENCES, dimensions, range(TRIALS)
    ):
        # Updates before the one that is examined, since a factor that is still the identity would lose nothing.
        *history, last = vectors(HISTORY + 1, dimension, trial, sequence)
        inverse = torch.eye(dimension, dtype=torch.float64)
        for vector in history:
            inverse = next_factor(method, inverse, vector)
        inverse, vector = inverse.to(dtype), last.to(dtype)
        truth = next_factor(method, inverse.double(), vector.double())
        error = (updated(method, inverse, vector, arithmetic).double() - truth).abs().max().item()
        largest = max(inverse.abs().max().item(), vector.abs().max().item())
        bound = lemma_bound(method.decay, largest, dimension, dtype)
        rule = method.update_rule, method.stabilizer_blend
        yield Row("error", *rule, dtype_name(dtype), arithmetic, sequence, dimension, trial, error, bound, largest)


def finite_updates(method: MKOR, number: int = UPDATES, check: str = "finite") -> Iterator[Row]:
    """Yield the rows of a check for finite factors, for the largest vectors, the most difficult ones."""
    trial = TRIALS - 1
    for dtype, arithmetic, sequence in itertools.product(DTYPES, ARITHMETICS, SEQUENCES):
        inverse = torch.eye(FINITE_DIMENSION, dtype=dtype)
        done = number
        for index, vector in enumerate(vectors(number, FINITE_DIMENSION, trial, sequence).to(dtype)):
            result = updated(method, inverse, vector, arithmetic)
            if not math.isfinite(result.sum(dtype=torch.float64).item()):
                done = index
                break
            inverse = result
        largest = inverse.abs().max().item()
        rule = method.update_rule, method.stabilizer_blend
        yield Row(check, *rule, dtype_name(dtype), arithmetic, sequence, FINITE_DIMENSION, trial, done, number, largest)


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows; they do not depend on the tier."""
    del plan
    for method in METHODS:
        yield from update_errors(method)
        yield from finite_updates(method)
    for blend in BLENDS:
        yield from finite_updates(MKOR(update_rule="published", stabilizer_blend=blend), BLEND_UPDATES, check="blend")


if __name__ == "__main__":
    sys.exit(_command.run("half_precision", measure, uses_gpu=USES_GPU))
