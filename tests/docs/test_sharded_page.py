"""docs/sharded.md: its formulas are counted on ranks, its numbers follow from them, and its example runs."""

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

import pytest
import torch
import torch._dynamo  # takes a second, which ranks that are forked afterwards need not
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from baselines import KAISA, Eva
from docs.examples import sharded
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.ranks import comm
from tests.support.formulas import value
from tests.support.sharded_ranks import LiveBytes, whole
from tests.support.train_ranks import free_port
from workflow.bench.probes._costs import BERT_LARGE
from workflow.bench.support.config import ROOT

PAGE = (ROOT / "docs" / "sharded.md").read_text()
START_METHOD = "spawn" if torch.accelerator.is_available() else "fork"
COLLECTIVES = ("all_to_all", "broadcast")
"""Those that send gradients to owners and updates back."""
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
        printed, arguments = io.StringIO(), ["sharded", "--steps", "2", "--save", f"{folder}/saved"]
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(printed):
            runpy.run_path(str(sharded.__file__), run_name="__main__")
        results["printed"] = printed.getvalue()
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
    making, keeping = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
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
            train(names, 0, 3)
            exec(saving, names)
        else:
            exec(loading, names)
        train(names, 3, 6)
        weights[way] = [whole(parameter) for parameter in model.parameters()]
    return weights


def train(names: Mapping[str, Any], first: int, last: int) -> None:
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


def table(heading: str) -> dict[str, list[str]]:
    """Return the cells of the table with a heading, by the first one of their row."""
    lines = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for name, *cells in rows}


BYTES = table("method | all-reduce, an update")
MEMORY = table("| with a window")


def rows_for(world: int) -> list[str]:
    """Return the rows of the table that a number of ranks can count."""
    only = {"Rowwise": 2, "HSDP with S shards": 4}
    return [row for row in BYTES if all(not row.endswith(end) or world == ranks for end, ranks in only.items())]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """The results by number of ranks and rank."""
    results = {}
    for world in (2, 4):
        folder = tmp_path_factory.mktemp(f"page{world}")
        arguments = (world, str(folder), rows_for(world), free_port())
        start_processes(run, arguments, nprocs=world, start_method=START_METHOD)
        results[world] = [torch.load(folder / f"{rank}.pt") for rank in range(world)]
    return results


def formulas(row: str, world: int) -> list[float]:
    """Return what a row says of all layers: the bytes of an update, of a step, and to and from the owners."""
    # Of the two layers under tensor parallelism only the second is divided by columns.
    of_layers = [row.replace(", Rowwise", ""), row]
    return [
        sum(
            value(BYTES[of_layer][column], m=m, n=n, w=W, R=world, S=2)
            for of_layer, (m, n) in zip(of_layers, SHAPES, strict=True)
        )
        for column in range(3)
    ]


@pytest.mark.parametrize(("world", "row"), [(world, row) for world in (2, 4) for row in rows_for(world)])
def test_the_pages_bytes_are_those_that_ranks_send(counted, world, row):
    """Of a step that updates, and of one that does not; those to and from owners of all ranks together."""
    update, step, owners = formulas(row, world)
    if row.startswith("KAISA"):
        step += 4  # the factor of kl_clip
    both = (update + step, update + step if row == "Eva" else step)
    results = [result[row]["sent"] for result in counted[world]]
    for sent in results:
        assert tuple(of_step["all_reduce"] for of_step in sent) == both
    for sent in zip(*results, strict=True):
        assert sum(of_rank[name] for of_rank in sent for name in COLLECTIVES) == pytest.approx(world * owners, rel=1e-9)


@pytest.mark.parametrize("world", [2, 4])
def test_the_pages_memory_is_what_ranks_hold(counted, world):
    """Of a window on every rank, of dense factors on all ranks together; and the tensors of a step."""
    window, dense = (
        sum(value(first_formula(cell), m=m, n=n, w=W) for m, n in SHAPES) for cell in MEMORY["state, a layer"]
    )
    assert [result["MKOR, window w"]["memory"] for result in counted[world]] == [window] * world
    assert sum(result["MKOR, dense"]["memory"] for result in counted[world]) == dense
    formula = first_formula(MEMORY["tensors of a step"][0])
    live = sum(value(formula, m=width - 1, n=width, w=W, R=world) for width in WIDTHS)
    assert [result["live"] for result in counted[world]] == [live] * world


