"""Memory of every optimizer: the peak, and the bytes of its state by tensor, measured and computed.

``python -m workflow.bench.probes.memory --tier embedded --out memory.csv`` writes one row for each workload, optimizer
and tensor. Every optimizer is measured in its own process, over two steps of which the first refreshes. Columns:

- workload, optimizer, update_rule.
- quantity: ``parameters``, ``gradients``; ``first_order_state``, of the base optimizer, and ``preconditioner_state``,
  with the tensor's name in ``tensor``, summed over layers; ``peak``, the most at any time: allocated tensors on a GPU
  (the allocator's peak), resident memory of the process on a CPU, including interpreter and libraries;
  ``peak_over_start``, the same minus the memory of the process before it made the model.
- bytes: measured. computed_bytes: from shapes alone, by the optimizer's own code on the ``meta`` device; empty for a
  peak, which cannot be computed.
- precision: of training, that of the model's experiment; hardware, code_fingerprint, git_commit.

On a CPU the states of the embedded models are smaller than the noise of a process's resident memory, so the autoencoder
there is a wide one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch

from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _models, _ranks, _state_bytes
from workflow.bench.probes._costs import FLOAT
from workflow.bench.probes._models import ProbeModel, TimedOptimizer
from workflow.bench.probes._timing import SAFE_RATE, TimedLoop
from workflow.bench.training.peak_memory import peak_memory_bytes, reset_peak_memory

EXPERIMENTS: Final = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion")
TIMING: Final = True
OPTIMIZERS: Final = ("base", "mkor", "mkor_bfloat16", "mkor_windowed", "kaisa", "kaisa_inverse", "eva", "hylo")
WIDE: Final = (1024, 1024, 16, 1024, 1024)
"""Hidden layers of the wide autoencoder."""
STEPS: Final = 2


class Row(NamedTuple):
    """Bytes of one kind."""

    workload: str
    optimizer: str
    update_rule: str | None
    quantity: str
    tensor: str | None
    bytes: int
    computed_bytes: int | None
    precision: str
    hardware: str


def rows(model: ProbeModel, optimizer: TimedOptimizer, device: str, hardware: str) -> list[Row]:
    """Return one optimizer's rows; runs in a fresh process."""
    where = torch.device(device)
    reset_peak_memory(where)
    start = peak_memory_bytes(where)
    loop = TimedLoop(model, optimizer, device)
    # The first step makes all states, the second computes beside them.
    for _ in range(STEPS):
        loop.step()
    # Read before anything else allocates.
    peak = peak_memory_bytes(where)
    parameters = list(loop.model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    of_parameters = FLOAT * sum(parameter.numel() for parameter in parameters)
    sizes = [
        ("peak", None, peak, None),
        ("peak_over_start", None, peak - start, None),
        ("parameters", None, sum(one.nbytes for one in parameters), of_parameters),
        ("gradients", None, sum(one.nbytes for one in gradients), of_parameters),
        *_states(model, optimizer, loop),
    ]
    about = model.name, optimizer.label, optimizer.update_rule
    return [
        Row(*about, quantity, tensor, size, computed, model.precision, hardware)
        for quantity, tensor, size, computed in sizes
    ]


Sizes = tuple[str, str | None, int, int | None]
"""A quantity, a tensor's name, its bytes as measured, and as computed."""


def _states(model: ProbeModel, optimizer: TimedOptimizer, loop: TimedLoop) -> Iterator[Sizes]:
    """Yield the tensors of the base optimizer's state and of the preconditioner's."""
    (base,) = [optimizer] if loop.preconditioner is None else _models.optimizers(model, SAFE_RATE, [_models.BASE])
    kept = _state_bytes.first_order_bytes(loop.optimizer)
    states = {"first_order_state": (kept, _state_bytes.computed_first_order_bytes(model, base))}
    if loop.preconditioner is not None:
        measured = loop.preconditioner.memory_by_tensor()
        layers = _state_bytes.rows_by_layer(loop.model, model.data.exclude, loop.step)
        states["preconditioner_state"] = measured, _state_bytes.preconditioner_bytes(loop.preconditioner.method, layers)
    for quantity, (measured, computed) in states.items():
        for tensor in {**measured, **computed}:
            yield quantity, tensor, measured.get(tensor, 0), computed.get(tensor)


def models(plan: Plan) -> list[ProbeModel]:
    """Return a plan's models; on a CPU the autoencoder is a wide one."""
    chosen = [model for model in _models.probe_models(plan) if model.name != "autoencoder"]
    if plan.tier.device == "cpu" and _models.workload_of(plan, "autoencoder"):
        chosen.append(_models.wide_autoencoder(plan, WIDE, SAFE_RATE))
    return chosen


def measure(plan: Plan, labels: Sequence[str] = OPTIMIZERS) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    for model in models(plan):
        for optimizer in _models.optimizers(model, SAFE_RATE, labels):
            (of_optimizer,) = _ranks.run(1, rows, model, optimizer, plan.tier.device, plan.hardware)
            yield from of_optimizer


if __name__ == "__main__":
    sys.exit(_command.run("memory", measure, optimizers=OPTIMIZERS))
