"""Strong scaling over worker processes, and an alpha-beta model of what lies beyond them.

``python -m workflow.bench.probes.scaling --tier embedded --out scaling.csv`` writes one number a row, with what it is.
It wants the machine to itself. ``source`` is ``measured`` or ``model``. Columns:

- quantity: ``step_ms``, ``<phase>_ms``: a step's time, and its parts, for the same global batch spread over
  ``workers`` gloo processes, mean over the steps of a cycle (one refresh in 10) and over ranks, with the exchange of
  gradients by DistributedDataParallel inside ``backward_ms``. In ``model`` rows it is apart, in ``gradients_ms``,
  and ``divided_ms`` is forward, backward and capture together.
  ``local_step_ms``: one process, alone, on ``batch`` examples: what the model takes the computation from, since
  more processes than ``cores`` are in each other's way. ``all_reduce_ms``, ``broadcast_ms``: one collective of
  ``bytes`` a rank. ``alpha_us``, ``beta_ns``: fitted to these, a message's start and a byte. ``sent_bytes``: by the
  preconditioner in a cycle of 10 steps, counted in the collectives: what a rank all-reduces, or what all sources
  broadcast; ``collective`` says which. ``gradient_bytes``: of all parameters.
- source, workload, optimizer (empty where it plays no part), workers, cores, batch (examples of a process), bytes,
  collective, repeat, value.
- hardware, threads, code_fingerprint, git_commit.

The model of a step on p workers: forward, backward and capture are affine in the examples of a process (fitted to
``local_step_ms``' parts at the whole batch and at fractions of it); precondition and update are every rank's; factor
work is every rank's too, or, where a method spreads it (KAISA), the share of the most loaded rank by `mkor_core`'s own
assignment; the gradients' ring all-reduce and, once a refresh, the preconditioner's collectives cost alpha-beta times.
Nothing overlaps. On one machine alpha and beta are those of gloo between processes that share memory and cores, so a
``model`` row says how the method's work and bytes scale on such links, not what a cluster does.

On a GPU only one worker is measured, and no collective: there are no model rows there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from mkor_core import comm
from mkor_core.assignment import assign, make_grid
from mkor_core.discovery import find_layers
from mkor_core.method import LayerShape
from workflow.bench import workloads
from workflow.bench.analysis import fits
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks
from workflow.bench.probes._models import PERIOD, Contender, Subject, contenders, subjects, workload_of
from workflow.bench.probes._timed_loop import PHASES, Loop, StepTimes
from workflow.bench.probes.step_breakdown import over_ranks

EXPERIMENTS = ("autoencoder_inversion", "bert_pretraining", "resnet50_imagenet")
GLOBAL_BATCH: Final = 1024
"""Examples of the small model's batch, so that 1,024 workers still have one each."""
HIDDEN: Final = (512, 256, 16, 256, 512)
"""The small model's hidden layers."""
WORKERS: Final = {"cpu": (1, 2, 4), "cuda": (1,)}
FRACTIONS: Final = (1, 4, 16, 64)
"""Parts of the global batch on which one process is timed alone: batch / fraction."""
MODELLED: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
METHODS: Final = ("mkor", "kaisa")
PAYLOADS: Final = (256, 4096, 65536, 1048576, 8388608)
REPEATS: Final = 3
COLLECTIVE_REPEATS: Final = 5
LEARNING_RATE: Final = 1e-4
SPLIT: Final = ("forward", "backward", "capture")
"""Phases whose work is divided among the workers."""


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
    hardware: str
    threads: int


class Trained(NamedTuple):
    """What a rank measured of one contender: a cycle's steps by repeat, and bytes by collective in each step of one."""

    cycles: list[list[StepTimes]]
    sent: list[dict[str, int]]


class Work(NamedTuple):
    """What of a contender the model needs beside its times."""

    gradient_bytes: int
    costs: Mapping[str, float]
    """Cost of a refresh by layer, where the method spreads refreshes over ranks; empty where every rank does all."""
    worker_fraction: float


def train(subject: Subject, found: Sequence[Contender], device: str, repeats: int, batch: int) -> dict[str, Trained]:
    """Time whole cycles of every contender, by turns, on ``batch`` examples in all; runs on every rank."""
    loops = {contender.label: Loop(subject, contender, device, batch_size=batch) for contender in found}
    measured = {label: Trained([], []) for label in loops}
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


