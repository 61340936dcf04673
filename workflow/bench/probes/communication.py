"""Bytes that a factor update sends, counted in the collectives and predicted, over layer widths and workers.

``python -m workflow.bench.probes.communication --tier embedded --out communication.csv`` writes one row for each
optimizer, width, number of workers, rank and collective. Each measures one step, with its refresh, of one layer
``[d, d]`` without bias on `ROWS` rows a rank, in gloo processes. The exchange of the gradients, which is the same for
every optimizer, is left out. Bytes do not depend on the device, so the probe runs on the CPU at every tier. Columns:

- optimizer: a second-order method, e.g. mkor, mkor_bfloat16 (half precision, as the paper assumes), kaisa (COMM-OPT),
  kaisa_mem_opt (one gradient worker), eva, hylo. With ``_sharded`` the layer is cut by ``fully_shard``: windowed MKOR
  and Eva precondition its rows where they are, others send them to the layer's owner, rank 0. With ``_owners_ddp``
  every rank has the gradient, and the owner sends the update.
- dimension d, workers, rank, collective.
- bytes: the payload that the rank handed to the collective, counted there (`mkor_core.ranks.comm.bytes_sent`); a
  broadcast counts at its source.
- predicted_bytes: the same, computed from the shapes that the method declares (`predicted`).
- paper_bytes: the paper's Table 1 for the whole update, in float32, the same for every rank and collective: MKOR 2d/2,
  KAISA 4d^2, Eva 2d, HyLo 2bd + b^2 numbers; empty for other methods.
- hardware, code_fingerprint, git_commit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

import torch

from mkor_core.method import FollowsLoss
from mkor_core.ranks import comm
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks, _sharding
from workflow.bench.probes._costs import FLOAT, CostedLayer
from workflow.bench.probes._counting import META
from workflow.bench.probes._ranks import parallelize, preconditioner_of
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes._state_bytes import captured

USES_GPU: Final = False
TIMING: Final = True
OPTIMIZERS: Final = ("mkor", "mkor_bfloat16", "kaisa", "kaisa_mem_opt", "eva", "hylo")
PLACED: Final = ("mkor_owners_ddp", "mkor_owners_sharded", "mkor_windowed_sharded", "eva_sharded")
"""Labels with suffixes (`Setup.of`), measured in addition."""
DIMENSIONS: Final = (64, 128, 256, 512, 1024)
WORKERS: Final = (2, 4)
ROWS: Final = 32
COLLECTIVES: Final = ("all_reduce", "all_gather", "all_to_all", "broadcast")


class Row(NamedTuple):
    """One rank's bytes in one collective."""

    optimizer: str
    dimension: int
    workers: int
    rank: int
    collective: str
    bytes: int
    predicted_bytes: int
    paper_bytes: int | None
    hardware: str


def predicted(setup: Setup, d: int, workers: int, rank: int) -> dict[str, int]:
    """Return the bytes that a rank hands to each collective in one update of a layer ``[d, d]``.

    The statistic has the shapes that the method's own code gives on the ``meta`` device. Ranks gather its rows, or they
    add it up with a count: second moments as upper triangles, and in half precision the count separately in float32. A
    method that follows the loss adds up the loss as well. The rest depends on where the method is placed (`_sharding`).
    """
    method, layer = setup.method, CostedLayer(d, d)
    assert method is not None  # see `rows`
    rows = torch.empty(ROWS, d, device=META)
    statistic = captured(method, rows, rows)
    sizes = {"all_reduce": FLOAT if isinstance(method, FollowsLoss) else 0}
    numbers = statistic.x.numel() + (0 if method.statistic.sides == "input" else statistic.g.numel())
    if method.statistic.gathers_rows:
        sizes["all_gather"] = FLOAT * numbers
    else:
        if method.statistic.kind == "moment":
            numbers = d * (d + 1) // 2 * (1 if method.statistic.sides == "input" else 2)  # upper triangles
        dtype = method.statistic.message_dtype
        number = FLOAT if dtype is None else dtype.itemsize
        sizes["all_reduce"] += FLOAT + number * numbers
    own = (layer,) if rank == 0 else ()
    sizes["all_reduce"] += _sharding.block_bytes(setup, (layer,)) + _sharding.clip_bytes(setup)
    sizes["broadcast"] = _sharding.refreshed_bytes(setup, own) + _sharding.update_bytes(setup, own)
    sizes["all_to_all"] = _sharding.exchanged_bytes(setup, (layer,), own, workers, rank)
    return sizes


def of_paper(label: str, d: int, workers: int) -> int | None:
    """Return the bytes that Table 1 gives, each number a float32; HyLo's b is the global batch."""
    b = ROWS * workers
    numbers = {"mkor_bfloat16": d, "mkor": d, "kaisa": 4 * d * d, "eva": 2 * d, "hylo": 2 * b * d + b * b}
    return FLOAT * numbers[label] if label in numbers else None


def sent(labels: Sequence[str], dimensions: Sequence[int]) -> dict[tuple[str, int], dict[str, int]]:
    """Return the bytes that a rank sends in one factor update, by label and dimension, then by collective.

    Runs on every rank.
    """
    counted = {}
    for label in labels:
        setup = Setup.of(label, period=1)  # Newton-Muon's first update ends a period, the others' begins one
        for d in dimensions:
            torch.manual_seed(0)  # the same weights on every rank
            layer = parallelize(torch.nn.Linear(d, d, bias=False), is_sharded=setup.is_sharded)
            preconditioner = preconditioner_of(setup, layer)
            x = torch.randn(ROWS, d, generator=torch.Generator().manual_seed(comm.rank()))
            layer(x).square().mean().backward()
            # From here on, so that the exchange of gradients, in the backward pass, does not count.
            comm.reset_bytes_sent()
            preconditioner.step()
            counted[label, d] = comm.bytes_sent()
            preconditioner.remove()
    return counted


def rows(labels: Sequence[str], dimensions: Sequence[int], workers: Iterable[int], hardware: str) -> Iterator[Row]:
    """Yield the rows of some optimizers, widths and numbers of workers; first-order optimizers send nothing."""
    setups = {label: setup for label in labels if (setup := Setup.of(label)).method is not None}
    for number in workers:
        by_rank = _ranks.run(number, sent, tuple(setups), dimensions)
        for label, d, rank in product(setups, dimensions, range(number)):
            counted, computed = by_rank[rank][label, d], predicted(setups[label], d, number, rank)
            for collective in COLLECTIVES:
                sizes = counted.get(collective, 0), computed.get(collective, 0)
                if any(sizes):
                    yield Row(label, d, number, rank, collective, *sizes, of_paper(label, d, number), hardware)


def measure(plan: Plan, labels: Sequence[str] = OPTIMIZERS) -> Iterator[Row]:
    """Yield all rows."""
    return rows([*labels, *PLACED], DIMENSIONS, WORKERS, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("communication", measure, uses_gpu=USES_GPU, optimizers=OPTIMIZERS))
