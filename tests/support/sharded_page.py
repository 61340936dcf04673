"""What the ranks of tests/docs/test_sharded_page.py run; spawned processes import this module by name."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # takes a second, which ranks that are forked afterwards need not
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from baselines import KAISA, Eva
from docs.examples import sharded
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.ranks import comm
from tests.support.sharded_ranks import LiveBytes, whole
from workflow.bench.support.config import ROOT

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
PAGE = ROOT / "docs" / "sharded.md"
NAMES: dict[str, Any] = {
    function.__name__: function
    for function in (fully_shard, get_state_dict, init_device_mesh, set_state_dict, MKOR, Preconditioner)
}
NAMES |= {"dcp": dcp, "torch": torch}
"""What the page's Python takes as imported."""
STEPS = 4
"""Of a small model of the example, which restores it halfway."""


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
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # ranks share what GPUs there are, and NCCL wants one for each
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world)
    results: dict[str, Any] = {row: count(row, world) for row in rows}
    results["live"] = live_bytes()
    if world == 2:
        results["snippets"] = run_snippets(Path(folder) / "snippets")
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


def run_snippets(folder: Path) -> dict[str, list[Tensor]]:
    """Shard, train, save and load a model as the page's Python does; return the weights with and without loading."""
    making, keeping = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    state, saving, loading = re.split(r"\n(?=dcp\.save|loaded =)", keeping)
    making = making.replace('"cuda", (8,)', '"cpu", (2,)')
    weights = {}
    for way in ("saved", "loaded"):
        torch.manual_seed(len(way))
        model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5))
        model.blocks = [model[0]]  # type: ignore[assignment]
        names = {**NAMES, "model": model, "folder": folder}
        exec(making + state, names)
        if way == "saved":
            steps(names, 0, 3)
            exec(saving, names)
        else:
            exec(loading, names)
        steps(names, 3, 6)
        weights[way] = [whole(parameter) for parameter in model.parameters()]
    return weights


def steps(names: Mapping[str, Any], first: int, last: int) -> None:
    """Train a model of the page's Python."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        names["optimizer"].zero_grad()
        names["model"](torch.randn(ROWS, 6, generator=generator)).square().mean().backward()
        names["optimizer"].step()


@mock.patch.multiple(sharded, WIDTH=16, LENGTH=16, BATCH=8)
def train_example(folder: Path) -> dict[str, Any]:
    """Train the example's GPT, made smaller, with and without restoring it halfway."""
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
    """Run the example as a script; return what it prints."""
    printed = io.StringIO()
    arguments = ["sharded", "--steps", "2", "--save", str(folder / "saved")]
    with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(printed):
        runpy.run_path(str(sharded.__file__), run_name="__main__")
    return printed.getvalue()
