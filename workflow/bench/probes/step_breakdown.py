"""How a step's time divides into forward, backward, capture, factor, precondition, communication and update.

``python -m workflow.bench.probes.step_breakdown --tier embedded --out step_breakdown.csv`` writes one row for each
workload, number of workers, optimizer, period, repeat and phase. It needs the machine to itself. Columns:

- workload, optimizer, update_rule: the model and its optimizer; the base optimizer (sgd or lamb) is measured too.
- workers: processes that share each batch (gloo). ``communication`` is the preconditioner's exchange between ranks;
  ``backward`` includes DistributedDataParallel's all-reduce of the gradients, which every optimizer has. Times are
  means over the ranks.
- inverse_update_period: steps between refreshes; empty for a method without a period. ``estimate`` is ``measured`` if
  the steps of a whole cycle were timed, ``combined`` for a longer period, computed from the refreshing step and the
  others, weighted as in a cycle of that period.
- repeat, phase, steps: timed steps, one cycle of 10 in each repeat, after two untimed ones.
- ms: mean milliseconds of the phase in a step; refresh_ms: in the steps that refresh (empty if none does); other_ms: in
  the others (empty if all refresh).
- precision: of training, that of the model's experiment.
- hardware, threads (of a process), code_fingerprint, git_commit.

On a GPU a change of phase is a CUDA event, for which the host does not wait: a phase has the device's time. The events
around the capture of each layer make a step with capture a little longer than in training, where they are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks, _turns
from workflow.bench.probes._models import ProbeModel, probe_models
from workflow.bench.probes._optimizers import PERIOD, TimedOptimizer, optimizers
from workflow.bench.probes._timed_loop import (
    PHASES,
    SAFE_RATE,
    StepTimes,
    TimedLoop,
    cycle_means,
    in_groups,
    over_ranks,
)

EXPERIMENTS: Final = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion")
CORES: Final = "all"
TIMING: Final = True
OPTIMIZERS: Final = ("base", "mkor", "kaisa", "eva", "hylo")
REPEATS: Final = 3
WORKERS: Final = {"cpu": (1, 2), "cuda": (1,)}
"""Numbers of processes by device. A machine with one GPU has no link between GPUs to measure."""
PAPER_PERIODS: Final[Mapping[str, int]] = {"kaisa": 50, "hylo": 50}
"""The longer periods that the paper gives to rivals, added as combined estimates."""


class Row(NamedTuple):
    """One phase of one optimizer in one repeat."""

    workload: str
    workers: int
    optimizer: str
    update_rule: str | None
    inverse_update_period: int | None
    repeat: int
    phase: str
    steps: int
    ms: float
    refresh_ms: float
    other_ms: float
    estimate: str
    precision: str
    hardware: str
    threads: int


Cycle = tuple[str, int, list[StepTimes]]
"""An optimizer's label, a repeat, and the steps of a whole cycle."""


def cycles(model: ProbeModel, chosen: Sequence[TimedOptimizer], device: str, repeats: int) -> list[Cycle]:
    """Time one cycle of every optimizer in each repeat; runs on every rank."""
    return list(in_groups(chosen, device, partial(_cycles_of_group, model=model, device=device, repeats=repeats)))


def _cycles_of_group(
    group: Sequence[TimedOptimizer], *, model: ProbeModel, device: str, repeats: int
) -> Iterator[Cycle]:
    loops = {optimizer.label: TimedLoop(model, optimizer, device) for optimizer in group}
    for loop in loops.values():
        loop.times(0)
    turns = {label: partial(loop.times, PERIOD) for label, loop in loops.items()}
    for repeat, timed in enumerate(_turns.rounds(turns, repeats)):
        for label, steps in timed.items():
            yield label, repeat, steps


def rows(
    model: ProbeModel, chosen: Sequence[TimedOptimizer], by_rank: Sequence[Sequence[Cycle]], hardware: str
) -> Iterator[Row]:
    """Yield the rows of one model, repeat by repeat; by_rank: the cycles of each rank (`cycles`)."""
    by_label = {optimizer.label: optimizer for optimizer in chosen}
    by_repeat = sorted(zip(*by_rank, strict=True), key=lambda ranks: ranks[0][1])
    for ranks in by_repeat:
        label, repeat, _ = ranks[0]
        optimizer = by_label[label]
        steps = over_ranks([of_rank for _, _, of_rank in ranks])
        for phase in PHASES:
            means = cycle_means(steps, phase)
            estimates = {optimizer.period: (means.ms, "measured")}
            if label in PAPER_PERIODS:
                longer = PAPER_PERIODS[label]
                estimates[longer] = (cycle_mean(means.refresh_ms, means.other_ms, longer), "combined")
            for period, (ms, estimate) in estimates.items():
                yield Row(
                    model.name,
                    len(by_rank),
                    label,
                    optimizer.update_rule,
                    period,
                    repeat,
                    phase,
                    len(steps),
                    ms,
                    means.refresh_ms,
                    means.other_ms,
                    estimate,
                    model.precision,
                    hardware,
                    torch.get_num_threads(),
                )


def measure(plan: Plan, labels: Sequence[str] = OPTIMIZERS, repeats: int = REPEATS) -> Iterator[Row]:
    """Yield all rows of a plan's tier; more than one worker only for the optimizers that support it."""
    device = plan.tier.device
    for model in probe_models(plan):
        for workers in WORKERS[device]:
            chosen = [one for one in optimizers(model, SAFE_RATE, labels) if one.runs_on(workers)]
            if workers == 1:
                by_rank = [cycles(model, chosen, device, repeats)]
            else:
                by_rank = _ranks.run(workers, cycles, model, chosen, device, repeats)
            yield from rows(model, chosen, by_rank, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("step_breakdown", measure, optimizers=OPTIMIZERS))
