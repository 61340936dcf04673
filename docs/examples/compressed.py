"""Compressed messages: their bytes, the error of the first update and the loss, for KAISA and HyLo on two ranks.

The autoencoder of the digits is trained in two gloo processes of this machine, plainly and with several codecs. From
the repository, in one to two minutes:

    python -m docs.examples.compressed
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from baselines import KAISA, HyLo
from mkor_core import Codec, Method, Preconditioner
from mkor_core.ranks import comm
from workflow.bench import workloads

RANKS, STEPS, LAST = 2, 200, 20
"""Ranks, steps in all, and the last ones whose losses are averaged."""
METHODS: dict[str, tuple[Method, float]] = {
    "KAISA": (KAISA(factor_update_period=5, inverse_update_period=5), 10.0),
    "KAISA, one worker a layer": (
        KAISA(factor_update_period=5, inverse_update_period=5, grad_worker_fraction=1 / RANKS),
        10.0,
    ),
    "HyLo": (HyLo(update_period=5), 1.0),
}
"""Methods with their learning rates."""
CODECS = {
    "none": None,
    "16 bits": Codec(bits=16),
    "8 bits": Codec(bits=8),
    "8 bits, below 2 % dropped": Codec(bits=8, drop=0.02),
    "4 bits": Codec(bits=4),
}
HEADINGS = ("method", "codec", "bytes of sums", "bytes of coded messages", "of the plain ones", "error", "loss")


class Training(NamedTuple):
    """What one rank sees of a training."""

    sums: int
    """Bytes of sums, which are never coded, in the first step."""
    coded: int
    """Bytes of gathered rows or broadcasts in the first step."""
    update: torch.Tensor
    """The first update."""
    losses: list[float]


class Result(NamedTuple):
    """What a training showed."""

    method: str
    codec: str
    sums: int
    """Of both ranks together, as in `Training`."""
    coded: int
    error: float
    """The difference of the first update from the one without a codec, as a share of its norm."""
    loss: float


def train(name: str, codec: Codec | None, steps: int) -> Training:
    """Train the autoencoder on this rank's half of every batch."""
    data = workloads.create("autoencoder")
    method, lr = METHODS[name]
    network = DistributedDataParallel(data.model(seed=0))
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    Preconditioner(network, method, codec=codec).attach(optimizer)
    first, losses = None, []
    for batch in islice(data.batches(seed=0), steps):
        own = {key: part.chunk(dist.get_world_size())[dist.get_rank()] for key, part in batch.items()}
        optimizer.zero_grad()
        loss = data.loss(network, own)
        loss.backward()
        comm.reset_bytes_sent()
        optimizer.step()
        losses.append(loss.item())
        if first is None:
            sent = comm.bytes_sent()
            update = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
            first = sent.get("all_reduce", 0), sent.get("all_gather", 0) + sent.get("broadcast", 0), update
    assert first is not None
    return Training(*first, losses)


def run(rank: int, folder: str, steps: int) -> None:
    """Train every method with every codec on one rank; write the trainings to ``<folder>/<rank>.pt``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS)
    trainings = {(name, code): tuple(train(name, codec, steps)) for name in METHODS for code, codec in CODECS.items()}
    torch.save(trainings, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def measure(steps: int = STEPS, start_method: str = "spawn") -> list[Result]:
    """Return the results of all methods and codecs, from processes that are started for it."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(run, (folder, steps), nprocs=RANKS, start_method=start_method)
        of_ranks = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    results = []
    for name, code in of_ranks[0]:
        ranks = [Training(*of_rank[name, code]) for of_rank in of_ranks]
        plain = Training(*of_ranks[0][name, "none"]).update
        error = ((ranks[0].update - plain).norm() / plain.norm()).item()
        loss = fmean(loss for rank in ranks for loss in rank.losses[-LAST:])
        results.append(Result(name, code, sum(r.sums for r in ranks), sum(r.coded for r in ranks), error, loss))
    return results


def table(results: list[Result]) -> list[str]:
    """Return the lines of a Markdown table."""
    plain = {result.method: result.coded for result in results if result.codec == "none"}
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    for method, codec, sums, coded, error, loss in results:
        share = f"{coded / plain[method]:.3f}"
        lines.append(f"| {method} | {codec} | {sums:,} | {coded:,} | {share} | {error:.1e} | {loss:.4f} |")
    return lines


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m docs.examples.compressed", description=__doc__).parse_args()
    print(*table(measure()), sep="\n")
