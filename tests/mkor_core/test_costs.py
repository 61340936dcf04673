"""docs/method_costs.md: every cell is evaluated as a formula and compared with counts on a Linear layer.

Memory is the bytes of the state's tensors. Bytes sent are those that one of two ranks hands to collectives; the process
group is fake, while test_distributed.py counts on real ranks. Work is counted operation by operation, as the numbers
multiplied, read or written; a cell is right if its ratio to the count hardly changes over a wide range of sizes. A
decomposition counts as one operation of cost d³, which is taken from LAPACK's documentation; so the test shows which
decompositions are called, and on which shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baselines import build
from mkor_core.ranks import comm
from tests.support.formulas import value
from tests.support.rank_processes import fake_world
from workflow.bench.support.config import ROOT

EXAMPLES, TOKENS = 8, 8
N = EXAMPLES * TOKENS
SHAPES = [(40, 48), (80, 96), (160, 192), (320, 384), (40, 384), (384, 40)]
"""Shapes ``(m, n)`` of the gradient matrix."""
MEMORY, STEP, UPDATE, SENT, TESTS = range(5)
"""Columns of the table."""
DECOMPOSITIONS = ("_linalg_eigh", "_linalg_svd", "linalg_inv_ex", "linalg_qr", "_linalg_solve_ex")


class Row(NamedTuple):
    """A row of the table: a method, and the options with which its costs are counted."""

    method: str
    options: dict[str, Any]
    letters: dict[str, int]
    """Values of the letters in the row's formulas, except m and n."""


KAISA = {"factor_update_period": 1, "inverse_update_period": 2}
ROWS: dict[str, list[Row]] = {
    "SGD with momentum": [Row("sgd", {}, {})],
    "AdamW": [Row("adamw", {}, {})],
    "LAMB": [Row("lamb", {}, {})],
    "KAISA, factors": [Row("kaisa", KAISA, {})],
    "KAISA, decompositions": [Row("kaisa", KAISA, {})],
    "Eva": [Row("eva", {}, {})],
    "MAC": [Row("mac", {}, {})],
    "SMAC": [Row("smac", {}, {})],
    "FOOF": [Row("foof", {}, {})],
    "HyLo KIS, r rows kept": [Row("hylo", {"sample_fraction": r / N}, {"r": r}) for r in (4, 32)],
    "HyLo KID, r rows kept": [Row("hylo", {"sample_fraction": r / N, "variant": "KID"}, {"r": r}) for r in (4, 32)],
    "MKOR": [Row("mkor", {}, {})],
    "MKOR, half precision": [Row("mkor", {"factor_dtype": dtype}, {}) for dtype in ("bfloat16", "float16")],
    "MKOR, window w": [Row("mkor", {"window": w}, {"w": w}) for w in (4, 64)],
    "MKOR, rank k": [Row("mkor", {"rank": k}, {"k": k}) for k in (2, 16)],
    "MKOR-H, until it switches": [Row("mkor_h", {}, {})],
}


def table() -> dict[str, list[str]]:
    section = (ROOT / "docs" / "method_costs.md").read_text()
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines[1:]}


class Work(TorchDispatchMode):
    """Counts, by phase, the numbers that operations multiply, read or write."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._now = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer, self._now = self._now, name
        yield
        self._now = outer

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in ("mm", "mv"):
            self.counts[self._now] += args[0].numel() * (args[1].shape[1] if name == "mm" else 1)
        elif name in DECOMPOSITIONS:
            rows, columns = args[0].shape
            self.counts[self._now] += rows * columns * min(rows, columns)
        elif not function.is_view:
            self.counts[self._now] += max(map(numbers, (*args, result)), default=0)
        return result


def numbers(tensors: Any) -> int:
    return sum(leaf.numel() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor))


class Counted(NamedTuple):
    """Costs of two steps: the first updates the preconditioner, the second only KAISA's factors."""

    memory: dict[str, int]
    steps: list[int]
    updates: list[int]
    sent: list[int]


