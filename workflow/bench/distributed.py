"""Processes that train one run together: how they meet, agree, share a batch, and end when one of them is lost.

On one process (`ALONE`) every agreement is one's own opinion, and costs a function call.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

# These are torch.distributed's, which exports them untyped.
from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from mkor_core import comm
from workflow.bench.config import ConfigError
from workflow.bench.launch import MeetingError, Place
from workflow.bench.record import GO_ON, first_line
from workflow.bench.runs import Run
from workflow.bench.workloads.base import Batch, Workload

_T = TypeVar("_T")

_ARRIVAL: Final = timedelta(minutes=5)
"""How long the first rank waits for the last one."""
_COLLECTIVE: Final = timedelta(minutes=30)
"""How long a collective may take; ranks that die are noticed long before, by `_Watch`."""
_FOR_EVER: Final = timedelta(days=30)
_GOLDEN: Final = 0x9E3779B97F4A7C15
"""Keeps the seeds of ranks apart from those of runs, which are small."""
_BEAT: Final = 1.0
_SILENCE: Final = 30.0
"""Seconds between two signs of life of a rank, and without one until it counts as lost."""
_ENDED: Final = "ended"
_LOST: Final = re.compile(r"gloo|nccl|connection (was )?(closed|reset)|socket|broken pipe|timed? ?out", re.IGNORECASE)
"""What torch's errors say where a rank waited in vain for another; they have no type of their own."""


class OneRankError(Exception):
    """A run came to its end on this rank alone, and is recorded: the others cannot go on with it."""


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


@dataclass(frozen=True)
class Share:
    """A rank's part of every step: its examples of the global batch, and its micro-batches.

    A micro-batch belongs to one rank, or to several that have equal parts of it.
    """

    rows: slice
    micro_batches: int
    """Of this rank, in a step."""
    owners: int
    """Ranks that have a part of each micro-batch."""
    number: int
    """The micro-batch that this rank's examples are a part of, where it shares one."""
    of: int
    """Micro-batches of the global batch."""


def share_of(run: Run, ranks: Ranks) -> Share:
    """Return the part of a run's batches that a rank trains on.

    Raises `ConfigError` where the ranks cannot have equal parts.
    """
    size, batch, parts = ranks.size, run.spec["workload"]["batch_size"], run.accumulation_steps
    if why := run.why_not_on(size):
        raise ConfigError(f"{run.describe()}: {why}")
    mine = batch // size
    rows = slice(ranks.rank * mine, (ranks.rank + 1) * mine)
    if parts >= size:
        return Share(rows, parts // size, 1, 0, parts)
    owners = size // parts
    return Share(rows, 1, owners, ranks.rank // owners, parts)


def share_batches(workload: Workload, seed: int, start: int, share: Share, device: torch.device) -> Iterator[Batch]:
    """Yield this rank's part of a workload's batches from ``start`` on.

    Where ranks share a micro-batch and its loss is a mean over something else than examples (predicted tokens, say),
    a rank's ``loss_weight`` makes the mean of the ranks' losses the loss of the whole.
    """
    for batch in workload.rows_of_batches(seed, start, share.rows):
        terms = workload.loss_terms(batch) if share.owners > 1 else None
        if terms is None:
            yield batch
        else:
            counts = torch.zeros(share.of, device=device)
            counts[share.number] = terms.to(device)
            (total,) = comm.sum_across_ranks([counts])
            yield batch | {"loss_weight": counts[share.number] * share.owners / total[share.number]}


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
    watch = _Watch(place, _connect(place))
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
    limit = time.monotonic() + _SILENCE
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


class _Watch(threading.Thread):
    """Gives signs of life, looks for those of the next rank, and ends the process where the job is over.

    store: a connection of its own, since one that waits for a word is blocked.
    """

    def __init__(self, place: Place, store: Store, beat: float = _BEAT, silence: float = _SILENCE) -> None:
        super().__init__(name="watch", daemon=True)
        self._place = place
        self._store = store
        self._next = (place.rank + 1) % place.size
        self._beat = beat
        self._silence = silence
        self._over = threading.Event()
        self._ending = threading.Lock()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look around every few seconds until `stop`."""
        seen, since, reached = -1, time.monotonic(), time.monotonic()
        while not self._over.wait(self._beat):
            now = time.monotonic()
            try:
                self._store.add(f"beat/{self._place.rank}", 1)
                if self._store.check([_ENDED]):
                    self._exit(int(self._store.get(_ENDED)))
                beats = self._store.add(f"beat/{self._next}", 0)
            except RuntimeError as problem:
                if now - reached > self._silence:
                    self._say(f"cannot reach the others at {self._place.host}: {first_line(problem)}")
                    self._exit(1)
                continue
            reached = now
            if beats != seen:
                seen, since = beats, now
            elif now - since > self._silence:
                self._end(1, f"rank {self._next} has not been heard of for {now - since:.0f} s: the job ends here")

    def end_all(self, problem: BaseException) -> NoReturn:
        """Say what went wrong on this rank, unless another one's end explains it, and end the job."""
        if isinstance(problem, OneRankError):
            self._end(GO_ON, str(problem))
        elif isinstance(problem, ConfigError | OSError):
            self._end(1, str(problem))
        elif isinstance(problem, KeyboardInterrupt | SystemExit):
            self._end(1, "interrupted")
        elif isinstance(problem, RuntimeError) and _LOST.search(str(problem)):
            self._end(1, self._who_is_lost(problem))
        else:
            self._end(1, "".join(traceback.format_exception(problem)).rstrip())

    def _who_is_lost(self, problem: RuntimeError) -> str:
        """Say which ranks give no signs of life, after having listened for some."""
        try:
            before = self._beats()
            for _ in range(3):
                time.sleep(self._beat)
                if self._store.check([_ENDED]):
                    break
            silent = [rank for rank, beats in enumerate(self._beats()) if beats == before[rank]]
        except RuntimeError:
            return (
                f"rank 0, or its launcher, no longer answers at {self._place.host} (killed?); the same command goes on "
                "from the last checkpoint"
            )
        lost = [rank for rank in silent if rank != self._place.rank]
        if not lost:
            return f"a connection between ranks broke: {first_line(problem)}"
        named = f"rank {lost[0]} is" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} are"
        return f"{named} gone (killed?); the same command goes on from the last checkpoint"

    def _beats(self) -> list[int]:
        return [self._store.add(f"beat/{rank}", 0) for rank in range(self._place.size)]

    def _end(self, code: int, why: str) -> NoReturn:
        """End the job with ``code``; the first rank that wants to says why."""
        try:
            speaks = self._store.compare_set(_ENDED, "", str(code)) == str(code).encode() and (
                self._store.add("told", 1) == 1
            )
            code = int(self._store.get(_ENDED))
        except RuntimeError:
            speaks = True
        if speaks:
            self._say(why)
        self._exit(code)

    def _say(self, what: str) -> None:
        print(f"rank {self._place.rank} of {self._place.size} ({socket.gethostname()}): {what}", file=sys.stderr)

    def _exit(self, code: int) -> NoReturn:
        """End this process now: an orderly exit waits for collectives that never end."""
        with self._ending:  # whoever comes second, watch or trainer, has nothing to add
            sys.stdout.flush()
            sys.stderr.flush()
            if self._place.rank == 0 and not self._place.has_store:
                # The others learn of the end from the store that this process hosts.
                time.sleep(2 * self._beat)
            os._exit(code)
