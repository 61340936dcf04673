"""Where a step's time goes: forward, backward, capture, factor, precondition, communication, update.

``python -m workflow.bench.probes.step_breakdown --tier embedded --out step_breakdown.csv`` writes one row a workload,
number of workers, optimizer, period, repeat and phase. It wants the machine to itself. Columns:

- workload, optimizer, update_rule: what is timed; the base optimizer (sgd or lamb) stands beside the methods.
- workers: processes that share each batch (gloo). ``communication`` is what the preconditioner says to the other ranks,
  ``backward`` holds DistributedDataParallel's all-reduce of the gradients, which every optimizer has. Times are means
  over the ranks.
- inverse_update_period: steps between refreshes; empty for a method without a period. ``estimate`` is ``measured``
  where the steps of a whole cycle were timed, ``combined`` for a longer period, computed from the refreshing step
  and the others at their true share.
- repeat, phase, steps: steps timed, one cycle of 10 a repeat, after two that only warm up.
- ms: mean milliseconds of the phase in a step; refresh_ms: in the steps that refresh (empty: none does); other_ms: in
  the others (empty: all refresh).
- hardware, threads (of a process), code_fingerprint, git_commit.

On a GPU every switch of a phase waits for the device, so that a phase pays for its own work and the step is a
little longer than in training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import torch

from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks
from workflow.bench.probes._models import PERIOD, Contender, Subject, contenders, subjects
from workflow.bench.probes._timed_loop import PHASES, StepTimes, at_period, loops_by_turns, split

EXPERIMENTS = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion")
REPEATS: Final = 3
LEARNING_RATE: Final = 1e-4  # takes as long as any, and cannot diverge while it is timed
WORKERS: Final = {"cpu": (1, 2), "cuda": (1,)}
"""Numbers of processes by device: this machine has one GPU, and gloo says nothing about a GPU's links."""
PAPER_PERIODS: Final[Mapping[str, int]] = {"kaisa": 50, "hylo": 50}
"""Longer periods that the paper gives to rivals, added as combined estimates."""


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
    hardware: str
    threads: int


Times = dict[tuple[str, int], list[StepTimes]]
"""The steps of a whole cycle by contender's label and repeat."""


def cycles(subject: Subject, found: Sequence[Contender], device: str, repeats: int) -> Times:
    """Time one cycle of every contender in each repeat; runs on every rank."""
    times: Times = {}
    for loops in loops_by_turns(subject, found, device):
        for _, loop in loops:
            loop.times(0)
        for repeat in range(repeats):
            for contender, loop in loops:
                times[contender.label, repeat] = loop.times(PERIOD)
    return times


def over_ranks(steps: Sequence[Sequence[StepTimes]]) -> list[StepTimes]:
    """Return the mean over ranks of the same steps; steps: ``[rank][step]``."""
    return [
        StepTimes(together[0].refreshed, {phase: fmean(step.ms[phase] for step in together) for phase in PHASES})
        for together in zip(*steps, strict=True)
    ]


def rows(
    subject: Subject, found: Sequence[Contender], times: Sequence[Times], repeats: int, hardware: str
) -> Iterator[Row]:
    """Yield the rows of one subject; times: by rank."""
    for repeat in range(repeats):
        for contender in found:
            steps = over_ranks([of_rank[contender.label, repeat] for of_rank in times])
            values = contender.hyperparameters
            period = values.get("inverse_update_period", values.get("update_period"))
            for phase in PHASES:
                parts = split(steps, phase)
                periods = {period: (parts.ms, "measured")}
                if contender.label in PAPER_PERIODS:
                    longer = PAPER_PERIODS[contender.label]
                    periods[longer] = (at_period(parts, longer), "combined")
                for at, (ms, estimate) in periods.items():
                    yield Row(
                        subject.name,
                        len(times),
                        contender.label,
                        contender.update_rule,
                        at,
                        repeat,
                        phase,
                        len(steps),
                        ms,
                        parts.refresh_ms,
                        parts.other_ms,
                        estimate,
                        hardware,
                        torch.get_num_threads(),
                    )


def measure(plan: Plan, repeats: int = REPEATS) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    device = plan.tier.device
    for subject in subjects(plan):
        found = contenders(subject, LEARNING_RATE)
        for workers in WORKERS[device]:
            if workers == 1:
                times = [cycles(subject, found, device, repeats)]
            else:
                times = _ranks.run(workers, cycles, subject, found, device, repeats)
            yield from rows(subject, found, times, repeats, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("step_breakdown", measure))
