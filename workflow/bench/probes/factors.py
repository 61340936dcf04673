"""What MKOR's two factors do over training: their spectra, and how far each side alone turns the gradient.

``python -m workflow.bench.probes.factors --tier embedded --out factors.csv`` trains each workload with MKOR (exact
rule, vectors a and g as the paper has them) and follows ``J = c I - U diag(s) U^T`` on both sides of each layer, with a
column of U for each update, so that nothing is truncated. Beside the J_L of the training it follows two that differ
from it in the length of g alone. Columns:

- workload, optimizer (of the training), seed, step (number of earlier steps), loss (of that step's batch).
- layer, kind (Linear or Conv2d), side (left: J_L, of g; right: J_R, of a), dimension d.
- vectors: ``mkor``, as the paper has them; ``mkor_scaled``, g times 65,536, the first loss scale of float16 training,
  which stays in g if the caller of the released package does not pass the scale on; ``mkor_normalized``, g with the
  norm 3. J_R has ``mkor`` alone.
- vector_norm: of the last update's vector, after scaling. A g that is left out as rounding noise has 0.
- scale: c. smallest, median, largest: eigenvalues of J.
- removed: the share of ``c I``'s trace that J lacks. leading: the share of that which lies along one direction, 1 for
  ``c (I - kappa u u^T)``; empty if J is c I.
- direction_change: ``1 - cos`` of D and the update that this side alone gives, ``J_L D`` or ``D J_R``. Empty if D is 0.
- precision: of training, that of the model's experiment; hardware, code_fingerprint, git_commit.

Steps are inspected half a period after an update, the mean age of a factor when it is used. All values are computed in
float64 from the vectors of the training, so rounding of the training's own float32 factors is not among them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from mkor_core import MKOR
from mkor_core.capture.discovery import find_layers
from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.maths import inverses
from mkor_core.maths.inverses import WindowedInverse
from mkor_core.method import LayerState
from workflow.bench.plan import Plan
from workflow.bench.probes import _command
from workflow.bench.probes._models import PERIOD, ProbeModel, alexnet, optimizers, probe_models
from workflow.bench.probes._timing import TimedLoop
from workflow.bench.training.clocks import Clock

EXPERIMENTS: Final = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion", "alexnet_cifar100")
LABEL: Final = "mkor"
VECTORS: Final[Mapping[str, Mapping[str, Any]]] = {
    LABEL: {},
    "mkor_scaled": {"gradient_scale": 65536.0},
    "mkor_normalized": {"gradient_norm": 3.0},
}
"""The hyperparameters that make each kind of vectors; those of the training are the first."""
STEPS: Final = tuple(PERIOD // 2 + PERIOD * updates for updates in (0, 2, 5, 10, 20))
SEED: Final = 0


class Row(NamedTuple):
    """One side of one layer, for one kind of vectors."""

    workload: str
    optimizer: str
    seed: int
    step: int
    loss: float
    layer: str
    kind: str
    side: str
    dimension: int
    vectors: str
    vector_norm: float
    scale: float
    smallest: float
    median: float
    largest: float
    removed: float
    leading: float
    direction_change: float
    precision: str
    hardware: str


class FactorSpectrum(NamedTuple):
    """The eigenvalues of ``J = c I - U diag(s) U^T`` ``[d, d]`` in short; see the module."""

    scale: float
    smallest: float
    median: float
    largest: float
    removed: float
    leading: float


def spectrum(inverse: WindowedInverse) -> FactorSpectrum:
    """Return the spectrum of an inverse with weights s >= 0 in O(w^2 d), without forming J."""
    scale, dimension = inverse.scale.item(), inverse.rows.shape[-1]
    # The eigenvalues of U diag(s) U^T that are not 0 are those of the gram matrix.
    taken = torch.linalg.eigvalsh(inverse.gram()).clamp(min=0).flip(0)[:dimension]
    values = torch.full((dimension,), scale, dtype=taken.dtype, device=taken.device)
    values[: len(taken)] -= taken
    total = taken.sum().item()
    return FactorSpectrum(
        scale,
        values.min().item(),
        values.median().item(),
        values.max().item(),
        total / (scale * dimension),
        taken[0].item() / total if total > 0 else math.nan,
    )


def direction_change(update: Tensor, grad: Tensor) -> float:
    """Return ``1 - cos`` of two matrices, to full precision also where it is far below the rounding of 1; NaN for 0."""
    difference = update / torch.linalg.vector_norm(update) - grad / torch.linalg.vector_norm(grad)
    return difference.square().sum().item() / 2


class Factors:
    """The factors of all layers for one kind of vectors, in float64, with a column for each of a number of updates."""

    def __init__(self, method: MKOR, updates: int, layers: Mapping[str, Layer], device: torch.device) -> None:
        self._method = replace(method, window=max(2, updates))
        self._states: dict[str, LayerState] = {
            name: self._method.initial_state(LayerShape(layer.d_out, layer.d_in), torch.float64, device)
            for name, layer in layers.items()
        }

    def update(self, vectors: Mapping[str, LayerState], gradients: Mapping[str, Tensor], step: int) -> None:
        """Update the factors with a and g as the training's states hold them; gradients: D by layer."""
        for name, grad in gradients.items():
            a, g = (vectors[name][f"{side}_vectors"][:, 0].double() for side in ("right", "left"))
            state, norm = self._states[name], torch.linalg.vector_norm(grad)
            self._method.make_room(state, step)
            self._method.accumulate(state, Captured(a, g, torch.ones_like(norm), norm), step)

    def sides(self, name: str, grad: Tensor) -> Iterator[tuple[str, int, float, FactorSpectrum, float]]:
        """Yield the side, dimension, vector_norm, spectrum and direction_change of a layer's factors, given its D."""
        state = self._states[name]
        for side, update in self._method.one_sided(state, grad).items():
            norm = torch.linalg.vector_norm(state[f"{side}_vectors"]).item()
            inverse = inverses.from_state(state, side)
            assert isinstance(inverse, WindowedInverse)
            yield side, inverse.rows.shape[-1], norm, spectrum(inverse), direction_change(update, grad)


