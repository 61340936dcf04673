"""Times of contenders that take turns, and training whose steps are timed, in total or by phase.

A machine's speed drifts (other load, temperature, clock rates), so times are compared only within a round, in which
every contender had its turn. The order of the turns changes from round to round, since a contender that always follows
the same one finds the caches as that one left them. This is the one rig of every comparison of times.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from statistics import fmean
from typing import Final, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from baselines import build
from mkor_core.ranks import comm
from workflow.bench.data.batches import Batch
from workflow.bench.probes._models import ProbeModel, TimedOptimizer
from workflow.bench.support import load
from workflow.bench.support.load import OtherLoad, is_busy
from workflow.bench.training.clocks import Clock, clock_of
from workflow.bench.training.precision import Precision

PHASES: Final = ("forward", "backward", "capture", "factor", "precondition", "communication", "update")
"""The phases of a step, without data. ``backward`` includes DistributedDataParallel's exchange of gradients."""
SAFE_RATE: Final = 1e-4
"""A learning rate at which training cannot diverge while it is timed; the time of a step does not depend on it."""
WARM_UP: Final = 2
"""Untimed steps before each timing, which fill the caches again after another optimizer's turn."""
_BATCHES: Final = 4  # used in rotation, since making batches is not part of a step

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


def rounds(turns: Mapping[Key, Callable[[], Result]], number: int) -> Iterator[dict[Key, Result]]:
    """Yield what each contender's turn returned, by contender and in their given order, for ``number`` rounds.

    The order of a round's turns depends on the round alone, so that it is the same on every rank.
    """
    keys = list(turns)
    for index in range(number):
        # Seeded by its number and not by a clock: ranks that took different turns would wait for each other for ever.
        order = random.Random(index).sample(keys, len(keys))
        results = {key: turns[key]() for key in order}
        yield {key: results[key] for key in keys}


class Round(NamedTuple, Generic[Key, Result]):
    """What each contender's turn returned, and the share of the cores that other processes took meanwhile."""

    results: Mapping[Key, Result]
    busy_share: float | None

    @property
    def is_busy(self) -> bool:
        """Whether the machine was busy with other things; it was not if that is unknown."""
        return is_busy(self.busy_share)


def watched_rounds(turns: Mapping[Key, Callable[[], Result]], number: int) -> Iterator[Round[Key, Result]]:
    """Yield `rounds` with the load of the machine, which is that of a window of short rounds."""
    others, started, window = OtherLoad(), time.perf_counter(), list[Mapping[Key, Result]]()
    for index, results in enumerate(rounds(turns, number)):
        window.append(results)
        if time.perf_counter() - started >= load.LOAD_SECONDS or index + 1 == number:
            share = others.share()
            yield from (Round(of_round, share) for of_round in window)
            started, window = time.perf_counter(), []


def until_idle(tried: Iterable[Round[Key, Result]], number: int) -> list[Round[Key, Result]]:
    """Return the rounds up to the ``number``-th with an idle machine; all if there are fewer of them."""
    done: list[Round[Key, Result]] = []
    idle = 0
    for one in tried:
        done.append(one)
        idle += not one.is_busy
        if idle == number:
            break
    return done


def idle_rounds(
    turns: Mapping[Key, Callable[[], Result]], number: int, *before: Round[Key, Result]
) -> list[Round[Key, Result]]:
    """Return the first ``number`` rounds with an idle machine, of which some were timed ``before``.

    If twice as many rounds hold fewer, the least busy of the others take their places.
    """
    tried = until_idle(chain(before, watched_rounds(turns, 2 * number - len(before))), number)
    return sorted(tried, key=lambda one: (one.busy_share or 0.0) if one.is_busy else 0.0)[:number]


def now(device: torch.device) -> float:
    """Return the time in seconds, once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def milliseconds(call: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Return the mean time of ``calls`` calls in milliseconds, from an idle device until it is idle again."""
    start = now(device)
    for _ in range(calls):
        call()
    return 1000 * (now(device) - start) / calls


class PhaseTimes(NamedTuple):
    """One step's milliseconds by phase, and whether the method refreshed in it."""

    refreshed: bool
    ms: Mapping[str, float]

    @property
    def total(self) -> float:
        """Milliseconds of the whole step."""
        return sum(self.ms.values())


