"""Ranks that train through the bench: processes started as a launcher starts them, and what they run."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from baselines import available, limits
from tests.support.hyperparameters import options
from tests.support.rank_processes import forks
from tests.support.trained import SMALL, InFloat64, after, never, run_of, setting, slow_steps
from tests.support.trained import train as train_run
from workflow.bench import train
from workflow.bench.data.batches import Batch
from workflow.bench.plan.runs import Run
from workflow.bench.training import checkpoint, launcher, loop
from workflow.bench.training import ranks as ranks_module
from workflow.bench.training.build import build
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import ALONE, Ranks, joined
from workflow.bench.training.record import RunFolder
from workflow.bench.training.replicas import difference
from workflow.bench.workloads import create
from workflow.bench.workloads.autoencoder import Autoencoder
from workflow.bench.workloads.base import Workload

IMAGES = {"name": "resnet20", "dataset": "digits", "width": 4, "batch_size": 32}
"""A workload whose model has running means, which differ by rank after a step."""
STEPS, STOP = 8, 5
METHODS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{name: (name, options(name), {}) for name in available() if "data_parallel" not in limits(name)},
    "sgd": ("sgd", {"momentum": 0.9}, {"schedule": {"name": "linear", "warmup": 0.2}}),
    "mkor": ("mkor", {"inverse_update_period": 3, "base": "lamb", "lr": 0.01}, {}),
    "mkor, 2 to a rank": ("mkor", {"inverse_update_period": 3}, {"micro_batch_size": 16}),
    "mkor, half a rank's": ("mkor", {"inverse_update_period": 3}, {"micro_batch_size": 64}),
    "mkor_h": ("mkor_h", {"inverse_update_period": 2, "warmup_steps": 0}, {}),
    "kaisa": ("kaisa", {"factor_update_period": 2, "inverse_update_period": 3}, {}),
    "kaisa half": ("kaisa", {"inverse_update_period": 3, "grad_worker_fraction": 0.5, "compute_method": "inverse"}, {}),
    "hylo": ("hylo", {"update_period": 3, "sample_fraction": 0.4}, {}),
    "newton_muon": ("newton_muon", {"update_period": 3, "correction": "rescale"}, {}),
    "sketchy": ("sketchy", {"lr": 0.001, "rank": 4}, {}),
}
"""Every optimizer that trains on ranks: its hyperparameters, and keys of the run other than the defaults."""
ON_FOUR = ("sgd", "mkor", "mkor_h", "kaisa", "kaisa half")
"""Cases that four ranks train too; tests/mkor_core/test_distributed.py has them all."""
OF_RANKS = (
    "mkor, 2 to a rank",
    "hylo",
    "adafisher",
    "kld_wrm",
    "thermo_kfac",
    "b_kfac",
    "psgd_kron",
    "schedule_free_adamw",
)
"""Cases with states of their own on ranks, hooks of their own, random numbers, or other weights in evaluation."""
SLICED = [*((2, case) for case in (*ON_FOUR, *OF_RANKS)), *((4, case) for case in ON_FOUR)]
"""Ranks and cases that are trained in two slices too; tests/baselines/test_methods.py resumes all on one process."""


def run_of_case(folder: Path, case: str) -> Run:
    """Return the run of one of `METHODS`."""
    name, hyperparameters, shared = METHODS[case]
    return run_of(folder, name, {"steps": STEPS, "evaluate_every": 4, **shared}, **hyperparameters)


def image_run(folder: Path) -> Run:
    """Return a short run of `IMAGES`."""
    return run_of(folder, "sgd", {"workload": IMAGES, "steps": 3, "evaluate_every": 3})


def train_all(folder: Path, runs: Mapping[str, Run], ranks: Ranks = ALONE) -> None:
    """Train every run, and those of `SLICED` again with dropout, whole and in two slices; leave it in ``folder``."""
    workload = create(**SMALL)
    for case, run in runs.items():
        if ranks.size == 4 and case not in ON_FOUR:
            continue
        assert train_run(run, InFloat64(workload), RunFolder(folder / case / "plain"), ranks=ranks) == "finished"
        if (ranks.size, case) not in SLICED:
            continue
        dropping, sliced = InFloat64(workload, dropout=0.2), RunFolder(folder / case / "sliced")
        assert train_run(run, dropping, RunFolder(folder / case / "whole"), ranks=ranks) == "finished"
        # Only the last rank is asked.
        asked = after(STOP) if ranks.rank == ranks.size - 1 else never
        assert train_run(run, dropping, sliced, asked, ranks=ranks) == "interrupted"
        torch.manual_seed(STOP)  # what another process would draw
        assert train_run(run, dropping, sliced, ranks=ranks) == "finished"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_mpiexec(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the environment that an mpiexec with PMI gives its processes on one machine."""
    place = {"PMI_RANK": rank, "PMI_SIZE": size, "PMI_LOCAL_RANK": rank, "PMI_LOCAL_SIZE": size, "MASTER_PORT": port}
    return {key: str(value) for key, value in place.items()}


