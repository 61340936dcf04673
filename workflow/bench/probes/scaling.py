"""Strong scaling over worker processes, and an alpha-beta model of larger numbers of workers.

``python -m workflow.bench.probes.scaling --tier embedded --out scaling.csv`` writes one number a row. It needs the
machine to itself. ``source`` is ``measured`` or ``model``. Columns:

- quantity: ``step_ms``, ``<phase>_ms``: a step's time, and its parts, for the same global batch spread over ``workers``
  gloo processes, mean over the steps of a cycle (one refresh in 10) and over ranks; ``backward_ms`` includes the
  exchange of gradients by DistributedDataParallel. In ``model`` rows that exchange is apart, in ``gradients_ms``, and
  ``divided_ms`` is forward, backward and capture together.
  ``local_step_ms``: one process, alone, on ``batch`` examples. The model takes the computation from these, since
  more processes than ``cores`` slow each other down. ``all_reduce_ms``, ``broadcast_ms`` (``all_gather_ms`` if an
  optimizer gathers): one collective of ``bytes`` a rank. ``alpha_us``, ``beta_ns``: fitted to these, the cost of a
  message's start and of a byte. ``sent_bytes``: by the preconditioner in a cycle of 10 steps, counted in the
  collectives: of one rank for an all-reduce, of all ranks together for the other collectives; ``collective`` names it.
  ``gradient_bytes``: of all parameters.
- source, workload, optimizer (empty if the quantity does not depend on it), workers, cores, batch (examples of a
  process), bytes, collective, repeat, value.
- precision: of training, that of the model's experiment; hardware, threads, code_fingerprint, git_commit.

`_scaling_model` states the model. On one machine alpha and beta are those of gloo between processes that share memory
and cores, so a ``model`` row shows how the method's work and bytes scale on such links, not what a cluster would do.

On a GPU only one worker is measured, and no collective, so there are no model rows.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mkor_core import comm
from workflow.bench.analysis import fits
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks
from workflow.bench.probes._models import ProbeModel, probe_models, wide_autoencoder
from workflow.bench.probes._optimizers import PERIOD, TimedOptimizer, optimizers
from workflow.bench.probes._scaling_model import by_step, modeled, totals, work_of
from workflow.bench.probes._timed_loop import PHASES, SAFE_RATE, StepTimes, TimedLoop, over_ranks

EXPERIMENTS: Final = ("autoencoder_inversion", "bert_pretraining", "resnet50_imagenet")
CORES: Final = "all"
TIMING: Final = True
OPTIMIZERS: Final = ("base", "mkor", "kaisa")
GLOBAL_BATCH: Final = 1024
"""Examples of the small model's batch, so that each of 1,024 workers has one."""
HIDDEN: Final = (512, 256, 16, 256, 512)
"""Hidden layers of the small model."""
WORKERS: Final = {"cpu": (1, 2, 4), "cuda": (1,)}
FRACTIONS: Final = (1, 4, 16, 64)
"""Parts of the global batch on which one process is timed alone: batch / fraction."""
MODELED: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PAYLOADS: Final = (256, 4096, 65536, 1048576, 8388608)
REPEATS: Final = 3
COLLECTIVE_REPEATS: Final = 5
TIMED_COLLECTIVES: Final = ("all_reduce", "broadcast")
"""Collectives that are timed whether or not an optimizer uses them."""


class Row(NamedTuple):
    """One number."""

    quantity: str
    source: str
    workload: str | None
    optimizer: str | None
    workers: int
    cores: int
    batch: int | None
    bytes: int | None
    collective: str | None
    repeat: int | None
    value: float
    precision: str
    hardware: str
    threads: int


class RankResult(NamedTuple):
    """One rank's measurements of one optimizer: a cycle's steps by repeat, and bytes by collective in each step."""

    cycles: list[list[StepTimes]]
    sent: list[dict[str, int]]


def train(
    model: ProbeModel, chosen: Sequence[TimedOptimizer], device: str, repeats: int, batch: int
) -> dict[str, RankResult]:
    """Time whole cycles of every optimizer, by turns, on ``batch`` examples in total; runs on every rank."""
    loops = {optimizer.label: TimedLoop(model, optimizer, device, batch_size=batch) for optimizer in chosen}
    measured = {label: RankResult([], []) for label in loops}
    for loop in loops.values():
        loop.times(0)
    for _ in range(repeats):
        for label, loop in loops.items():
            measured[label].cycles.append(loop.times(PERIOD))
    for label, loop in loops.items():
        for _ in range(PERIOD):
            comm.reset_bytes_sent()
            loop.step()
            measured[label].sent.append(comm.bytes_sent())
    return measured