class TimedLoop:
    """Training of a model by one optimizer in its experiment's precision; under gloo ranks share every batch.

    Args:
        model: the model with its batches.
        optimizer: the optimizer.
        device: ``cpu`` or ``cuda``.
        by_phase: whether the preconditioner's phases are clocked too; on a GPU that queues four events a layer, so that
            a step with capture is a little longer. Otherwise its time belongs to the phases around it.
        seed: of the weights and the batches.
    """

    def __init__(
        self, model: ProbeModel, optimizer: TimedOptimizer, device: str, *, by_phase: bool = True, seed: int = 0
    ) -> None:
        world, rank = comm.world_size(), comm.rank()
        self.model = model.data.model(seed).to(device)
        self._network: nn.Module = DistributedDataParallel(self.model) if world > 1 else self.model
        self._device = torch.device(device)
        self.precision = Precision(model.precision, self._device)
        self.optimizer, self.preconditioner = build(
            optimizer.method,
            self._network,
            optimizer.hyperparameters,
            exclude=model.data.exclude,
            grad_scale=self.precision.grad_scale,
        )
        self._loss = model.data.loss
        self._by_phase = by_phase
        examples = model.data.batch_size
        share = slice(rank * examples // world, (rank + 1) * examples // world)
        # On the device before any step, so that no step waits for a copy.
        first = islice(model.data.batches(seed), _BATCHES)
        self._batches = cycle([{name: one[share].to(device) for name, one in batch.items()} for batch in first])
        self._steps_done = 0

    def times(self, steps: int) -> list[PhaseTimes]:
        """Return the times of the next steps, after `WARM_UP` untimed ones.

        On a GPU the host waits after the last one only: until then it runs ahead of the device, as in training.
        """
        # Clocks are read after the loop: reading one waits for the device.
        trained = [self._clocked_step() for _ in range(WARM_UP + steps)]
        return [_times_of(*step) for step in trained[WARM_UP:]]

    def step(self) -> PhaseTimes:
        """Train one step and return its times."""
        return _times_of(*self._clocked_step())

    def train_step(self, clock: Clock) -> bool:
        """Train one step; return whether the method refreshed. clock: times forward, backward and update."""
        loss = self.backward(next(self._batches), clock)
        clock.switch("update")
        if self.preconditioner is not None:
            self.preconditioner.observe(loss)
        self.precision.step(self.optimizer)
        clock.stop()
        refreshed = self.preconditioner is not None and self.preconditioner.method.refreshes(self._steps_done)
        self._steps_done += 1
        return refreshed

    def backward(self, batch: Batch, clock: Clock) -> Tensor:
        """Return the loss of a batch, whose gradients replace the last one's; `precision` may have scaled them."""
        clock.start("forward")
        with self.precision.autocast:
            loss = self._loss(self._network, batch)
        clock.switch("backward")
        self.optimizer.zero_grad()
        self.precision.backward(loss)
        return loss

    def _clocked_step(self) -> tuple[bool, Clock]:
        """Train one step; return whether the method refreshed, and the step's clock, which need not be read at once."""
        clock = clock_of(self._device, per_layer=self._by_phase)
        if self.preconditioner is not None and self._by_phase:
            self.preconditioner.phases = clock
        return self.train_step(clock), clock


def _times_of(refreshed: bool, clock: Clock) -> PhaseTimes:
    used = clock.nanoseconds
    return PhaseTimes(refreshed, {phase: used[phase] / 1e6 for phase in PHASES})


def in_groups(
    items: Sequence[Item], device: str, measure: Callable[[Sequence[Item]], Iterable[Result]]
) -> Iterator[Result]:
    """Yield what ``measure`` yields for groups of items, whose loops it may keep alive together.

    On a CPU all items are one group, so that they take turns and drift affects all equally. A GPU may not hold them
    all: there each item is a group, and its memory is released before the next.
    """
    for group in [items] if device == "cpu" else [[item] for item in items]:
        yield from measure(group)
        release(device)


def release(device: str) -> None:
    """Free what nothing refers to any more."""
    gc.collect()  # models and preconditioners refer to each other through hooks
    if device == "cuda":
        torch.cuda.empty_cache()


def over_ranks(steps: Sequence[Sequence[PhaseTimes]]) -> list[PhaseTimes]:
    """Return the mean over ranks of the same steps; steps: ``[rank][step]``."""
    return [
        PhaseTimes(same_step[0].refreshed, {phase: fmean(step.ms[phase] for step in same_step) for phase in PHASES})
        for same_step in zip(*steps, strict=True)
    ]
