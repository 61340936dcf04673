"""The floors of docs/performance.md: each formula against what its operations do, counted on meta tensors."""

from __future__ import annotations

import math
from collections import Counter

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import floors
from benchmarks.counting import bert_large
from tests.support.formulas import value
from workflow.bench.probes import _costs as costs
from workflow.bench.probes._costs import BERT_LARGE, CostedLayer, LayerCost, MachineModel
from workflow.bench.probes._counting import META, Counting
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.support.pages import fill

M, N, W, ROWS = 48, 32, 4, 64
LAYER = CostedLayer(M, N)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, device=META, dtype=dtype)


def dense() -> None:
    left, grad, right, product = empty(M, M), empty(M, N), empty(N, N), empty(M, N)
    torch.mm(left, grad, out=product)
    torch.mm(product, right, out=grad)


def windowed() -> None:
    left, right, grad = empty(M, W), empty(N, W), empty(M, N)
    inner_left, inner_right = empty(M, 2 * W), empty(N, 2 * W)
    torch.mm(left.T, grad, out=empty(W, N))
    torch.mm(grad, right, out=empty(M, W))
    torch.addmm(grad, inner_left, inner_right.T, alpha=-1, out=grad)


def kaisa() -> None:
    left, right, grad, values = empty(M, M), empty(N, N), empty(M, N), empty(M, N)
    rotated = left.T @ grad @ right
    left @ rotated.div_(values) @ right.T


def dense_update() -> None:
    factor, vector, product = empty(N, N), empty(N), empty(N)
    torch.mv(factor, vector, out=product)
    factor.addr_(product, product)


def windowed_update() -> None:
    columns, vector, inner = empty(N, W), empty(N), empty(W)
    torch.mv(columns.T, vector, out=inner)
    torch.addmv(vector, columns, inner, alpha=-1, out=empty(N))


def eva() -> None:
    grad, left, right = empty(M, N), empty(M), empty(N)
    torch.mv(grad, right, out=empty(M))
    grad.addr_(left, right)


def means() -> None:
    empty(ROWS, N, dtype=torch.bfloat16).sum(0, dtype=torch.float32)


