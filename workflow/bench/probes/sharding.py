"""Memory and bytes of a rank, measured on gloo processes, with parameters whole on every rank and sharded.

``python -m workflow.bench.probes.sharding --tier embedded --out sharding.csv`` trains a wide autoencoder with every
optimizer for a few steps, of which every other one refreshes, and writes one row for each quantity of each rank. Bytes
do not depend on the device, so the probe runs on the CPU at every tier. Columns:

- workload, workers, rank.
- optimizer: a label as in the probe projection: with ``_sharded`` under ``fully_shard``, otherwise under
  DistributedDataParallel; with ``_owners`` each layer's dense factors at one rank.
- quantity: ``parameters``, ``gradients``, ``first_order_state``: of this rank; ``preconditioner_state``:
  `Preconditioner.memory_bytes`; ``peak_live``: the most bytes of tensors that the preconditioner makes in a step and
  that live at the same time, after the first step; ``sent_refreshing``, ``sent_otherwise``: the payload that the rank
  hands to ``collective`` in a step that refreshes, and in one that does not, counted there, without the exchange of
  parameters and gradients.
- bytes: measured. computed_bytes: by the formulas of `_sharding`; empty for a peak, which has none.
- hardware, code_fingerprint, git_commit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from mkor_core.capture.blocks import local
from mkor_core.capture.discovery import find_layers
from mkor_core.ranks import comm
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks, _sharding
from workflow.bench.probes._costs import FLOAT, Layer
from workflow.bench.probes._live_bytes import LiveBytes
from workflow.bench.probes._models import ProbeModel, wide_autoencoder
from workflow.bench.probes._parallel import parallelize, preconditioner_of
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes._timed_loop import SAFE_RATE

USES_GPU: Final = False
TIMING: Final = True
OPTIMIZERS: Final = (
    "base",
    "mkor",
    "mkor_owners_ddp",
    "mkor_windowed",
    "eva",
    "kaisa_mem_opt",
    "base_sharded",
    "mkor_owners_sharded",
    "mkor_windowed_sharded",
    "eva_sharded",
    "kaisa_mem_opt_sharded",
)
WORKERS: Final = (2, 4)
HIDDEN: Final = (512, 256, 16, 256, 512)
"""Hidden layers of the model."""
BATCH: Final = 32
FIRST_ORDER: Final = 1
"""Numbers that SGD with momentum keeps of each parameter."""
REFRESH_EVERY: Final = 2
STEPS: Final = 4
SENT: Final = {"sent_refreshing": 2, "sent_otherwise": 1}
"""Quantities of bytes sent, and the steps in which they are counted."""


class Row(NamedTuple):
    """Bytes of one kind on one rank."""

    workload: str
    optimizer: str
    workers: int
    rank: int
    quantity: str
    collective: str | None
    bytes: int
    computed_bytes: int | None
    hardware: str


class Measured(NamedTuple):
    """What one rank measured of one optimizer, in bytes."""

    parameters: int
    gradients: int
    first_order_state: int
    preconditioner_state: int
    peak_live: int
    sent: list[dict[str, int]]
    """By collective, in each step."""


def train(model: ProbeModel, labels: Sequence[str]) -> dict[str, Measured]:
    """Train a cycle of every optimizer; runs on every rank."""
    return {label: _measured(model, Setup.of(label, REFRESH_EVERY)) for label in labels}


def _measured(model: ProbeModel, setup: Setup) -> Measured:
    network = parallelize(model.data.model(seed=0), is_sharded=setup.is_sharded)
    preconditioner = None if setup.method is None else preconditioner_of(setup, network)
    optimizer = torch.optim.SGD(network.parameters(), lr=SAFE_RATE, momentum=0.9)
    share = slice(comm.rank() * BATCH // comm.world_size(), (comm.rank() + 1) * BATCH // comm.world_size())
    batch = {name: tensor[share] for name, tensor in next(model.data.batches(seed=0)).items()}
    peak = 0
    sent = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model.data.loss(network, batch).backward()
        comm.reset_bytes_sent()
        if preconditioner is not None:
            with LiveBytes() as live:
                preconditioner.step()
            # The first step makes the state.
            peak = max(peak, live.peak) if step else 0
        sent.append(comm.bytes_sent())
        optimizer.step()
    parameters = [*network.parameters()]
    return Measured(
        _bytes(parameters),
        _bytes(parameter.grad for parameter in parameters),
        _bytes(state["momentum_buffer"] for state in optimizer.state.values()),
        0 if preconditioner is None else preconditioner.memory_bytes(),
        peak,
        sent,
    )


def _bytes(tensors: Any) -> int:
    """Return the bytes that this rank has of some tensors, which may be sharded."""
    parts: list[Tensor] = [local(tensor) for tensor in tensors]
    return sum(part.numel() * part.element_size() for part in parts)


def layers_of(model: ProbeModel) -> tuple[Layer, ...]:
    """Return the shapes of a model's preconditioned layers."""
    layers = find_layers(model.data.model(seed=0), model.data.exclude)
    return tuple(Layer(layer.d_out, layer.d_w, has_bias=layer.has_bias) for layer in layers.values())


def shard_numbers(model: ProbeModel, ranks: int, rank: int) -> int:
    """Return the numbers of all parameters that a rank has."""
    parameters = model.data.model(seed=0).parameters()
    return sum(_sharding.shard_rows(len(one), ranks, rank) * (one.numel() // len(one)) for one in parameters)


def rows(model: ProbeModel, labels: Sequence[str], workers: Sequence[int], hardware: str) -> Iterator[Row]:
    """Yield the rows of some optimizers on some numbers of processes."""
    layers = layers_of(model)
    for number in workers:
        by_rank = _ranks.run(number, train, model, tuple(labels))
        for label in labels:
            setup, shown = Setup.of(label, REFRESH_EVERY), label.replace("base", model.base)
            for rank, of_rank in enumerate(by_rank):
                numbers = shard_numbers(model, number, rank) if setup.is_sharded else shard_numbers(model, 1, 0)
                for sizes in _memory(setup, layers, of_rank[label], numbers, number, rank):
                    yield Row(model.name, shown, number, rank, sizes[0], None, *sizes[1:], hardware)
                for quantity, step in SENT.items():
                    counted = of_rank[label].sent[step]
                    computed = _sharding.sent_bytes(setup, layers, number, rank, step)
                    for collective in sorted({*counted, *computed}):
                        pair = counted.get(collective, 0), computed.get(collective, 0)
                        yield Row(model.name, shown, number, rank, quantity, collective, *pair, hardware)


def _memory(
    setup: Setup, layers: tuple[Layer, ...], measured: Measured, numbers: int, ranks: int, rank: int
) -> Iterator[tuple[str, int, int | None]]:
    """Yield each quantity's name, bytes and computed bytes; numbers: of the parameters that the rank has."""
    yield "parameters", measured.parameters, FLOAT * numbers
    yield "gradients", measured.gradients, FLOAT * numbers
    yield "first_order_state", measured.first_order_state, FLOAT * numbers * FIRST_ORDER
    if setup.method is not None:
        computed = _sharding.state_bytes(setup, layers, ranks, rank)
        yield "preconditioner_state", measured.preconditioner_state, computed
        yield "peak_live", measured.peak_live, None


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows."""
    model = wide_autoencoder(plan, HIDDEN, SAFE_RATE, batch_size=BATCH)
    return rows(model, OPTIMIZERS, WORKERS, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("sharding", measure, uses_gpu=USES_GPU))
