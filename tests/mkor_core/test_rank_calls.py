"""In every group all ranks call the same collectives. Truth: the calls of rank after rank on the fake process group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baselines import KAISA, Eva
from benchmarks.counting import bert_large
from mkor_core import MKOR, Codec, Method, Preconditioner, Schedule
from mkor_core.ranks import comm
from tests.support.rank_processes import fake_world
from workflow.bench.probes._counting import META, Counting

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


SIZES = (5, 7, 4)
"""Of the features, from layer to layer; fewer layers than ranks, and rows that 64 ranks cannot share evenly."""
WORLDS = {64: range(64), 1024: [*chain(range(4), range(510, 514), range(766, 770), range(1020, 1024))]}
"""The ranks that are recorded, by the number of ranks; of 1,024, neighbours, and ranks that are 256 or 512 apart."""
STEPS = 2
"""With an update in the first."""


class Case(NamedTuple):
    """A preconditioner on each rank of a world."""

    method: Callable[[int], Method]
    """Returns the method for a number of ranks."""
    options: Mapping[str, Any] = MappingProxyType({})
    replicas: int = 0
    """Of a model that is sharded by ``fully_shard``, the number of its copies; 0: the model is not sharded."""


def kaisa(**options: Any) -> KAISA:
    return KAISA(factor_update_period=2, inverse_update_period=2, **options)


CASES = {
    "mkor": Case(lambda _: MKOR(inverse_update_period=2)),
    "mkor, window": Case(lambda _: MKOR(inverse_update_period=2, window=4)),
    "eva": Case(lambda _: Eva()),
    "kaisa": Case(lambda _: kaisa()),
    "kaisa, scheduled": Case(lambda _: kaisa(), {"schedule": Schedule(everywhere_below=5)}),
    "kaisa, half": Case(lambda _: kaisa(grad_worker_fraction=0.5)),
    "kaisa, one worker": Case(lambda world: kaisa(grad_worker_fraction=1 / world)),
    "mkor by owners": Case(lambda _: MKOR(inverse_update_period=2), {"owners": True}),
    "mkor by owners, coded": Case(lambda _: MKOR(inverse_update_period=2), {"owners": True, "codec": Codec()}),
    "window, fully_shard": Case(lambda _: MKOR(inverse_update_period=2, window=4), replicas=1),
    "eva, HSDP": Case(lambda _: Eva(), replicas=2),
    "kaisa by owners, HSDP": Case(lambda world: kaisa(grad_worker_fraction=1 / world), replicas=2),
}


def network() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(d_in, d_out) for d_in, d_out in pairwise(SIZES)))


def blocks_of_all(numbers: Tensor, shards: int, world: int) -> Tensor:
    """Return what ``fully_shard`` gives each rank, ``[world, layers, 4]``: parts of equal sizes but the last."""
    everywhere = numbers.repeat(world, 1, 1)
    for layer, d_out in enumerate(SIZES[1:]):
        part = -(-d_out // shards)
        for rank in range(world):
            place = rank % shards
            everywhere[rank, layer, :2] = torch.tensor([min(place * part, d_out), min((place + 1) * part, d_out)])
    assert torch.equal(everywhere[comm.rank()], numbers)
    return everywhere


def trained(case: Case, world: int, group: dist.ProcessGroup | None = None) -> None:
    """Take some steps."""
    model: Any = network()
    if case.replicas:
        # With names of each rank's own: PyTorch keeps meshes of equal names for later, with the place of a former rank.
        names = f"copies, {dist.get_rank()}", f"shards, {dist.get_rank()}"
        mesh = init_device_mesh("cpu", (case.replicas, world // case.replicas), mesh_dim_names=names)
        fully_shard(model, mesh=mesh if case.replicas > 1 else mesh[names[1]])
    preconditioner = Preconditioner(model, case.method(world), lr=0.1, process_group=group, **case.options)
    for _ in range(STEPS):
        model.zero_grad()
        model(torch.ones(2, SIZES[0])).sum().backward()
        preconditioner.step()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_all_ranks_of_a_group_make_the_same_calls(name: str, world: int, monkeypatch: pytest.MonkeyPatch):
    case = CASES[name]
    # The plan of owners reads what others have sent, which a fake group does not bring.
    shards = world // max(1, case.replicas)
    monkeypatch.setattr(comm, "gather_numbers", lambda numbers, group: blocks_of_all(numbers, shards, world))
    calls = calls_of(WORLDS[world], world, lambda _: trained(case, world))
    assert all(calls.values())
    assert stalled(calls) == {}


OWNED_CEILING = 8
"""Collectives in a step of BERT-Large's layers with owners, of 1,024 ranks, that of the statistics included."""


@pytest.mark.parametrize("rank", [0, 1023])
def test_updates_of_owners_travel_in_few_collectives_at_1024_ranks(rank: int):
    """146 owners, one of them rank 0. No message is padded, and no buffer holds all updates."""
    model, numbers = bert_large(), 12 * 24 * 1024**2 + 2 * 1024**2 + 98 * 1024 + 24 * (4096 + 1024)
    assert numbers == sum(parameter.numel() for parameter in model.parameters())

    def work(_: int) -> None:
        preconditioner = Preconditioner(model, MKOR(inverse_update_period=1), lr=0.1, owners=True)
        model(torch.empty(2, 8, 1024, device=META)).backward()
        preconditioner.step()

    with Counting():  # answers where a value is read
        calls = calls_of([rank], 1024, work)[rank]
    assert len(calls) <= OWNED_CEILING
    gathered = [call.details[0][0][0][0] for call in calls if call.operation == "_allgather_base_"]
    largest = 4096 * 1024
    assert numbers <= sum(gathered) <= numbers + len(gathered) * 1024
    assert max(gathered) <= numbers / len(gathered) + largest
    sent = sum(sum(call.sent) for call in calls)
    assert sent == (largest + 4096 if rank == 0 else 0)


BOUND = torch.device("cuda", 0)
SUBGROUP = (1, 3, 4, 6)


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("group", [None, SUBGROUP])
def test_a_subgroup_needs_no_call_of_the_other_ranks(group: tuple[int, ...] | None, is_bound: bool):
    """Also where the default group is bound to a device, so that ``new_group`` would split its communicator.

    All ranks make the subgroup, as PyTorch wants it, but its members alone have a preconditioner.
    """

    def work(rank: int) -> None:
        made = None if group is None else dist.new_group(list(group))
        if group is None or rank in group:
            default = dist.group.WORLD
            assert default is not None
            default.bound_device_id = BOUND if is_bound else None
            trained(Case(lambda _: kaisa(grad_worker_fraction=0.5)), 8, made)
            assert default.bound_device_id == (BOUND if is_bound else None)

    calls = calls_of(range(8), 8, work)
    assert stalled(calls) == {}
    # With the whole world, the splits are those of all ranks: that of the columns, and that of the rows.
    assert [call.operation for call in calls[1]].count(SPLIT) == (2 if is_bound and group is None else 0)
