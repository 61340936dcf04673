"""An alpha-beta model of a step on any number of workers, from one process's times and counted bytes.

Forward, backward and capture are affine in the examples of a process. Precondition and update cost every rank the same.
Factor work does too, or, if a method spreads it over ranks (KAISA), costs the share of the most loaded rank in
`mkor_core`'s own assignment. The gradients' ring all-reduce and, in each refresh, the preconditioner's collectives cost
alpha-beta times. Nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from mkor_core.assignment import assign, make_grid
from mkor_core.discovery import find_layers
from mkor_core.method import LayerShape
from workflow.bench.analysis import fits
from workflow.bench.probes._models import ProbeModel
from workflow.bench.probes._optimizers import TimedOptimizer
from workflow.bench.probes._timed_loop import TimedLoop

DIVIDED: Final = ("forward", "backward", "capture")
"""Phases whose work is divided among the workers."""


class Work(NamedTuple):
    """The facts about an optimizer that the model needs in addition to its times."""

    gradient_bytes: int
    costs: Mapping[str, float]
    """Cost of a refresh by layer if the method spreads refreshes over ranks; empty if every rank does them all."""
    worker_fraction: float


def work_of(model: ProbeModel, optimizer: TimedOptimizer) -> Work:
    """Return an optimizer's gradient bytes and refresh costs."""
    loop = TimedLoop(model, optimizer, "cpu", batch_size=1)
    gradient_bytes = sum(parameter.numel() * parameter.element_size() for parameter in loop.model.parameters())
    method = None if loop.preconditioner is None else loop.preconditioner.method
    if method is None or not method.refreshed:
        return Work(gradient_bytes, {}, 1.0)
    layers = find_layers(loop.model, model.data.exclude)
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


def modeled(
    workers: int,
    local: Mapping[int, Mapping[str, float]],
    sent: Sequence[Mapping[str, int]],
    work: Work,
    links: Mapping[str, fits.AlphaBeta],
) -> dict[str, float]:
    """Return the modeled milliseconds of a step's parts, and their sum as ``step``.

    local: one process's mean milliseconds by batch and phase, the largest batch being the global one; sent: bytes by
    collective in each step of a cycle, see `by_step`; links: alpha and beta by collective.
    """
    batches = sorted(local)
    share, owners = spread(work, workers)
    divided = fits.affine(batches, [sum(local[batch][phase] for phase in DIVIDED) for batch in batches])
    whole = {phase: fmean(local[batch][phase] for batch in batches) for phase in ("factor", "precondition", "update")}
    communication = sum(
        _collective_seconds(collective, workers, size, owners, links)
        for step in sent
        for collective, size in step.items()
    )
    parts = {
        "divided": divided.at(batches[-1] / workers),
        "factor": whole["factor"] * share,
        "precondition": whole["precondition"],
        "communication": 1000 * communication / len(sent),
        "update": whole["update"],
        "gradients": 1000 * fits.collective_seconds("all_reduce", workers, work.gradient_bytes, links["all_reduce"]),
    }
    return {**parts, "step": sum(parts.values())}


def _collective_seconds(
    collective: str, workers: int, size: int, owners: int, links: Mapping[str, fits.AlphaBeta]
) -> float:
    """Return the seconds of one step's collectives of a kind; each owner of layers broadcasts once."""
    messages = owners if collective == "broadcast" else 1
    # Ranks gather equal shares of rows whose total does not depend on their number.
    parts = workers if collective == "all_gather" else messages
    return messages * fits.collective_seconds(collective, workers, size / parts, links[collective])


def by_step(sent: Sequence[Sequence[Mapping[str, int]]]) -> list[dict[str, int]]:
    """Return each step's bytes by collective: of one rank for an all-reduce, of all ranks together for the others.

    sent: ``[rank][step]``.
    """
    return [
        {
            name: step[0][name] if name == "all_reduce" else sum(of_rank.get(name, 0) for of_rank in step)
            for name in sorted({name for of_rank in step for name in of_rank})
        }
        for step in zip(*sent, strict=True)
    ]


def totals(sent: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, int]:
    """Return a cycle's bytes by collective; sent: as `by_step` takes it."""
    sizes: dict[str, int] = {}
    for step in by_step(sent):
        for name, size in step.items():
            sizes[name] = sizes.get(name, 0) + size
    return sizes