def start(size: int, what: Callable[..., Any], *arguments: Any, log: Path) -> list[ForkServerProcess]:
    """Start ranks that call ``what(*arguments)`` and exit with what it returns; their words go to ``<log>.<rank>``."""
    context = forks()
    port = free_port()
    started = []
    for rank in range(size):
        file = log.with_name(f"{log.name}.{rank}")
        process = context.Process(target=_be, args=(as_mpiexec(rank, size, port), file, what, arguments))
        process.start()
        started.append(process)
    return started


def _be(environment: Mapping[str, str], log: Path, what: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(what(*arguments))


def command(*arguments: str) -> int:
    """Be ``python -m workflow.bench.train``."""
    return train.main(list(arguments))


def slow_command(*arguments: str) -> int:
    """Be the command with slow steps."""
    Autoencoder.loss = slow_steps()  # type: ignore[method-assign]
    loop.MEETING_SECONDS = 0.1
    return command(*arguments)


class Slipping(InFloat64):
    """Changes a weight of rank 1 by one unit in the last place in its third step."""

    def __init__(self, workload: Workload, rank: int) -> None:
        super().__init__(workload)
        self._steps_left = 2 if rank == 1 else -1

    def loss(self, model: nn.Module, one: Batch) -> Tensor:
        if self._steps_left == 0:
            slip(next(model.parameters()))
        self._steps_left -= 1
        return super().loss(model, one)


def slip(tensor: Tensor) -> None:
    """Change the last number of a tensor by one unit in the last place."""
    last = tensor.detach().view(-1)[-1:]
    last.copy_(last.nextafter(last + 1))


def compare_replicas(folder: Path, runs: Mapping[str, Run], ranks: Ranks) -> None:
    """Train a run in which a rank slips; and compare parts of which one rank's slip, in ``<folder>/said.<rank>``."""
    heard = io.StringIO()
    slipping = Slipping(create(**SMALL), ranks.rank)
    train_run(runs["mkor"], slipping, RunFolder(folder / "slipped"), ranks=ranks, progress=Progress(1, heard))
    said: list[str | None] = [heard.getvalue()]
    whole: Any = InFloat64(create(**SMALL))
    for case in ("mkor", "kaisa"):
        parts = build(runs[case], whole, setting(ranks=ranks))
        assert parts.preconditioner is not None
        said.append(difference(parts, ranks))
        if ranks.rank == 1:
            slip(list(parts.preconditioner.state_dict()["layers"].values())[-1]["left"])
        said.append(difference(parts, ranks))
    (folder / f"said.{ranks.rank}").write_text(json.dumps(said))


def _refuse_to_read(path: Path, run: str) -> bytes:
    raise AssertionError((path, run))


def join_and_train(folder: Path, runs: Mapping[str, Run], images: Run) -> None:
    loop.MEETING_SECONDS = 0.0  # after every step
    ranks_module._BYTES_AT_ONCE = 1000  # so that checkpoints go in many parts
    with joined(launcher.launched_rank(), "cpu") as ranks:
        if not ranks.is_first:
            checkpoint.read = _refuse_to_read  # the first one reads and sends
        train_all(folder, runs, ranks)
        if ranks.size == 2:
            train_run(images, create(**IMAGES), RunFolder(folder / "images"), ranks=ranks)
            compare_replicas(folder, runs, ranks)