def count(row: Row, m: int, n: int) -> Counted:
    torch.manual_seed(0)
    model, work = nn.Linear(n - 1, m), Work()
    optimizer, preconditioner = build(row.method, model, {"lr": 0.1, **row.options})
    if preconditioner is not None:
        preconditioner.phases = work.phase
    steps, updates, sent = [], [], []
    for _ in range(2):
        comm.reset_bytes_sent()
        work.counts.clear()
        with work:
            loss = model(torch.randn(EXAMPLES, TOKENS, n - 1)).square().mean()
            loss.backward()
            if preconditioner is not None:
                preconditioner.observe(loss)
            with work.phase("base optimizer"):
                optimizer.step()
        steps.append(work.counts["base optimizer" if preconditioner is None else "precondition"])
        updates.append(work.counts["capture"] + work.counts["factor"])
        sent.append(sum(comm.bytes_sent().values()))
        optimizer.zero_grad()
    if preconditioner is not None:
        return Counted(preconditioner.memory_by_tensor(), steps, updates, sent)
    state = tree_leaves([*optimizer.state.values()])
    return Counted(
        {"state": sum(tensor.nbytes for tensor in state if isinstance(tensor, Tensor))}, steps, updates, sent
    )


def share(name: str, counted: Counted) -> tuple[int, int, int, int]:
    """Return the counts for a row's first four columns; KAISA's are split between two rows."""
    factors = sum(counted.memory.get(key, 0) for key in ("left", "right"))
    if name == "KAISA, factors":
        return factors, 0, counted.updates[1], counted.sent[1]
    memory, update, sent = sum(counted.memory.values()), counted.updates[0], counted.sent[0]
    if name == "KAISA, decompositions":
        return memory - factors, counted.steps[0], update - counted.updates[1], sent - counted.sent[1]
    return memory, counted.steps[0], update, sent


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[None]:
    """A process group of two ranks whose collectives do nothing, except that gathered rows are noise."""

    def gather(parts: list[Tensor], local: Tensor, group: Any = None) -> None:
        for part in parts:
            part.copy_(torch.randn_like(local) if local.is_floating_point() else local)

    with fake_world(0, 2), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather", gather)
        yield


def test_every_row_is_checked_by_tests_that_exist():
    assert list(table()) == list(ROWS)
    for cells in table().values():
        files = re.findall(r"`(test_\w+\.py)`", cells[TESTS])
        assert files
        assert all(any((ROOT / "tests").rglob(file)) for file in files)


@pytest.mark.parametrize("name", ROWS)
def test_memory_and_work_are_as_the_table_says(name):
    """The terms of a cost have different constants, so the ratio may change, but less than by a wrong power of a size.

    Sides, window, rank and kept rows grow by a factor of 8 or more.
    """
    ratios: dict[int, list[float]] = {STEP: [], UPDATE: []}
    for row, (m, n) in product(ROWS[name], SHAPES):
        counted = share(name, count(row, m, n))
        expected = [value(cell, m=m, n=n, N=N, **row.letters) for cell in table()[name][:TESTS]]
        assert counted[MEMORY] == expected[MEMORY]
        for column, column_ratios in ratios.items():
            if expected[column] == 0:
                assert counted[column] == 0
            else:
                column_ratios.append(counted[column] / expected[column])
    assert max(ratios[STEP], default=1) < 2 * min(ratios[STEP], default=1)
    assert max(ratios[UPDATE], default=1) < 5 * min(ratios[UPDATE], default=1)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.usefixtures("two_ranks")
def test_bytes_sent_are_as_the_table_says(name):
    for row, (m, n) in product(ROWS[name], SHAPES[:2]):
        expected = value(table()[name][SENT], m=m, n=n, N=N, **row.letters)
        assert share(name, count(row, m, n))[SENT] == expected
