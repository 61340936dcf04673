"""Strong scaling over worker processes: the time of a step, by phase, and the bytes that the preconditioner sends.

``python -m workflow.bench.probes.scaling --tier embedded --out scaling.csv`` writes one number a row. It needs the
machine to itself. Columns:

- quantity: ``step_ms``, ``<phase>_ms``: a step's time, and its parts, for the same global batch spread over ``workers``
  gloo processes, mean over the steps of a cycle (one refresh in 10) and over ranks; ``backward_ms`` includes the
  exchange of gradients by DistributedDataParallel. ``sent_bytes``: by the preconditioner in a cycle of 10 steps,
  counted in the collectives: of one rank for an all-reduce, of all ranks together for the other collectives;
  ``collective`` names it.
- source: ``measured``. Larger numbers of workers are the probe `projection`'s, on published links.
- workload, optimizer, workers, cores, batch (examples of a process), collective, repeat, value.
- precision: of training, that of the model's experiment; hardware, threads, code_fingerprint, git_commit.

More processes than cores slow each other down: 4 workers are measured on 4 cores only, and 2 on any machine. On a GPU
only one worker is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import torch

from mkor_core.ranks import comm
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _models, _ranks
from workflow.bench.probes._models import ProbeModel, TimedOptimizer
from workflow.bench.probes._timing import PHASES, SAFE_RATE, PhaseTimes, TimedLoop, over_ranks
from workflow.bench.support.provenance import usable_cores

EXPERIMENTS: Final = ("autoencoder_inversion", "bert_pretraining", "resnet50_imagenet")
CORES: Final = "all"
TIMING: Final = True
OPTIMIZERS: Final = ("base", "mkor", "kaisa")
GLOBAL_BATCH: Final = 1024
"""Examples of the small model's batch."""
HIDDEN: Final = (512, 256, 16, 256, 512)
"""Hidden layers of the small model."""
WORKERS: Final = {"cpu": (1, 2, 4), "cuda": (1,)}
"""Numbers of processes by device."""
LEAST_WORKERS: Final = 2
"""Workers that are measured however few the cores, because one sends nothing."""
REPEATS: Final = 3


class Row(NamedTuple):
    """One number."""

    quantity: str
    source: str
    workload: str
    optimizer: str
    workers: int
    cores: int
    batch: int
    collective: str | None
    repeat: int | None
    value: float
    precision: str
    hardware: str
    threads: int


class RankResult(NamedTuple):
    """One rank's measurements of one optimizer: a cycle's steps by repeat, and bytes by collective in each step."""

    cycles: list[list[PhaseTimes]]
    sent: list[dict[str, int]]


def train(model: ProbeModel, chosen: Sequence[TimedOptimizer], device: str, repeats: int) -> dict[str, RankResult]:
    """Time whole cycles of every optimizer, by turns; runs on every rank."""
    loops = {optimizer.label: TimedLoop(model, optimizer, device) for optimizer in chosen}
    measured = {label: RankResult([], []) for label in loops}
    for loop in loops.values():
        loop.times(0)
    for _ in range(repeats):
        for label, loop in loops.items():
            measured[label].cycles.append(loop.times(_models.PERIOD))
    # Bytes are counted in steps of their own: they do not vary, and counting them is not part of a timed step.
    for label, loop in loops.items():
        for _ in range(_models.PERIOD):
            comm.reset_bytes_sent()
            loop.step()
            measured[label].sent.append(comm.bytes_sent())
    return measured


def sent_in_cycle(sent: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, int]:
    """Return a cycle's bytes by collective: of one rank for an all-reduce, of all ranks together for the others.

    sent: ``[rank][step]``.
    """
    sizes: dict[str, int] = {}
    for rank, steps in enumerate(sent):
        for step in steps:
            for name, size in step.items():
                # Every rank hands the same payload to an all-reduce.
                sizes[name] = sizes.get(name, 0) + (size if rank == 0 or name != "all_reduce" else 0)
    return sizes


def rows(
    model: ProbeModel,
    chosen: Sequence[TimedOptimizer],
    device: str,
    hardware: str,
    workers: Sequence[int],
    *,
    repeats: int = REPEATS,
) -> Iterator[Row]:
    """Yield the times by phase and the bytes sent of one model; workers: numbers of processes, 1 first."""
    for number in workers:
        parallel = [optimizer for optimizer in chosen if optimizer.runs_on(number)]
        ranks = (
            [train(model, parallel, device, repeats)]
            if number == 1
            else _ranks.run(number, train, model, parallel, device, repeats)
        )
        where = model.precision, hardware, torch.get_num_threads()
        for label in ranks[0]:
            about = "measured", model.name, label, number, os.cpu_count() or 1, model.data.batch_size // number
            for repeat in range(repeats):
                steps = over_ranks([of_rank[label].cycles[repeat] for of_rank in ranks])
                parts = {phase: fmean(step.ms[phase] for step in steps) for phase in PHASES}
                for name, value in {**parts, "step": sum(parts.values())}.items():
                    yield Row(f"{name}_ms", *about, None, repeat, value, *where)
            for collective, size in sent_in_cycle([of_rank[label].sent for of_rank in ranks]).items():
                yield Row("sent_bytes", *about, collective, None, size, *where)


def measure(plan: Plan, labels: Sequence[str] = OPTIMIZERS) -> Iterator[Row]:
    """Yield all rows of a plan's tier: of a wide autoencoder on a CPU, of ResNet-50 on a GPU."""
    device = plan.tier.device
    if device == "cuda":
        model = next(model for model in _models.probe_models(plan) if model.name == "resnet")
    else:
        model = _models.wide_autoencoder(plan, HIDDEN, SAFE_RATE, batch_size=GLOBAL_BATCH)
    most = max(usable_cores(), LEAST_WORKERS)
    workers = [number for number in WORKERS[device] if number <= most]
    return rows(model, _models.optimizers(model, SAFE_RATE, labels), device, plan.hardware, workers)


if __name__ == "__main__":
    sys.exit(_command.run("scaling", measure, optimizers=OPTIMIZERS))
