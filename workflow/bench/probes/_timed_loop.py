"""A training whose steps are timed by phase, on one process or on several."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from statistics import fmean
from typing import Final, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from baselines import build
from mkor_core import comm
from workflow.bench.data.batches import Batch
from workflow.bench.probes._models import Contender, Subject
from workflow.bench.training.clocks import Clock

PHASES: Final = ("forward", "backward", "capture", "factor", "precondition", "communication", "update")
"""The phases of a step, data apart; in ``backward`` lies the exchange of gradients by DistributedDataParallel."""
WARM_UP: Final = 2  # steps before each timing, for the caches that the optimizer timed before has emptied
_BATCHES: Final = 4  # over and over, since making them is no part of a step


class StepTimes(NamedTuple):
    """One step's milliseconds by phase, and whether the method refreshed in it."""

    refreshed: bool
    ms: Mapping[str, float]

    @property
    def total(self) -> float:
        """Milliseconds of the whole step."""
        return sum(self.ms.values())


class Loop:
    """A subject's training by one contender; under gloo each rank takes its part of every batch.

    batch_size: examples of each batch that are used, all by default.
    """

    def __init__(self, subject: Subject, contender: Contender, device: str, *, batch_size: int | None = None) -> None:
        world, rank = comm.world_size(), comm.rank()
        self.model = subject.data.model(seed=0).to(device)
        network: nn.Module = DistributedDataParallel(self.model) if world > 1 else self.model
        self._network = network
        self.optimizer, self.preconditioner = build(
            contender.method, network, contender.hyperparameters, exclude=subject.data.exclude
        )
        self._loss = subject.data.loss
        self._clock = Clock(torch.cuda.synchronize if device == "cuda" else None)
        if self.preconditioner is not None:
            self.preconditioner.phases = self._clock
        used = subject.data.batch_size if batch_size is None else batch_size
        share = slice(rank * used // world, (rank + 1) * used // world)
        made = islice(subject.data.batches(seed=0), _BATCHES)
        self._batches = cycle([_part(batch, share, device) for batch in made])
        self._done = 0

    def times(self, steps: int) -> list[StepTimes]:
        """Return the times of the next steps, after a few that only warm up."""
        return [self.step() for _ in range(WARM_UP + steps)][WARM_UP:]

    def step(self) -> StepTimes:
        """Train one step and return its times."""
        clock = self._clock
        batch = next(self._batches)
        before = clock.nanoseconds
        clock.start("forward")
        loss = self._loss(self._network, batch)
        clock.switch("backward")
        self.optimizer.zero_grad()
        loss.backward()
        clock.switch("update")
        if self.preconditioner is not None:
            self.preconditioner.observe(loss)
        self.optimizer.step()
        clock.stop()
        refreshed = self.preconditioner is not None and self.preconditioner.method.refreshes(self._done)
        self._done += 1
        after = clock.nanoseconds
        return StepTimes(refreshed, {phase: (after[phase] - before[phase]) / 1e6 for phase in PHASES})


def _part(batch: Batch, share: slice, device: str) -> Batch:
    return {name: tensor[share].to(device) for name, tensor in batch.items()}


def loops_by_turns(subject: Subject, found: Sequence[Contender], device: str) -> Iterator[list[tuple[Contender, Loop]]]:
    """Yield the contenders' loops in groups that are timed by turns, so that drift hits all alike.

    On a CPU all are one group; on a GPU, which may not hold them all at once, each is its own.
    """
    for group in [found] if device == "cpu" else [[contender] for contender in found]:
        yield [(contender, Loop(subject, contender, device)) for contender in group]
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


class Split(NamedTuple):
    """A phase's milliseconds: mean over refreshing steps (NaN: there was none), over the others, and over a cycle."""

    refresh_ms: float
    other_ms: float
    ms: float


def split(steps: Sequence[StepTimes], phase: str) -> Split:
    """Return a phase's times over the steps of whole cycles."""
    times = {kind: [step.ms[phase] for step in steps if step.refreshed is kind] for kind in (True, False)}
    means = {kind: fmean(values) if values else float("nan") for kind, values in times.items()}
    return Split(means[True], means[False], fmean(step.ms[phase] for step in steps))


def at_period(times: Split, period: int) -> float:
    """Return the mean milliseconds a step at another period: one refresh in ``period`` steps."""
    return (times.refresh_ms + (period - 1) * times.other_ms) / period
