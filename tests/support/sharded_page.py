"""What the ranks of tests/docs/test_sharded_page.py run; spawned processes import this module by name."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from baselines import KAISA, Eva
from docs.examples import sharded
from mkor_core import MKOR, Method, Preconditioner, comm
from tests.support.sharded_ranks import LiveBytes

W, ROWS = 4, 6
SHAPES = [(16, 25), (8, 17)]
"""The shapes ``(m, n)`` of D, bias included; four ranks divide the rows evenly."""
WIDTHS = (129,) * 8
"""The columns of D of each layer of a wider model, which have one row less."""
SETTINGS: dict[str, Mapping[str, Any]] = {
    "MKOR, window w": {"window": W},
    'MKOR, window w, `sides="input"`': {"window": W, "sides": "input"},
    "MKOR, window w, `rescale=False`": {"window": W, "rescale": False},
    "MKOR, window w, `gradient_norm`": {"window": W, "gradient_norm": 1.0},
    "MKOR, window w, Rowwise": {"window": W},
    "MKOR, dense": {},
    "MKOR, dense, HSDP with S shards": {},
    "MKOR, dense, `owners=True` under DDP": {},
}
"""The options of MKOR for rows of the page's table of bytes; the other rows are other methods."""
STEPS = 4
"""Of the example, which restores its models halfway."""


def method(row: str, world: int) -> Method:
    """Return the method of a row; its first step is an update and its second is not, if there are such."""
    if row in SETTINGS:
        return MKOR(inverse_update_period=2, **SETTINGS[row])
    if row.startswith("Eva"):
        return Eva(kl_clip=None) if "kl_clip" in row else Eva()
    return KAISA(factor_update_period=2, inverse_update_period=2, grad_worker_fraction=1 / world)


def count(row: str, world: int) -> dict[str, Any]:
    """Return the bytes that this rank sends in the first and in the second step, and those of its state."""
    torch.manual_seed(0)
    layers = [nn.Linear(n - 1, m) for m, n in SHAPES]
    model: Any = nn.Sequential(layers[0], nn.Tanh(), layers[1])
    if row.endswith("Rowwise"):
        mesh = init_device_mesh("cpu", (world,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif row.endswith("DDP"):
        model = DistributedDataParallel(model)
    elif "HSDP" in row:
        fully_shard(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))
    else:
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    owners = True if row.endswith("DDP") else None
    preconditioner = Preconditioner(model, method(row, world), owners=owners).attach(optimizer)
    sent = []
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(ROWS, SHAPES[0][1] - 1)).square().sum().backward()
        comm.reset_bytes_sent()
        optimizer.step()
        sent.append(Counter(comm.bytes_sent()))
    return {"sent": sent, "memory": preconditioner.memory_bytes()}


def run(rank: int, world: int, folder: str, rows: list[str], port: int) -> None:
    """Count every row, and run the example on two ranks; write the results to ``<folder>/<rank>.pt``."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()})  # as torchrun does
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world)
    results: dict[str, Any] = {row: count(row, world) for row in rows}
    results["live"] = live_bytes()
    if world == 2:
        results["example"] = train_example(Path(folder) / "example")
    dist.destroy_process_group()
    if world == 2:
        results["printed"] = run_example(Path(folder))
    torch.save(results, Path(folder) / f"{rank}.pt")


def live_bytes() -> int:
    """Return the most bytes of new tensors in a step with a window that updates no factor; see `WIDTHS`."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width - 1, width - 1) for width in WIDTHS))
    fully_shard(model)
    preconditioner = Preconditioner(model, MKOR(window=W, inverse_update_period=2))
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(ROWS, WIDTHS[0] - 1)).square().sum().backward()
        with LiveBytes() as live:
            preconditioner.step()
    return live.peak


def train_example(folder: Path) -> dict[str, Any]:
    """Train the example's GPT with and without restoring it halfway."""
    options, device = sharded.parsed(["--steps", str(STEPS)]), torch.device("cpu")
    training = sharded.Training(options, device, causal=True)
    losses = []
    for step in range(STEPS):
        loss = training.backward(step)
        training.optimizer.step()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    numbers = [sum(p.numel() for p in module.parameters()) for module in (training.model.blocks, training.model)]
    report = sharded.train("gpt", options, device, folder)
    return {"losses": losses, "numbers": numbers, "restored": report._asdict()}


def run_example(folder: Path) -> str:
    """Run the example as a module; return what it prints."""
    printed = io.StringIO()
    arguments = ["sharded", "--steps", str(STEPS), "--save", str(folder / "saved")]
    with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(printed):
        runpy.run_module("docs.examples.sharded", run_name="__main__")
    return printed.getvalue()