def collectives(payloads: Sequence[int], repeats: int) -> dict[tuple[str, int, int], float]:
    """Return seconds by collective, payload bytes and repeat; runs on every rank."""
    found = {}
    for size in payloads:
        tensor = torch.ones(size // 4)
        for name, call in (("all_reduce", dist.all_reduce), ("broadcast", lambda t: dist.broadcast(t, 0))):
            for repeat in range(-1, repeats):  # the first one warms up
                dist.barrier()
                start = time.perf_counter()
                call(tensor)
                # A broadcast's source is done before the others have it.
                dist.barrier()
                found[name, size, repeat] = time.perf_counter() - start
            tensor.fill_(1)
    return {key: seconds for key, seconds in found.items() if key[2] >= 0}


def work_of(subject: Subject, contender: Contender) -> Work:
    """Return a contender's bytes and costs."""
    loop = Loop(subject, contender, "cpu", batch_size=1)
    gradient_bytes = sum(parameter.numel() * parameter.element_size() for parameter in loop.model.parameters())
    method = None if loop.preconditioner is None else loop.preconditioner.method
    if method is None or not method.refreshed:
        return Work(gradient_bytes, {}, 1.0)
    layers = find_layers(loop.model, subject.data.exclude)
    costs = {name: method.refresh_cost(LayerShape(layer.d_out, layer.d_in)) for name, layer in layers.items()}
    return Work(gradient_bytes, costs, method.worker_fraction)


def spread(work: Work, workers: int) -> tuple[float, int]:
    """Return the most loaded rank's share of a refresh, and the number of ranks that own a layer."""
    if not work.costs:
        return 1.0, 1
    loads: dict[int, float] = {}
    for name, place in assign(work.costs, make_grid(workers, work.worker_fraction)).items():
        loads[place.owner] = loads.get(place.owner, 0.0) + work.costs[name]
    return max(loads.values()) / sum(loads.values()), len(loads)


def modelled(
    workers: int,
    local: Mapping[int, Mapping[str, float]],
    sent: Sequence[Mapping[str, int]],
    work: Work,
    links: Mapping[str, fits.AlphaBeta],
) -> dict[str, float]:
    """Return the modelled milliseconds of a step's parts, ``step`` their sum.

    local: one process's mean milliseconds by batch and phase, the largest batch being the global one; sent: bytes by
    collective in each step of a cycle; links: alpha and beta by collective.
    """
    batches = sorted(local)
    share, owners = spread(work, workers)
    divided = fits.affine(batches, [sum(local[batch][phase] for phase in SPLIT) for batch in batches])
    whole = {phase: fmean(local[batch][phase] for batch in batches) for phase in ("factor", "precondition", "update")}
    spoken = 0.0
    for step in sent:
        for collective, size in step.items():
            messages = owners if collective == "broadcast" else 1
            spoken += messages * fits.collective_seconds(collective, workers, size / messages, links[collective])
    parts = {
        "divided": divided.at(batches[-1] / workers),
        "factor": whole["factor"] * share,
        "precondition": whole["precondition"],
        "communication": 1000 * spoken / len(sent),
        "update": whole["update"],
        "gradients": 1000 * fits.collective_seconds("all_reduce", workers, work.gradient_bytes, links["all_reduce"]),
    }
    return {**parts, "step": sum(parts.values())}


def means(steps: Sequence[StepTimes]) -> dict[str, float]:
    """Return mean milliseconds by phase."""
    return {phase: fmean(step.ms[phase] for step in steps) for phase in PHASES}


def subject_of(plan: Plan) -> Subject:
    """Return what is scaled: a wide autoencoder on a CPU, ResNet-50 on a GPU."""
    if plan.tier.device == "cuda":
        return next(subject for subject in subjects(plan) if subject.name == "resnet")
    given = {**workload_of(plan, "autoencoder"), "name": "autoencoder"}
    data = workloads.create(**{**given, "hidden": list(HIDDEN), "batch_size": GLOBAL_BATCH})
    return Subject("wide_autoencoder", data, "sgd", LEARNING_RATE)


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    subject = subject_of(plan)
    found = contenders(subject, LEARNING_RATE, subject.base, *METHODS)
    yield from rows(subject, found, plan.tier.device, plan.hardware, WORKERS[plan.tier.device])


def rows(
    subject: Subject,
    found: Sequence[Contender],
    device: str,
    hardware: str,
    workers: Sequence[int],
    *,
    repeats: int = REPEATS,
    payloads: Sequence[int] = PAYLOADS,
) -> Iterator[Row]:
    """Yield all rows of one subject; workers: numbers of processes, 1 first."""
    whole = subject.data.batch_size
    make = partial(_row, subject.name, hardware)
    batches = sorted({max(whole // fraction, 1) for fraction in FRACTIONS}, reverse=True)
    alone = {batch: train(subject, found, device, repeats, batch) for batch in batches}
    for batch, measured in alone.items():
        for label, trained in measured.items():
            for repeat, steps in enumerate(trained.cycles):
                total = sum(means(steps).values())
                yield make("local_step_ms", "measured", total, optimizer=label, batch=batch, repeat=repeat)
    by_rank = {1: [alone[whole]]}
    links: dict[str, list[fits.Collective]] = {name: [] for name in fits.TERMS}
    for number in workers[1:]:
        by_rank[number] = _ranks.run(number, train, subject, found, device, repeats, whole)
        timed = _ranks.run(number, collectives, payloads, COLLECTIVE_REPEATS)
        for name, size, repeat in timed[0]:
            seconds = fmean(of_rank[name, size, repeat] for of_rank in timed)
            links[name].append(fits.Collective(number, size, seconds))
            about = {"workers": number, "bytes": size, "collective": name, "repeat": repeat}
            yield make(f"{name}_ms", "measured", 1000 * seconds, **about)
    for number, ranks in by_rank.items():
        for contender in found:
            label = contender.label
            about = {"optimizer": label, "workers": number, "batch": whole // number}
            for repeat in range(repeats):
                parts = means(over_ranks([of_rank[label].cycles[repeat] for of_rank in ranks]))
                for name, value in {**parts, "step": sum(parts.values())}.items():
                    yield make(f"{name}_ms", "measured", value, repeat=repeat, **about)
            for collective, size in totals([of_rank[label].sent for of_rank in ranks]).items():
                yield make("sent_bytes", "measured", size, collective=collective, **about)
    if len(workers) == 1:
        return
    fitted = {name: fits.alpha_beta(name, timed) for name, timed in links.items()}
    for name, link in fitted.items():
        yield make("alpha_us", "model", 1e6 * link.alpha, collective=name)
        yield make("beta_ns", "model", 1e9 * link.beta, collective=name)
    for contender in found:
        label, work = contender.label, work_of(subject, contender)
        local = {
            batch: means([step for steps in measured[label].cycles for step in steps])
            for batch, measured in alone.items()
        }
        sent = by_step([of_rank[label].sent for of_rank in by_rank[workers[1]]])
        yield make("gradient_bytes", "measured", work.gradient_bytes, optimizer=label)
        for number in MODELLED:
            if number <= whole:
                for name, value in modelled(number, local, sent, work, fitted).items():
                    about = {"optimizer": label, "workers": number, "batch": whole // number}
                    yield make(f"{name}_ms", "model", value, **about)


def by_step(sent: Sequence[Sequence[Mapping[str, int]]]) -> list[dict[str, int]]:
    """Return each step's bytes by collective over ranks: a broadcast's of all sources, any other's of one rank.

    sent: ``[rank][step]``.
    """
    return [
        {
            name: sum(of_rank.get(name, 0) for of_rank in step) if name == "broadcast" else step[0][name]
            for name in sorted({name for of_rank in step for name in of_rank})
        }
        for step in zip(*sent, strict=True)
    ]


def totals(sent: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, int]:
    """Return a cycle's bytes by collective."""
    found: dict[str, int] = {}
    for step in by_step(sent):
        for name, size in step.items():
            found[name] = found.get(name, 0) + size
    return found


def _row(workload: str, hardware: str, quantity: str, source: str, value: float, **about: Any) -> Row:
    blank = dict.fromkeys(("optimizer", "batch", "bytes", "collective", "repeat"))
    known = {"workload": workload, "workers": 1, "cores": os.cpu_count() or 1, **blank, **about}
    return Row(
        quantity=quantity,
        source=source,
        value=value,
        hardware=hardware,
        threads=torch.get_num_threads(),
        **known,
    )


if __name__ == "__main__":
    sys.exit(_command.run("scaling", measure))
