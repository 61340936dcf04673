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

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Final, NamedTuple

import torch

from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks, _timing
from workflow.bench.probes._models import PERIOD, ProbeModel, TimedOptimizer, optimizers, probe_models
from workflow.bench.probes._timing import PHASES, SAFE_RATE, PhaseTimes, TimedLoop, in_groups, over_ranks

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


Cycle = tuple[str, int, list[PhaseTimes]]
"""An optimizer's label, a repeat, and the steps of a whole cycle."""


def cycles(model: ProbeModel, chosen: Sequence[TimedOptimizer], device: str, repeats: int) -> list[Cycle]:
    """Time one cycle of every optimizer in each repeat; runs on every rank."""

    def of_group(group: Sequence[TimedOptimizer]) -> Iterator[Cycle]:
        loops = {optimizer.label: TimedLoop(model, optimizer, device) for optimizer in group}
        for loop in loops.values():
            loop.times(0)
        turns = {label: partial(loop.times, PERIOD) for label, loop in loops.items()}
        for repeat, timed in enumerate(_timing.rounds(turns, repeats)):
            for label, steps in timed.items():
                yield label, repeat, steps

    return list(in_groups(chosen, device, of_group))


class CycleMeans(NamedTuple):
    """A phase's mean milliseconds: in refreshing steps (NaN if none), in the others (NaN if none), and in all."""

    refresh_ms: float
    other_ms: float
    ms: float


def cycle_means(steps: Sequence[PhaseTimes], phase: str) -> CycleMeans:
    """Return a phase's mean times over the steps of whole cycles."""
    times = {kind: [step.ms[phase] for step in steps if step.refreshed is kind] for kind in (True, False)}
    means = {kind: fmean(values) if values else math.nan for kind, values in times.items()}
    return CycleMeans(means[True], means[False], fmean(step.ms[phase] for step in steps))


def rows(
    model: ProbeModel, chosen: Sequence[TimedOptimizer], by_rank: Sequence[Sequence[Cycle]], hardware: str
) -> Iterator[Row]:
    """Yield the rows of one model, repeat by repeat; by_rank: the cycles of each rank (`cycles`)."""
    by_label = {optimizer.label: optimizer for optimizer in chosen}
    where = model.precision, hardware, torch.get_num_threads()
    for ranks in sorted(zip(*by_rank, strict=True), key=lambda ranks: ranks[0][1]):
        label, repeat, _ = ranks[0]
        optimizer = by_label[label]
        about = model.name, len(by_rank), label, optimizer.update_rule
        steps = over_ranks([of_rank for _, _, of_rank in ranks])
        for phase in PHASES:
            refresh, other, mean = cycle_means(steps, phase)
            estimates = {optimizer.period: (mean, "measured")}
            if longer := PAPER_PERIODS.get(label):
                estimates[longer] = cycle_mean(refresh, other, longer), "combined"
            for period, (ms, estimate) in estimates.items():
                yield Row(*about, period, repeat, phase, len(steps), ms, refresh, other, estimate, *where)


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