D_READ_AGAIN = 4 * M * N
"""The products with U_L and U_R are two operations here, so D is read once more than it must be."""
VALUES_READ = 4 * M * N
"""KAISA's quotients divide by m + n eigenvalues, here by a matrix."""
BYTES = {
    "precondition_dense": (dense, costs.precondition_dense(LAYER), 0),
    "precondition_windowed": (windowed, costs.precondition_windowed(LAYER, W), D_READ_AGAIN),
    "precondition_kaisa": (kaisa, costs.precondition_kaisa(LAYER), VALUES_READ),
    "precondition_eva": (eva, costs.precondition_eva(LAYER), 0),
    "factor_update": (dense_update, costs.factor_update(N), 0),
    "windowed_update": (windowed_update, costs.windowed_update(N, W), 0),
    "capture_means": (means, costs.capture_means(LAYER, ROWS), 0),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_those_of_the_operations(name):
    work, cost, more = BYTES[name]
    with Counting() as counts:
        work()
    assert counts.bytes == cost.bytes + more


TABLE = {
    "SGD with momentum": costs.sgd(LAYER),
    "AdamW": costs.adamw(LAYER),
    "capture of a mean input row": costs.capture_means(LAYER, ROWS),
    "capture of moments": costs.capture_moments(LAYER, ROWS),
    "update of a dense factor": costs.factor_update(N),
    "update of a windowed factor": costs.windowed_update(N, W),
    "preconditioning, dense": costs.precondition_dense(LAYER),
    "preconditioning, windows": costs.precondition_windowed(LAYER, W),
    "preconditioning, Eva": costs.precondition_eva(LAYER),
    "preconditioning, KAISA": costs.precondition_kaisa(LAYER),
    "KAISA's decompositions": costs.decompose_kaisa(LAYER),
}


def test_the_page_has_the_same_formulas():
    section = (ROOT / "docs" / "performance.md").read_text().split("## Floors")[1].split("\n\n`workflow")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    letters = {"m": M, "n": N, "N": ROWS, "d": N, "w": W}
    assert len(lines) == len(TABLE)
    for cells, (name, cost) in zip(lines, TABLE.items(), strict=True):
        assert cells[0].strip().startswith(name)
        assert (value(cells[1], **letters), value(cells[2], **letters)) == (cost.bytes, cost.operations), name


def moments() -> None:
    x, g = empty(ROWS, N), empty(ROWS, M)
    x.T @ x
    g.T @ g


@pytest.mark.parametrize(
    ("work", "cost", "elementwise"),
    [
        (dense, costs.precondition_dense(LAYER), 0),
        (windowed, costs.precondition_windowed(LAYER, W), 0),
        (kaisa, costs.precondition_kaisa(LAYER), M * N),
        (moments, costs.capture_moments(LAYER, ROWS), 0),
    ],
)
def test_operations_are_those_of_the_products(work, cost, elementwise):
    with FlopCounterMode(display=False) as counter:
        work()
    assert counter.get_total_flops() == cost.operations - elementwise


def test_layers_are_those_of_bert_large():
    layers = [module for module in bert_large().modules() if isinstance(module, nn.Linear)]
    assert all(layer.bias is not None for layer in layers)
    shapes = Counter(tuple(layer.weight.shape) for layer in layers)
    assert shapes == {(1024, 1024): 98, (4096, 1024): 24, (1024, 4096): 24}
    assert shapes == Counter((layer.m, layer.n) for layer in BERT_LARGE)
    # Query, key and value of 24 encoder layers share their inputs.
    assert sum(layer.shares_input for layer in BERT_LARGE) == 48


def test_a_floor_is_the_larger_of_both_times():
    machine = MachineModel("test", bandwidth=1e9, rate=1e12)
    assert LayerCost(operations=1e12, bytes=1e6).milliseconds(machine) == pytest.approx(1000.0)
    assert LayerCost(operations=1e6, bytes=1e9).milliseconds(machine) == pytest.approx(1000.0)


def test_steps_are_set_beside_their_floors():
    """Truth: dense MKOR by hand from the formulas that the tests above count."""
    rows = [
        {"block": "bert", "width": 1024, "period": 10, "optimizer": "mkor", "ms": 100.0},
        {"block": "bert", "width": 1024, "period": 10, "optimizer": "eva", "ms": math.nan},
        {"block": "factor", "width": 1024, "period": 1, "optimizer": "mkor_factor_update", "ms": 1.0},
    ]
    machine = MachineModel("test", bandwidth=1e10, rate=1e12)
    lines = list(floors.reached_table(pd.DataFrame(rows), machine))
    assert lines[2].startswith("| Eva |")
    assert "not timed" in lines[2]
    products = 2 * (4 * 1024**2 * 2048 + 2 * 4 * 1024**2 * 5120) / 1e9
    updates = 4 * 3 * (10 * 1024**2 + 2 * 4096**2) / 1e8  # a tenth of all updates
    base = 5 * 4 * 12 * 1024**2 / 1e7
    floor, reached, ratio = (float(cell) for cell in lines[3].split("|")[2:5])
    assert floor == pytest.approx(products + updates + base, abs=0.02)
    assert (reached, ratio) == (100.0, round(100 / floor, 1))
    assert lines[4].startswith("| update of one dense factor, d = 1024 | 1.26 | 1.00 | 0.8 |")


@pytest.mark.parametrize("name", ["counts", "floors", "reached"])
def test_tables_are_written_into_the_page(tmp_path, name):
    page = tmp_path / "page.md"
    before = (ROOT / "docs" / "performance.md").read_text()
    for _ in range(2):
        page.write_text(before)
        fill(page, name, ["| a |", "|---|"])
        before = page.read_text()
        assert f"<!-- {name} -->\n| a |\n|---|\n<!-- end of {name} -->" in before
    assert before.startswith("# What a step costs")
    assert "## What was tried" in before
    page.write_text("nothing")
    with pytest.raises(ConfigError, match=f"must contain '<!-- {name} -->'"):
        fill(page, name, [])


def test_this_machine_has_peaks():
    machine = floors.this_machine(torch.device("cpu"), numbers=2**12, width=32)
    assert machine.bandwidth > 0
    assert machine.rate > 0