def test_the_pages_bytes_of_fsdp_are_those_of_the_example(counted):
    """Two micro-batches, in float32."""
    (formula,) = re.findall(r"tensors of `([^`]+)` bytes", PAGE)
    for result in counted[2]:
        blocks, everything = result["example"]["numbers"]
        letters = {"A": sharded.MICRO_BATCHES, "B": blocks, "O": everything - blocks, "k": 4, "g": 4}
        assert result["example"]["restored"]["traffic"] == value(formula, **letters)


def test_the_pages_python_and_the_example_go_on_bitwise_from_their_checkpoints(counted):
    for result in counted[2]:
        assert_close(result["snippets"]["loaded"], result["snippets"]["saved"], rtol=0, atol=0)
        assert result["example"]["restored"]["losses"] == result["example"]["losses"]


def test_the_example_trains_both_models_and_prints_losses_bytes_and_memory(counted):
    first, second = (result["printed"] for result in counted[2])
    assert second == ""
    losses = [float(loss) for loss in re.findall(r"step +\d+: loss ([\d.]+)", first)]
    assert len(losses) == 4
    assert losses[1] < losses[0]
    assert losses[3] < losses[2]
    lines = [re.split(r"  +", line) for line in first.splitlines()]
    assert ["", "gpt", "bert"] in lines
    cells = {name: numbers for name, *numbers in lines if len(numbers) == 2}
    assert len(cells) == 9
    assert cells["bytes on a rank, parameters"] == cells["bytes on a rank, gradients"]


def test_the_example_explains_itself(capsys, monkeypatch):
    with pytest.raises(SystemExit) as left:
        sharded.main(["--help"])
    assert left.value.code == 0
    assert "--checkpoint-activations" in capsys.readouterr().out
    monkeypatch.delenv("RANK", raising=False)
    refused = {
        (): "start it with torchrun",
        ("--steps", "1"): "--steps 1: must be at least 2",
        ("--lr", "0"): "--lr 0.0: must be above 0",
    }
    for arguments, message in refused.items():
        with pytest.raises(SystemExit) as left:
            sharded.main(arguments)
        assert left.value.code == 2
        assert message in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(SystemExit):
        sharded.main([])
    assert "--nproc-per-node 5: ranks must divide a micro-batch of 12 sequences" in capsys.readouterr().err


def test_the_pages_numbers_of_large_models_follow_from_its_formulas():
    assert PAGE.split("<!-- models -->\n")[1].split("\n<!-- end of models -->")[0].splitlines() == large_models()


RANKS = 64
SEVEN_BILLION = [*[(4096, 4096)] * 4, (11008, 4096), (11008, 4096), (4096, 11008)] * 32
LARGE = {
    f"BERT-Large, {len(BERT_LARGE)} layers": [(layer.m, layer.n + layer.has_bias) for layer in BERT_LARGE],
    f"7B, {len(SEVEN_BILLION)} layers": SEVEN_BILLION,
}
"""The shapes ``(m, n)`` of D."""


def large_models() -> list[str]:
    """Return the table of large models."""
    state, of_a_step = MEMORY["state, a layer"], MEMORY["tensors of a step"]
    (fsdp,) = re.findall(r"tensors of `([^`]+)` bytes", PAGE)
    fsdp = fsdp.replace("A", "").replace("O", "0").replace("B", "mn").replace("k", "2").replace("g", "4")
    rows = {
        "FSDP, a step": (fsdp, 0),
        "Eva, a step": (f"{BYTES['Eva'][0]} + {BYTES['Eva'][1]}", 0),
        "window 16, an update": (BYTES["MKOR, window w"][0], 16),
        "window 16, a step": (BYTES["MKOR, window w"][1], 16),
        "window 4, a step": (BYTES["MKOR, window w"][1], 4),
        "dense, a step": (BYTES["MKOR, dense"][2], 0),
        "state, window 16": (first_formula(state[0]), 16),
        "state, window 4": (first_formula(state[0]), 4),
        "tensors of a step, window 16": (first_formula(of_a_step[0]), 16),
        "state, dense, average of ranks": (f"({first_formula(state[1])})/R", 0),
    }
    lines = [f"| MB on a rank, R = {RANKS} | {' | '.join(LARGE)} |", "|---|---|---|"]
    for name, (formula, window) in rows.items():
        sizes = [sum(value(formula, m=m, n=n, w=window, R=RANKS) for m, n in shapes) / 1e6 for shapes in LARGE.values()]
        lines.append(f"| {name} | " + " | ".join(f"{size:,.1f}" for size in sizes) + " |")
    return lines


def first_formula(cell: str) -> str:
    """Return the formula in a cell with words."""
    (formula, *_) = re.findall(r"4(?:[mnwR²()+/ ]|\d)+", cell)
    return str(formula).strip()
