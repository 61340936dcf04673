"""Training whose steps are timed, in total or by phase, on one process or on several, in the experiment's precision."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from statistics import fmean
from typing import Final, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from baselines import build
from mkor_core.ranks import comm
from workflow.bench.data.batches import Batch
from workflow.bench.probes._models import ProbeModel
from workflow.bench.probes._optimizers import TimedOptimizer
from workflow.bench.training.clocks import Clock
from workflow.bench.training.device_clocks import clock_of
from workflow.bench.training.precision import Precision

PHASES: Final = ("forward", "backward", "capture", "factor", "precondition", "communication", "update")
"""The phases of a step, without data. ``backward`` includes DistributedDataParallel's exchange of gradients."""
SAFE_RATE: Final = 1e-4
"""A learning rate at which training cannot diverge while it is timed; the time of a step does not depend on it."""
WARM_UP: Final = 2
"""Untimed steps before each timing, which fill the caches again after another optimizer's turn."""
_BATCHES: Final = 4  # used in rotation, since making batches is not part of a step

Item = TypeVar("Item")
Result = TypeVar("Result")


class StepTimes(NamedTuple):
    """One step's milliseconds by phase, and whether the method refreshed in it."""

    refreshed: bool
    ms: Mapping[str, float]

    @property
    def total(self) -> float:
        """Milliseconds of the whole step."""
        return sum(self.ms.values())


class TimedLoop:
    """Training of a model by one optimizer; under gloo each rank takes its share of every batch.

    Args:
        model: the model with its batches.
        optimizer: the optimizer.
        device: ``cpu`` or ``cuda``.
        by_phase: whether the preconditioner's phases are clocked too; on a GPU that queues four events a layer, so that
            a step with capture is a little longer. Otherwise its time belongs to the phases around it.
    """

    def __init__(
        self,
        model: ProbeModel,
        optimizer: TimedOptimizer,
        device: str,
        *,
        by_phase: bool = True,
    ) -> None:
        world, rank = comm.world_size(), comm.rank()
        self.model = model.data.model(seed=0).to(device)
        self._network: nn.Module = DistributedDataParallel(self.model) if world > 1 else self.model
        self._device = torch.device(device)
        self._precision = Precision(model.precision, self._device)
        self.optimizer, self.preconditioner = build(
            optimizer.method,
            self._network,
            optimizer.hyperparameters,
            exclude=model.data.exclude,
            grad_scale=self._precision.grad_scale,
        )
        self._loss = model.data.loss
        self._by_phase = by_phase
        examples = model.data.batch_size
        share = slice(rank * examples // world, (rank + 1) * examples // world)
        self._batches = cycle([_part(batch, share, device) for batch in islice(model.data.batches(seed=0), _BATCHES)])
        self._steps_done = 0

    def times(self, steps: int) -> list[StepTimes]:
        """Return the times of the next steps, after `WARM_UP` untimed ones.

        On a GPU the host waits after the last one only: until then it runs ahead of the device, as in training.
        """
        trained = [self._clocked_step() for _ in range(WARM_UP + steps)]
        return [_times_of(*step) for step in trained[WARM_UP:]]

    def step(self) -> StepTimes:
        """Train one step and return its times."""
        return _times_of(*self._clocked_step())

    def train_step(self, clock: Clock) -> bool:
        """Train one step; return whether the method refreshed. clock: times forward, backward and update."""
        batch = next(self._batches)
        clock.start("forward")
        with self._precision.autocast:
            loss = self._loss(self._network, batch)
        clock.switch("backward")
        self.optimizer.zero_grad()
        self._precision.backward(loss)
        clock.switch("update")
        if self.preconditioner is not None:
            self.preconditioner.observe(loss)
        self._precision.step(self.optimizer)
        clock.stop()
        refreshed = self.preconditioner is not None and self.preconditioner.method.refreshes(self._steps_done)
        self._steps_done += 1
        return refreshed

    def _clocked_step(self) -> tuple[bool, Clock]:
        """Train one step; return whether the method refreshed, and the step's clock, which need not be read at once."""
        clock = clock_of(self._device, per_layer=self._by_phase)
        if self.preconditioner is not None and self._by_phase:
            self.preconditioner.phases = clock
        return self.train_step(clock), clock


def _times_of(refreshed: bool, clock: Clock) -> StepTimes:
    used = clock.nanoseconds
    return StepTimes(refreshed, {phase: used[phase] / 1e6 for phase in PHASES})


def in_groups(
    items: Sequence[Item], device: str, measure: Callable[[Sequence[Item]], Iterable[Result]]
) -> Iterator[Result]:
    """Yield what ``measure`` yields for groups of items, whose loops it may keep alive together.

    On a CPU all items are one group, so that they take turns and drift affects all equally. A GPU may not hold them
    all: there each item is a group, and its memory is released before the next.
    """
    for group in [items] if device == "cpu" else [[item] for item in items]:
        yield from measure(group)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


class CycleMeans(NamedTuple):
    """A phase's mean milliseconds: in refreshing steps (NaN if none), in the others (NaN if none), and in all."""

    refresh_ms: float
    other_ms: float
    ms: float


def cycle_means(steps: Sequence[StepTimes], phase: str) -> CycleMeans:
    """Return a phase's mean times over the steps of whole cycles."""
    times = {kind: [step.ms[phase] for step in steps if step.refreshed is kind] for kind in (True, False)}
    means = {kind: fmean(values) if values else float("nan") for kind, values in times.items()}
    return CycleMeans(means[True], means[False], fmean(step.ms[phase] for step in steps))


def over_ranks(steps: Sequence[Sequence[StepTimes]]) -> list[StepTimes]:
    """Return the mean over ranks of the same steps; steps: ``[rank][step]``."""
    return [
        StepTimes(same_step[0].refreshed, {phase: fmean(step.ms[phase] for step in same_step) for phase in PHASES})
        for same_step in zip(*steps, strict=True)
    ]


def _part(batch: Batch, share: slice, device: str) -> Batch:
    return {name: tensor[share].to(device) for name, tensor in batch.items()}