CollectiveTimes = dict[tuple[str, int, int], float]
"""Seconds by collective, payload bytes and repeat."""


def collectives(names: Sequence[str], payloads: Sequence[int], repeats: int) -> CollectiveTimes:
    """Time collectives of payloads; runs on every rank."""
    calls: dict[str, Callable[[Tensor], object]] = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda tensor: dist.broadcast(tensor, 0),
        "all_gather": lambda tensor: dist.all_gather(
            [torch.empty_like(tensor) for _ in range(comm.world_size())], tensor
        ),
    }
    seconds = {}
    for size in payloads:
        tensor = torch.ones(size // 4)
        for name in names:
            for repeat in range(-1, repeats):  # repeat -1 warms up
                dist.barrier()
                start = time.perf_counter()
                calls[name](tensor)
                # A broadcast's source returns before the others have the tensor.
                dist.barrier()
                seconds[name, size, repeat] = time.perf_counter() - start
            tensor.fill_(1)  # sums would overflow
    return {key: value for key, value in seconds.items() if key[2] >= 0}


def means(steps: Sequence[StepTimes]) -> dict[str, float]:
    """Return mean milliseconds by phase."""
    return {phase: fmean(step.ms[phase] for step in steps) for phase in PHASES}


@dataclass(frozen=True)
class Measurement:
    """All measurements of one model, from which rows are made."""

    model: ProbeModel
    optimizers: Sequence[TimedOptimizer]
    hardware: str
    alone: Mapping[int, Mapping[str, RankResult]]
    """One process's results by batch and label."""
    by_workers: Mapping[int, Sequence[Mapping[str, RankResult]]]
    """Each rank's results by label, by number of workers; only of optimizers that run on that number."""
    collectives: Mapping[int, Sequence[CollectiveTimes]]
    """Each rank's times of collectives, by number of workers."""

    def mean_over_ranks(self) -> Iterator[tuple[str, int, fits.Collective]]:
        """Yield every timed collective with its name and repeat."""
        for number, timed in self.collectives.items():
            for name, size, repeat in timed[0]:
                seconds = fmean(of_rank[name, size, repeat] for of_rank in timed)
                yield name, repeat, fits.Collective(number, size, seconds)

    def row(self, quantity: str, source: str, value: float, **columns: Any) -> Row:
        """Return a row; columns that are not given stay empty, ``workers`` is 1."""
        empty = dict.fromkeys(("optimizer", "batch", "bytes", "collective", "repeat"))
        known = {"workload": self.model.name, "workers": 1, "cores": os.cpu_count() or 1, **empty, **columns}
        return Row(
            quantity=quantity,
            source=source,
            value=value,
            precision=self.model.precision,
            hardware=self.hardware,
            threads=torch.get_num_threads(),
            **known,
        )


def measurements(
    model: ProbeModel,
    chosen: Sequence[TimedOptimizer],
    device: str,
    hardware: str,
    workers: Sequence[int],
    repeats: int,
    payloads: Sequence[int],
) -> Measurement:
    """Measure one model; workers: numbers of processes, 1 first."""
    whole = model.data.batch_size
    batches = sorted({max(whole // fraction, 1) for fraction in FRACTIONS}, reverse=True)
    alone = {batch: train(model, chosen, device, repeats, batch) for batch in batches}
    by_workers = {1: [alone[whole]]}
    timed: dict[int, list[CollectiveTimes]] = {}
    for number in workers[1:]:
        parallel = [optimizer for optimizer in chosen if optimizer.runs_on(number)]
        by_workers[number] = _ranks.run(number, train, model, parallel, device, repeats, whole)
        used = {
            name for of_rank in by_workers[number] for one in of_rank.values() for step in one.sent for name in step
        }
        names = dict.fromkeys([*TIMED_COLLECTIVES, *sorted(used)])
        timed[number] = _ranks.run(number, collectives, list(names), payloads, COLLECTIVE_REPEATS)
    return Measurement(model, chosen, hardware, alone, by_workers, timed)


def rows(
    model: ProbeModel,
    chosen: Sequence[TimedOptimizer],
    device: str,
    hardware: str,
    workers: Sequence[int],
    *,
    repeats: int = REPEATS,
    payloads: Sequence[int] = PAYLOADS,
) -> Iterator[Row]:
    """Yield all rows of one model; workers: numbers of processes, 1 first."""
    measured = measurements(model, chosen, device, hardware, workers, repeats, payloads)
    yield from local_rows(measured)
    yield from collective_rows(measured)
    yield from worker_rows(measured)
    if len(workers) > 1:
        yield from model_rows(measured)


def local_rows(measured: Measurement) -> Iterator[Row]:
    """Yield the times of one process on parts of the batch."""
    for batch, results in measured.alone.items():
        for label, result in results.items():
            for repeat, steps in enumerate(result.cycles):
                total = sum(means(steps).values())
                yield measured.row("local_step_ms", "measured", total, optimizer=label, batch=batch, repeat=repeat)


def collective_rows(measured: Measurement) -> Iterator[Row]:
    """Yield the times of the collectives, the mean over ranks."""
    for name, repeat, timed in measured.mean_over_ranks():
        columns = {"workers": timed.workers, "bytes": timed.payload_bytes, "collective": name, "repeat": repeat}
        yield measured.row(f"{name}_ms", "measured", 1000 * timed.seconds, **columns)


def worker_rows(measured: Measurement) -> Iterator[Row]:
    """Yield the times by phase and the bytes sent, for every measured number of workers."""
    whole = measured.model.data.batch_size
    for number, ranks in measured.by_workers.items():
        for label in ranks[0]:
            columns = {"optimizer": label, "workers": number, "batch": whole // number}
            for repeat in range(len(ranks[0][label].cycles)):
                parts = means(over_ranks([of_rank[label].cycles[repeat] for of_rank in ranks]))
                for name, value in {**parts, "step": sum(parts.values())}.items():
                    yield measured.row(f"{name}_ms", "measured", value, repeat=repeat, **columns)
            for collective, size in totals([of_rank[label].sent for of_rank in ranks]).items():
                yield measured.row("sent_bytes", "measured", size, collective=collective, **columns)


def model_rows(measured: Measurement) -> Iterator[Row]:
    """Yield the fitted links, and the modeled times of every optimizer that was measured on several workers."""
    by_name: dict[str, list[fits.Collective]] = {}
    for name, _, timed in measured.mean_over_ranks():
        by_name.setdefault(name, []).append(timed)
    links = {name: fits.alpha_beta(name, timed) for name, timed in by_name.items()}
    for name, link in links.items():
        yield measured.row("alpha_us", "model", 1e6 * link.alpha, collective=name)
        yield measured.row("beta_ns", "model", 1e9 * link.beta, collective=name)
    whole = measured.model.data.batch_size
    two_workers = next(ranks for number, ranks in measured.by_workers.items() if number > 1)
    for optimizer in measured.optimizers:
        label, work = optimizer.label, work_of(measured.model, optimizer)
        yield measured.row("gradient_bytes", "measured", work.gradient_bytes, optimizer=label)
        if label not in two_workers[0]:
            continue  # it does not run on several ranks, so that its bytes are unknown
        local = {
            batch: means([step for steps in results[label].cycles for step in steps])
            for batch, results in measured.alone.items()
        }
        sent = by_step([of_rank[label].sent for of_rank in two_workers])
        for number in MODELED:
            if number <= whole:
                columns = {"optimizer": label, "workers": number, "batch": whole // number}
                for name, value in modeled(number, local, sent, work, links).items():
                    yield measured.row(f"{name}_ms", "model", value, **columns)


def scaled_model(plan: Plan) -> ProbeModel:
    """Return the model whose batch is spread: a wide autoencoder on a CPU, ResNet-50 on a GPU."""
    if plan.tier.device == "cuda":
        return next(model for model in probe_models(plan) if model.name == "resnet")
    return wide_autoencoder(plan, HIDDEN, SAFE_RATE, batch_size=GLOBAL_BATCH)


def measure(plan: Plan, labels: Sequence[str] = OPTIMIZERS) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    model = scaled_model(plan)
    chosen = optimizers(model, SAFE_RATE, labels)
    return rows(model, chosen, plan.tier.device, plan.hardware, WORKERS[plan.tier.device])


if __name__ == "__main__":
    sys.exit(_command.run("scaling", measure, optimizers=OPTIMIZERS))
