"""Fresh processes for a measurement: gloo ranks on one machine, or one process whose memory is all its own."""

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


def run(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what ``function(*arguments)`` gives in each of ``world`` fresh processes, by rank.

    More than one process form gloo's default group. All arguments and results must pickle. Processes compute with the
    caller's number of threads.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a process failed; the others are stopped.
    """
    # Forked from a server that has imported, once, what this process has of the bench, and what PyTorch's optimizers
    # import when they first step: that costs each process seconds otherwise, and counts as memory of what it measures.
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
    torch.set_num_threads(threads)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        result = function(*arguments)
        (folder / str(rank)).write_bytes(pickle.dumps(result))
        if world > 1:
            dist.barrier()
    finally:
        if world > 1:
            dist.destroy_process_group()
