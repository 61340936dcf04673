"""The processes (ranks) that train one run together: how they connect, exchange values, and leave.

With one process (`ALONE`) every collective returns its input, at the cost of a function call.
"""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

# torch.distributed exports these without types.
from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from mkor_core.ranks import comm
from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import first_line
from workflow.bench.training.launcher import LaunchedRank, MeetingError
from workflow.bench.training.watchdog import SILENCE_SECONDS, Watchdog
from workflow.bench.workloads.base import Team

_T = TypeVar("_T")

ARRIVAL_TIMEOUT: timedelta = timedelta(minutes=5)
"""Time that the ranks wait for the last one to connect."""

_COLLECTIVE_TIMEOUT: Final = timedelta(minutes=30)
"""Time that a collective may take; `Watchdog` notices dead ranks long before."""

_NO_TIMEOUT: Final = timedelta(days=30)

_BYTES_AT_ONCE: Final = 2**26

_SEED_STRIDE: Final = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio. Multiples of it keep the seeds of ranks apart from those of runs, which are small."""


class Ranks(Team):
    """The processes that train together, as seen from one of them.

    `joined` creates it; `ALONE` stands for a single process.
    """

    def __init__(self, place: LaunchedRank, store: Store | None = None) -> None:
        self.rank = place.rank
        self.size = place.size
        self._store = store
        self._messages = 0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone writes files and prints."""
        return self.rank == 0

    def from_first(self, value: _T | None) -> _T:
        """Return the first rank's ``value`` on every rank; those of the others are ignored.

        The other ranks wait for as long as it takes. The value must consist of plain JSON types.
        """
        if self._store is None:
            return cast("_T", value)
        # Every rank makes these calls in the same order, so that a counter names each message.
        self._messages += 1
        key = f"message/{self._messages}"
        if self.is_first:
            self._store.set(key, json.dumps(value))
            return cast("_T", value)
        return cast("_T", json.loads(self._store.get(key)))

    def bytes_from_first(self, data: bytes) -> bytes:
        """Return the first rank's ``data``, of any length, on every rank; those of the others are ignored."""
        if self._store is None:
            return data
        length = self.from_first(len(data))
        received = io.BytesIO()
        for start in range(0, length, _BYTES_AT_ONCE):
            number = min(_BYTES_AT_ONCE, length - start)
            part = bytearray(data[start : start + number]) if self.is_first else bytearray(number)
            dist.broadcast(torch.frombuffer(part, dtype=torch.uint8), 0)
            if not self.is_first:
                received.write(part)
        return data if self.is_first else received.getvalue()

    @override
    def gathered(self, value: _T) -> list[_T]:
        """Return the ``value`` of every rank, in rank order: anything picklable, tensors on the CPU."""
        if self._store is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def first_refusal(self, work: Callable[[], str | None]) -> str | None:
        """Call ``work`` on the first rank, then on the others; return the first reason why not.

        For data, which the first rank prepares alone, and keeps in files that the others then find.
        """
        reason = cast("str | None", self.from_first(work() if self.is_first else None))
        if reason is None and not self.is_first:
            reason = work()
        return next((each for each in self.gathered(reason) if each is not None), None)

    @override
    def part(self, examples: int) -> slice:
        """Return the rows of ``examples`` that this rank evaluates: an equal part, up to one row."""
        return slice(self.rank * examples // self.size, (self.rank + 1) * examples // self.size)

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the first one's buffers of ``model``, such as the running means of batch normalization.

        Each rank has its own after a step. The next forward pass of `parallel` would do the same.
        """
        if self._store is not None:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def mean(self, values: Tensor) -> Tensor:
        """Return the element-wise mean of a tensor over the ranks; with one rank, the tensor itself."""
        if self._store is None:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.size

    def agree(self, *, stop: bool, save: bool, steps: int) -> tuple[bool, bool, int]:
        """Return whether any rank wants to stop, and the first rank's ``save`` and ``steps``."""
        # One all-reduce for all three: for values that only the first rank sets, the maximum is its value.
        votes = torch.tensor([stop, save and self.is_first, steps if self.is_first else 0])
        dist.all_reduce(votes, dist.ReduceOp.MAX)
        stops, saves, ahead = votes.tolist()
        return bool(stops), bool(saves), int(ahead)

    def parallel(self, model: nn.Module, device: torch.device) -> DistributedDataParallel:
        """Return ``model`` wrapped so that all ranks start from the first one's weights and average their gradients.

        All parameters must get a gradient in every step. The bytes sent for gradients are counted as
        ``gradient_all_reduce``.
        """
        wrapped = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        _let_gradients_arrive(wrapped, device)
        # A lambda, because torch checks annotations, and those of functions in this file are strings.
        wrapped.register_comm_hook(None, lambda state, bucket: _count_and_reduce(bucket))  # noqa: ARG005
        return wrapped

    def rank_seed(self, seed: int) -> int:
        """Return the seed for random numbers that each rank draws on its own, such as dropout; rank 0 gets ``seed``."""
        return (seed + self.rank * _SEED_STRIDE) % 2**63

    def claim(self, name: str) -> bool:
        """Return whether this rank is the first to claim ``name``."""
        return self._store is None or self._store.add(f"claim/{name}", 1) == 1


ALONE: Final = Ranks(LaunchedRank())


class _SumOfParameters(nn.Module):
    """Returns the sum of a model's trained parameters times a factor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._summed = model

    @override
    def forward(self, factor: Tensor) -> Tensor:
        return factor * sum(parameter.sum() for parameter in self._summed.parameters() if parameter.requires_grad)


def _let_gradients_arrive(wrapped: DistributedDataParallel, device: torch.device) -> None:
    """Take a backward pass with gradients of 0, which arrive from the last parameter to the first.

    After the first pass torch regroups its buckets, once, in the order in which gradients arrived. Sums over more than
    two ranks depend on where a gradient lies in its bucket, and the first step after a checkpoint is not the first of
    the run: without this pass, a resumed run would differ in the last bits.
    """
    model = wrapped.module
    wrapped.module = _SumOfParameters(model)
    wrapped(torch.zeros((), device=device)).backward()
    wrapped.module = model
    for parameter in model.parameters():
        parameter.grad = None


def _count_and_reduce(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    comm.count_bytes("gradient_all_reduce", bucket.buffer())
    group: Any = None  # the default group, which torch's annotation does not allow
    return allreduce_hook(group, bucket)


@contextmanager
def joined(place: LaunchedRank, device: str) -> Iterator[Ranks]:
    """Connect the processes of a launcher and yield this one's `Ranks`; yield `ALONE` for a single process.

    All ranks leave together. If one fails, or is silent for half a minute, all processes exit at once, and one line
    names the rank and the reason: nothing else would wake the ranks that wait for it.

    device: ``cpu`` (gloo) or ``cuda`` (NCCL for tensors on GPUs, gloo for others).

    Raises:
        MeetingError: not all ranks connected in time.
    """
    if place.size == 1:
        yield ALONE
        return
    store = _meet(place)
    watchdog = Watchdog(place, _connect(place))
    ranks = Ranks(place, store)
    try:
        _require_interfaces()
        gpu = _own_gpu(ranks, place, store) if device == "cuda" else None
        if gpu is not None:
            torch.cuda.set_device(gpu)
        with _connecting(place, device, watchdog):
            dist.init_process_group(
                "gloo" if gpu is None else "cpu:gloo,cuda:nccl",
                store=PrefixStore("group", store),
                rank=place.rank,
                world_size=place.size,
                timeout=_COLLECTIVE_TIMEOUT,
                # NCCL connects now, and splits later groups off, instead of when each is first used.
                device_id=gpu,
            )
        watchdog.start()
        yield ranks
        ranks.gathered(None)
    except BaseException as problem:  # noqa: BLE001  (whatever it is, the other ranks must end too)
        watchdog.end_all(problem)
    watchdog.stop()
    dist.destroy_process_group()
    # Rank 0 may host the store, and its exit code is the job's: it leaves last.
    store.add("left", 1)
    limit = time.monotonic() + SILENCE_SECONDS
    while place.rank == 0 and store.add("left", 0) < place.size and time.monotonic() < limit:
        time.sleep(0.01)


def _require_interfaces() -> None:
    """Raise `ConfigError` if this machine lacks a network interface that gloo is told to use."""
    present = [name for _, name in socket.if_nameindex()]
    for name in filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")):
        if name not in present:
            raise ConfigError(
                f"GLOO_SOCKET_IFNAME: {socket.gethostname()} has no network interface {name!r}; "
                f"it has {', '.join(present)}"
            )


@contextmanager
def _connecting(place: LaunchedRank, device: str, watchdog: Watchdog) -> Iterator[None]:
    """End the job if what stands in the context, which connects the ranks, takes longer than `ARRIVAL_TIMEOUT`."""
    minutes = f"{ARRIVAL_TIMEOUT.total_seconds() / 60:g} minutes"
    if device == "cuda":
        cause = "NCCL's network plugin may hang (NCCL_NET=Socket does without)"
    else:
        cause = "gloo may use the wrong network interface"
    problem = MeetingError(
        f"the {place.size} ranks met, but did not connect through their networks within {minutes}: {cause}, "
        "or GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name one that does not reach the others; see docs/clusters.md"
    )
    # NCCL connects without a limit of its own, in a call that nothing interrupts: a thread has to end the process.
    timer = threading.Timer(ARRIVAL_TIMEOUT.total_seconds(), watchdog.end_all, [problem])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _own_gpu(ranks: Ranks, place: LaunchedRank, store: Store) -> torch.device:
    """Return the GPU of this rank: the one numbered as the rank on its machine, or the only one that it sees.

    Raises:
        ConfigError: on all ranks alike, if a rank has no GPU, or two ranks have the same one.
    """
    number = torch.cuda.device_count()
    # A launcher may hide all GPUs but one from each rank: that is then its own, whatever the rank's number.
    index = 0 if number == 1 else place.local_rank
    host = socket.gethostname()
    own = f" {host}: rank {place.rank} has the local rank {index}, and sees {number} GPUs"  # begins unlike a host
    if index < number:
        own = f"{host} {torch.cuda.get_device_properties(index).uuid}"
    store.set(f"gpu/{place.rank}", own)
    problem = ranks.from_first(_gpu_problem(place, store) if ranks.is_first else None)
    if problem:
        raise ConfigError(problem)
    return torch.device("cuda", index)


def _gpu_problem(place: LaunchedRank, store: Store) -> str:
    """Return which ranks have no GPU of their own, empty if all have; every rank has put its GPU into the store."""
    keys = [f"gpu/{rank}" for rank in range(place.size)]
    store.wait(keys, ARRIVAL_TIMEOUT)
    holders: dict[str, int] = {}
    for rank, key in enumerate(keys):
        gpu = store.get(key).decode()
        if gpu.startswith(" "):
            return f"{gpu.strip()}; start one rank for each GPU"
        if gpu in holders:
            host, _, uuid = gpu.partition(" ")
            advice = "start one rank for each GPU, or for each MIG slice, and let no two see the same one alone"
            return f"{host}: ranks {holders[gpu]} and {rank} have the same GPU, {uuid}; {advice}"
        holders[gpu] = rank
    return ""


def _connect(place: LaunchedRank, *, hosts: bool = False) -> Store:
    """Return a connection to the store of the job; ``hosts``: this process serves it."""
    try:
        store = TCPStore(
            place.host, place.port, place.size, is_master=hosts, timeout=ARRIVAL_TIMEOUT, wait_for_workers=False
        )
    except (RuntimeError, ValueError) as problem:
        hint = "MASTER_ADDR and MASTER_PORT must name the host of rank 0 and a free port of it"
        raise MeetingError(
            f"rank {place.rank} of {place.size}: no connection at {place.host}:{place.port}: "
            f"{first_line(problem)}; {hint}"
        ) from None
    # A restart by torchrun meets in the same store; its prefix hides the keys of the attempt before.
    return PrefixStore(f"train/{place.attempt}", store)


def _meet(place: LaunchedRank) -> Store:
    """Return the store, once all ranks have connected to it."""
    store = _connect(place, hosts=place.rank == 0 and not place.has_store)
    store.set(f"connected/{place.rank}", "")
    try:
        store.wait([f"connected/{rank}" for rank in range(place.size)], ARRIVAL_TIMEOUT)
    except RuntimeError:
        missing = [rank for rank in range(place.size) if not store.check([f"connected/{rank}"])]
        raise MeetingError(
            f"rank {place.rank} of {place.size}: ranks {missing} did not connect to {place.host}:{place.port} within "
            f"{ARRIVAL_TIMEOUT}; start as many processes as WORLD_SIZE states"
        ) from None
    store.set_timeout(_NO_TIMEOUT)
    return store
