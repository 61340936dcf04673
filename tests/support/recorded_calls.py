"""The collective calls of any rank of a world of any size, recorded in one process on PyTorch's fake process group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)
"""Functions of ``torch.distributed``, some of which not all versions have."""
SPLIT = "split"
"""The call by which NCCL makes a group out of the communicator of all ranks: a collective of all of them."""


class Call(NamedTuple):
    """A collective, as a rank calls it."""

    operation: str
    group: tuple[int, ...]
    """Its ranks among all."""
    details: tuple[Any, ...] = ()
    """Sizes, dtypes, the root, the kind of reduction: what must be the same on all ranks of the group."""
    sent: tuple[int, ...] = ()
    """Of an all-to-all, the numbers for each rank of the group."""
    received: tuple[int, ...] = ()
    """And from each."""

    def fits(self, other: Call, here: int, there: int) -> bool:
        """Return whether two ranks' calls are parts of one collective; here, there: these ranks."""
        if self[:3] != other[:3]:
            return False
        i, j = self.group.index(here), self.group.index(there)
        return not self.sent or (self.sent[j], self.received[j]) == (other.received[i], other.sent[i])


class Recorder(TorchDispatchMode):
    """Records the collectives of `COLLECTIVES`, those of PyTorch's own code for sharded models as well.

    They are seen below the functions, where all arguments are given; and only there, since a dispatch mode around whole
    steps would take most of the time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d" and (groups := [*_groups(args)]):
            self.calls.append(_call(function.overloadpacket.__name__, groups[0], args))
        if function is torch.ops.c10d.alltoall_base_.default:
            # The fake group copies this rank's own part, whatever the sizes are. What arrives here are zeros.
            return torch.ops.c10d.broadcast_([args[0].zero_()], args[2], 0, 0, False, -1)[1]  # work that is done
        return function(*args, **(kwargs or {}))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is called."""
        with ExitStack() as patches:
            for name in COLLECTIVES:
                if hasattr(dist, name):
                    patches.enter_context(patch.object(dist, name, partial(self._recorded, getattr(dist, name))))
            patches.enter_context(patch.object(distributed_c10d, "_get_split_source", self._split))
            yield

    def _recorded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self:
            return function(*args, **kwargs)

    def _split(self, group: Any) -> None:
        """Note that ``new_group`` looks for a communicator to split, which it does if a device is bound; have none."""
        self.calls.append(Call(SPLIT, tuple(dist.get_process_group_ranks(group))))


def _groups(args: Iterable[Any]) -> Iterator[tuple[int, ...]]:
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            yield tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(arg)))


def _call(operation: str, group: tuple[int, ...], args: Sequence[Any]) -> Call:
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    if operation == "alltoall_base_":
        received, sent = ([*map(int, numbers)] for numbers in args[3:5])
        return Call(operation, group, (tensors[0].dtype,), tuple(sent), tuple(received))
    sizes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    return Call(operation, group, (sizes, *(arg for arg in args if isinstance(arg, int))))


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    """Be a rank of a world whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def calls_of(ranks: Iterable[int], size: int, work: Callable[[int], None]) -> dict[int, list[Call]]:
    """Return what each of some ranks of a world calls while it does its work."""
    calls = {}
    for rank in ranks:
        recorder = Recorder()
        with fake_world(rank, size), recorder.recording():
            work(rank)
        calls[rank] = recorder.calls
    return calls


def stalled(calls: Mapping[int, Sequence[Call]]) -> dict[int, Call]:
    """Return the calls that wait forever, by rank: none if in every group all recorded members make the same calls.

    A call is over when the next call of every recorded member of its group is the same. So this also finds ranks that
    make the same calls in each group, but wait for each other in a circle of groups.
    """
    waiting = {rank: deque(sequence) for rank, sequence in calls.items()}
    moves = True
    while moves:
        moves = False
        for rank, sequence in waiting.items():
            while sequence:
                head = sequence[0]
                members = [member for member in head.group if member in waiting]
                if not all(waiting[m] and waiting[m][0].fits(head, m, rank) for m in members):
                    break
                for member in members:
                    waiting[member].popleft()
                moves = True
    return {rank: sequence[0] for rank, sequence in waiting.items() if sequence}
