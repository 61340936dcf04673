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
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import torch

from mkor_core.capture.blocks import local
from mkor_core.capture.discovery import find_layers
from mkor_core.ranks import comm
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks, _sharding
from workflow.bench.probes._costs import FLOAT, CostedLayer
from workflow.bench.probes._counting import LiveBytes
from workflow.bench.probes._models import ProbeModel, wide_autoencoder
from workflow.bench.probes._ranks import parallelize, preconditioner_of
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes._timing import SAFE_RATE

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


class MeasuredRank(NamedTuple):
    """What one rank measured of one optimizer, in bytes."""

    kept: dict[str, int]
    """By quantity."""
    sent: list[dict[str, int]]
    """By collective, in each step."""


def train(model: ProbeModel, labels: Sequence[str]) -> dict[str, MeasuredRank]:
    """Train a cycle of every optimizer; runs on every rank."""
    return {label: _measured(model, Setup.of(label, REFRESH_EVERY)) for label in labels}


def _measured(model: ProbeModel, setup: Setup) -> MeasuredRank:
    network = parallelize(model.data.model(seed=0), is_sharded=setup.is_sharded)
    preconditioner = None if setup.method is None else preconditioner_of(setup, network)
    optimizer = torch.optim.SGD(network.parameters(), lr=SAFE_RATE, momentum=0.9)
    share = slice(comm.rank() * BATCH // comm.world_size(), (comm.rank() + 1) * BATCH // comm.world_size())
    batch = {name: tensor[share] for name, tensor in next(model.data.batches(seed=0)).items()}
    peak, sent = 0, []
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
    tensors: dict[str, Iterable[Any]] = {
        "parameters": network.parameters(),
        "gradients": (parameter.grad for parameter in network.parameters()),
        "first_order_state": (state["momentum_buffer"] for state in optimizer.state.values()),
    }
    # Of sharded tensors those parts count that this rank has.
    kept = {quantity: sum(local(tensor).nbytes for tensor in of_one) for quantity, of_one in tensors.items()}
    if preconditioner is not None:
        kept |= {"preconditioner_state": preconditioner.memory_bytes(), "peak_live": peak}
    return MeasuredRank(kept, sent)


def rows(model: ProbeModel, labels: Sequence[str], workers: Sequence[int], hardware: str) -> Iterator[Row]:
    """Yield the rows of some optimizers on some numbers of processes."""
    network = model.data.model(seed=0)
    found = find_layers(network, model.data.exclude).values()
    layers = tuple(CostedLayer(layer.d_out, layer.d_w, has_bias=layer.has_bias) for layer in found)
    for number in workers:
        by_rank = _ranks.run(number, train, model, tuple(labels))
        for label, rank in product(labels, range(number)):
            setup, shown, measured = (
                Setup.of(label, REFRESH_EVERY),
                label.replace("base", model.base),
                by_rank[rank][label],
            )
            place = (number, rank) if setup.is_sharded else (1, 0)
            numbers = sum(
                _sharding.shard_rows(len(one), *place) * (one.numel() // len(one)) for one in network.parameters()
            )
            computed = {
                **dict.fromkeys(("parameters", "gradients"), FLOAT * numbers),
                "first_order_state": FLOAT * numbers * FIRST_ORDER,
                "preconditioner_state": _sharding.state_bytes(setup, layers, number, rank),
            }
            for quantity, size in measured.kept.items():
                yield Row(model.name, shown, number, rank, quantity, None, size, computed.get(quantity), hardware)
            for quantity, step in SENT.items():
                counted = measured.sent[step]
                predicted = _sharding.sent_bytes(setup, layers, number, rank, step)
                for collective in sorted({*counted, *predicted}):
                    pair = counted.get(collective, 0), predicted.get(collective, 0)
                    yield Row(model.name, shown, number, rank, quantity, collective, *pair, hardware)


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows."""
    model = wide_autoencoder(plan, HIDDEN, SAFE_RATE, batch_size=BATCH)
    return rows(model, OPTIMIZERS, WORKERS, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("sharding", measure, uses_gpu=USES_GPU))
