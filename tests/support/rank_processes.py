"""Processes forked from a server that has imported the libraries and has no threads.

A fork of the tests' own process would be as fast, but could wait forever for a lock that one of its threads holds.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from workflow.bench.training import launcher

LIBRARIES = ["tests.support.preloaded", "workflow.bench.workloads.bert_pretraining"]


def forks() -> ForkServerContext:
    """Return the context of processes that are forked from the server, of which the tests' process has one."""
    # The server sets what torch reads as it is imported, as the training command does on several ranks.
    launcher.prepare(launcher.Place(size=2))
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