def follow(model: ProbeModel, seed: int, steps: Iterable[int], device: str, hardware: str) -> Iterator[Row]:
    """Yield the rows of one training run."""
    inspected = frozenset(steps)
    torch.manual_seed(seed)
    (mkor,) = optimizers(model, model.lr, [LABEL])
    loop = TimedLoop(model, mkor, device, seed=seed)
    preconditioner, scaler = loop.preconditioner, loop.precision.scaler
    assert preconditioner is not None
    method = preconditioner.method
    assert isinstance(method, MKOR)
    layers = find_layers(loop.model, model.data.exclude)
    updates = max(inspected) // method.inverse_update_period + 1
    kinds = {
        label: Factors(replace(method, **given), updates, layers, torch.device(device))
        for label, given in VECTORS.items()
    }
    batches, step = model.data.batches(seed), 0
    while step <= max(inspected):
        loss = loop.backward(next(batches), Clock())
        # The optimizer's step replaces D, here unscaled, by V.
        scale = 1.0 if scaler is None else scaler.get_scale()
        used = layers.items() if method.refreshes(step) or step in inspected else ()
        gradients = {name: layer.gradient().double() / scale for name, layer in used if layer.has_gradient()}
        if not loop.precision.step(loop.optimizer):
            continue  # a float16 gradient overflowed: the preconditioner does not count the step either
        if method.refreshes(step):
            vectors = preconditioner.state_dict()["layers"]
            for factors in kinds.values():
                factors.update(vectors, gradients, step)
        for name, grad in gradients.items() if step in inspected else ():
            training = model.name, LABEL, seed, step, loss.item(), name, type(layers[name].module).__name__
            for label, factors in kinds.items():
                for side, dimension, norm, values, change in factors.sides(name, grad):
                    if side == "left" or label == LABEL:  # all kinds have the same J_R
                        yield Row(*training, side, dimension, label, norm, *values, change, model.precision, hardware)
        step += 1


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    for model in [*probe_models(plan), *alexnet(plan)]:
        yield from follow(model, SEED, STEPS, plan.tier.device, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("factors", measure))
