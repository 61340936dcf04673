"""docs/sharded.md: its formulas are counted on ranks, its numbers follow from them, and its example runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import start_processes
from torch.testing import assert_close

from docs.examples import sharded
from tests.support import sharded_page
from tests.support.formulas import value
from tests.support.sharded_page import SHAPES, WIDTHS, W
from tests.support.train_ranks import free_port
from workflow.bench.probes._costs import BERT_LARGE

PAGE = sharded_page.PAGE.read_text()
START_METHOD = "spawn" if torch.accelerator.is_available() else "fork"
COLLECTIVES = ("all_to_all", "broadcast")
"""Those that send gradients to owners and updates back."""


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
        start_processes(sharded_page.run, arguments, nprocs=world, start_method=START_METHOD)
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


def test_the_pages_python_shards_trains_saves_and_loads(counted):
    for result in counted[2]:
        assert_close(result["snippets"]["loaded"], result["snippets"]["saved"], rtol=0, atol=0)


def test_the_example_goes_on_bitwise_from_its_checkpoint(counted):
    for result in counted[2]:
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
