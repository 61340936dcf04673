"""Fresh processes for a measurement, and models that gloo ranks on one machine train together, whole or sharded."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from mkor_core import Preconditioner
from mkor_core.method import Distributed
from mkor_core.ranks import comm
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes._timing import SAFE_RATE
from workflow.bench.support.cost_line import print_cost


def run(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return ``function(*arguments)`` of each of ``world`` fresh processes, by rank.

    Several processes form gloo's default group. Arguments and results must pickle. Each process computes with the
    caller's number of threads.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a process failed; the others are stopped.
    """
    # The processes are forked from a server that has imported, once, the caller's modules of the bench and those that
    # PyTorch's optimizers import at their first step. Otherwise each process would spend seconds on these imports, and
    # their memory would count as that of the optimizer measured.
    multiprocessing.set_forkserver_preload(
        ["torch._dynamo", "torch.distributed", *(name for name in sys.modules if name.startswith("workflow.bench."))]
    )
    with tempfile.TemporaryDirectory() as folder:
        given = world, Path(folder), torch.get_num_threads(), function, arguments
        start_processes(_work, given, nprocs=world, start_method="forkserver")
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _work(
    rank: int, world: int, folder: Path, threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Run ``function`` as one rank, and leave its pickled result in ``folder``."""
    torch.set_num_threads(threads)
    if world > 1:
        # A file, because a port might be taken by then.
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        result = function(*arguments)
        print_cost(with_time=False)  # the caller's own line cannot count it: the server that forked it lives on
        (folder / str(rank)).write_bytes(pickle.dumps(result))
        if world > 1:
            dist.barrier()  # a rank that left early would break the others' collectives
    finally:
        if world > 1:
            dist.destroy_process_group()


def parallelize(model: nn.Module, *, is_sharded: bool) -> nn.Module:
    """Return the model for training on all ranks: by ``fully_shard``, as a whole, or in DistributedDataParallel."""
    if not is_sharded:
        return DistributedDataParallel(model)
    # They take a second to import, which only a sharded model should cost.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (comm.world_size(),)))
    return model


def preconditioner_of(setup: Setup, network: nn.Module) -> Preconditioner:
    """Return the preconditioner of a model that `parallelize` returned."""
    assert setup.method is not None
    # KAISA shares layers out by itself unless their gradients are sharded.
    by_owners = setup.placement == "owners" and not isinstance(setup.method, Distributed)
    return Preconditioner(network, setup.method, lr=SAFE_RATE, owners=True if by_owners else None)
