"""The processes (ranks) that train one run together: how they connect, exchange values, and leave.

With one process (`ALONE`) every collective returns its input, at the cost of a function call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

# These are torch.distributed's, which exports them untyped.
from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from mkor_core import comm
from workflow.bench.training.launcher import MeetingError, Place
from workflow.bench.training.record import first_line
from workflow.bench.training.watchdog import SILENCE, Watchdog

_T = TypeVar("_T")


_ARRIVAL: Final = timedelta(minutes=5)
"""How long the first rank waits for the last one."""


_COLLECTIVE: Final = timedelta(minutes=30)
"""How long a collective may take; ranks that die are noticed long before, by `Watchdog`."""


_FOR_EVER: Final = timedelta(days=30)


_GOLDEN: Final = 0x9E3779B97F4A7C15
"""Keeps the seeds of ranks apart from those of runs, which are small."""


class Ranks:
    """The processes that train together, seen from one of them.

    Made by `joined`; `ALONE` is the only process.
    """

    def __init__(self, place: Place, store: Store | None = None) -> None:
        self.rank = place.rank
        self.size = place.size
        self._place = place
        self._store = store
        self._words = 0

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    def from_first(self, make: Callable[[], _T]) -> _T:
        """Return on every rank what ``make`` returns on the first, where alone it is called; plain JSON values.

        However long the first one takes, the others wait.
        """
        if self._store is None:
            return make()
        self._words += 1
        word = f"word/{self._words}"
        if self.is_first:
            made = make()
            self._store.set(word, json.dumps(made))
            return made
        said: _T = json.loads(self._store.get(word))
        return said

    def gathered(self, value: _T) -> list[_T]:
        """Return every rank's ``value``, in rank order: what pickle takes, tensors on the CPU."""
        if self._store is None:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of a tensor over the ranks, itself on one."""
        if self._store is None:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.size

    def agree(self, *, stop: bool, save: bool, steps: int) -> tuple[bool, bool, int]:
        """Return whether any rank wants to stop, and whether the first wants to save, and in how many steps to meet."""
        votes = torch.tensor([stop, save and self.is_first, steps if self.is_first else 0])
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        stops, saves, ahead = votes.tolist()
        return bool(stops), bool(saves), int(ahead)

    def parallel(self, model: nn.Module, device: torch.device) -> DistributedDataParallel:
        """Return ``model``, with the first rank's weights on all of them, whose gradients are means over the ranks.

        Bytes of gradients are counted as ``gradient_all_reduce``.
        """
        # Looking for unused parameters keeps torch from sorting its buckets anew after the first step. Sums over more
        # than two ranks depend on where a gradient lies in them, and the first step after a checkpoint is no first one.
        wrapped = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None, find_unused_parameters=True
        )
        # A lambda, since the annotations of a function in this file are text, which torch does not take for types.
        wrapped.register_comm_hook(None, lambda state, bucket: _count_and_reduce(bucket))  # noqa: ARG005
        return wrapped

    def own_seed(self, seed: int) -> int:
        """Return the seed of what a rank draws for its own examples, such as dropout; the first one's is ``seed``."""
        return (seed + self.rank * _GOLDEN) % 2**63

    def claim(self, name: str) -> bool:
        """Tell whether this rank is the first to ask for ``name``."""
        return self._store is None or self._store.add(f"claim/{name}", 1) == 1


ALONE: Final = Ranks(Place())


def _count_and_reduce(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    comm.count_bytes("gradient_all_reduce", bucket.buffer())
    group: Any = None  # the default one, which torch's annotation leaves out
    return allreduce_hook(group, bucket)


@contextmanager
def joined(place: Place, device: str) -> Iterator[Ranks]:
    """Let the processes of a launcher meet, and yield what each is among them; a lone one is `ALONE`.

    device: ``cpu`` (gloo) or ``cuda`` (NCCL for what lies on GPUs).  All ranks leave together.  Where one of them
    fails, or is heard no more for half a minute, all processes end at once with a line that says which and why, since
    nothing wakes those that wait for it.  Raises `MeetingError` where not all ranks come.
    """
    if place.size == 1:
        yield ALONE
        return
    store = _meet(place)
    watch = Watchdog(place, _connect(place))
    ranks = Ranks(place, store)
    try:
        if device == "cuda":
            torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.size,
            timeout=_COLLECTIVE,
        )
        watch.start()
        yield ranks
        ranks.gathered(None)
    except BaseException as problem:  # noqa: BLE001  (whatever it is, the others must hear of it)
        watch.end_all(problem)
    watch.stop()
    dist.destroy_process_group()
    # The first rank may host the store, and its exit code is the job's: it leaves last.
    store.add("left", 1)
    limit = time.monotonic() + SILENCE
    while place.rank == 0 and store.add("left", 0) < place.size and time.monotonic() < limit:
        time.sleep(0.01)


def _connect(place: Place, *, hosts: bool = False) -> Store:
    try:
        store = TCPStore(place.host, place.port, place.size, is_master=hosts, timeout=_ARRIVAL, wait_for_workers=False)
    except (RuntimeError, ValueError) as problem:
        why = f"{first_line(problem)}; MASTER_ADDR and MASTER_PORT must name rank 0's host and a free port of it"
        raise MeetingError(
            f"rank {place.rank} of {place.size}: no connection at {place.host}:{place.port}: {why}"
        ) from None
    return PrefixStore(f"train/{place.attempt}", store)


def _meet(place: Place) -> Store:
    """Return the store at which all ranks have arrived."""
    store = _connect(place, hosts=place.rank == 0 and not place.has_store)
    store.set(f"here/{place.rank}", "")
    try:
        store.wait([f"here/{rank}" for rank in range(place.size)], _ARRIVAL)
    except RuntimeError:
        missing = [rank for rank in range(place.size) if not store.check([f"here/{rank}"])]
        raise MeetingError(
            f"rank {place.rank} of {place.size}: ranks {missing} did not come to {place.host}:{place.port} within "
            f"{_ARRIVAL}; start as many processes as WORLD_SIZE says"
        ) from None
    store.set_timeout(_FOR_EVER)
    return store
