"""Processes forked from a server that has imported the libraries and has no threads.

A fork of the tests' own process would be as fast, but could wait forever for a lock that one of its threads holds.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.testing._internal.distributed.fake_pg import FakeStore

from workflow.bench.training import launcher

LIBRARIES = ["tests.support.preloaded", "workflow.bench.workloads.bert_pretraining"]

Leg = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""A number of ranks, what they call, and the arguments after ``rank`` and ``world``."""


def forks() -> ForkServerContext:
    """Return the context of processes that are forked from the server, of which the tests' process has one."""
    # The server sets what torch reads as it is imported, as the training command does on several ranks.
    launcher.prepare(launcher.LaunchedRank(size=2))
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


def run_ranks(number: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, number, *arguments)`` in as many processes, and wait for them.

    Raises:
        ProcessRaisedException: a rank has failed; its text has the traceback.
    """
    forks()
    method = "spawn" if torch.accelerator.is_available() else "forkserver"
    start_processes(work, (number, *arguments), nprocs=number, start_method=method)


def results_of(*legs: Leg) -> list[list[Any]]:
    """Return what each leg's function returns on its ranks, which meet on gloo; legs share processes, in turn."""
    with TemporaryDirectory() as folder:
        run_ranks(max(world for world, _, _ in legs), _run_legs, folder, legs)
        return [
            [torch.load(f"{folder}/{leg}.{rank}.pt", weights_only=False) for rank in range(world)]
            for leg, (world, _, _) in enumerate(legs)
        ]


def _run_legs(rank: int, _: int, folder: str, legs: tuple[Leg, ...]) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # fully_shard would choose GPUs, which gloo does not serve
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    for leg, (world, work, arguments) in enumerate(legs):
        if rank < world:
            # The ranks meet at a file: a free port could be taken by another process before they use it.
            dist.init_process_group("gloo", init_method=f"file://{folder}/{leg}", rank=rank, world_size=world)
            # The models have ended when the group does: one that held it last would wait for gloo's threads while it
            # holds Python's lock, which they may need.
            torch.save(work(rank, world, *arguments), Path(folder) / f"{leg}.{rank}.pt")
            dist.barrier()
            dist.destroy_process_group()


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    """Be a rank of a world whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
