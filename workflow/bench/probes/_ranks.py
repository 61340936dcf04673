"""Fresh processes for a measurement: gloo ranks on one machine, or one process whose memory is measured."""

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
from torch.multiprocessing.spawn import start_processes

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
        start_processes(
            _work,
            (world, Path(folder), torch.get_num_threads(), function, arguments),
            nprocs=world,
            start_method="forkserver",
        )
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _work(
    rank: int, world: int, folder: Path, threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Run ``function`` as one rank, and leave its pickled result in ``folder``."""
    torch.set_num_threads(threads)
    if world > 1:
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
