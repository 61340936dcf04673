"""The exchange with owners, rank after rank in one process. Truth: slices of the whole matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from mkor_core.capture.blocks import Block
from mkor_core.capture.layer import Layer
from mkor_core.ranks import comm, owners
from mkor_core.ranks.owners import Owners, assigned

Cut = tuple[tuple[int, int], tuple[int, int]]
"""The rows and the columns of a block: the first one, and the one after the last."""


class Matrix(NamedTuple):
    """A layer's D, in blocks on ranks; some ranks may have the same block."""

    weight: Tensor
    bias: Tensor | None
    cuts: list[Cut] | None
    """The block of each rank; None: each has all of D."""
    owner: int


@st.composite
def matrices(draw: st.DrawFn, world: int) -> Matrix:
    """Draw a D whose rows or columns, or both, are divided; replicas of blocks come in any order."""
    d_out, d_w = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    weight = torch.arange(d_out * d_w, dtype=torch.float64).view(d_out, d_w) + 1
    bias = draw(st.sampled_from([None, -torch.arange(1.0, d_out + 1, dtype=torch.float64)]))
    owner = draw(st.integers(0, world - 1))
    if draw(st.booleans()):
        return Matrix(weight, bias, None, owner)
    row_parts = draw(st.sampled_from([parts for parts in range(1, world + 1) if world % parts == 0]))
    column_parts = draw(st.sampled_from([parts for parts in (1, 2) if world % (row_parts * parts) == 0]))
    rows, columns = (draw(edges(size, parts)) for size, parts in ((d_out, row_parts), (d_w, column_parts)))
    cuts = [(row, column) for row in rows for column in columns] * (world // (row_parts * column_parts))
    return Matrix(weight, bias, list(draw(st.permutations(cuts))), owner)


def edges(size: int, parts: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return a strategy for dividing a size into neighbouring parts, which may be empty."""
    cuts = st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)
    return cuts.map(lambda inner: list(pairwise([0, *sorted(inner), size])))


def parts_of(matrix: Matrix, rank: int) -> list[Tensor]:
    """Return copies of a rank's parts of the weight's gradient and of the bias's."""
    rows, columns = (slice(None), slice(None)) if matrix.cuts is None else (slice(*cut) for cut in matrix.cuts[rank])
    parts = [matrix.weight[rows, columns]] + ([] if matrix.bias is None else [matrix.bias[rows]])
    return [part.clone() for part in parts]


def layer_of(name: str, matrix: Matrix, rank: int, parts: list[Tensor]) -> Any:
    """Return what stands for a layer on a rank."""
    block = None
    if matrix.cuts is not None:
        block = Block(*matrix.cuts[rank], (), (), counts_bias=True, row_shards=1)
    whole = [part for part in (matrix.weight, matrix.bias) if part is not None]
    d_out, d_w = matrix.weight.shape
    return SimpleNamespace(name=name, block=block, d_out=d_out, d_w=d_w, parameters=whole, gradient_parts=lambda: parts)


class Stopped(Exception):
    """Ends a rank's work at a collective."""


class Ranks:
    """Ranks that work one after the other: first up to the collectives, to hear what each sends, then to the end."""

    def __init__(self, world: int, matrices: Sequence[Matrix]) -> None:
        self.world = world
        self.matrices = matrices
        self.rank = 0
        self.parts = [[parts_of(matrix, rank) for matrix in matrices] for rank in range(world)]
        self.layers = [
            [layer_of(str(index), matrix, rank, self.parts[rank][index]) for index, matrix in enumerate(matrices)]
            for rank in range(world)
        ]

    def run(self, work: Callable[[Owners, list[Any]], Any]) -> list[Any]:
        """Return what some work with a rank's owners and layers returns, for each rank."""
        sent: dict[int, Any] = {}
        sent_to_all: dict[tuple[int, int], list[Tensor]] = {}  # by rank and call
        calls = 0

        def all_to_all(parts: Any, expected: Any, like: Tensor, group: None) -> list[list[Tensor]]:
            if self.rank not in sent:
                sent[self.rank] = parts
                raise Stopped
            assert not sent[self.rank][self.rank]
            return [
                [part.reshape(shape) for part, shape in zip(sent[source][self.rank], shapes, strict=True)]
                for source, shapes in enumerate(expected)
            ]

        def broadcast_all(own: list[Tensor], targets: list[list[Tensor]], group: None, coding: None) -> None:
            nonlocal calls
            calls += 1
            sent_to_all[self.rank, calls] = [tensor.clone() for tensor in own]
            for source, of_rank in enumerate(targets):
                for target, tensor in zip(of_rank, sent_to_all.get((source, calls), of_rank), strict=True):
                    target.copy_(tensor)

        divided = [matrix.cuts for matrix in self.matrices if matrix.cuts is not None]
        everywhere = torch.tensor([[[*cuts[r][0], *cuts[r][1]] for cuts in divided] for r in range(self.world)])
        results: list[Any] = [None] * self.world
        with (
            patch.object(comm, "rank", lambda group: self.rank),
            patch.object(comm, "world_size", lambda group: self.world),
            patch.object(comm, "gather_numbers", lambda numbers, group: everywhere),
            patch.object(comm, "all_to_all", all_to_all),
            patch.object(comm, "broadcast_all", broadcast_all),
        ):
            for _ in range(2):
                for rank in range(self.world):
                    self.rank, calls = rank, 0
                    chosen = {str(index): matrix.owner for index, matrix in enumerate(self.matrices)}
                    try:
                        results[rank] = work(Owners(self.layers[rank], chosen, None), self.layers[rank])
                    except Stopped:
                        continue
        return results


worlds = st.sampled_from([1, 2, 3, 4]).flatmap(
    lambda world: st.tuples(st.just(world), st.lists(matrices(world), min_size=1, max_size=3))
)


@given(worlds)
def test_owners_get_whole_gradients_and_nobody_else_any(drawn):
    world, drawn_matrices = drawn
    ranks = Ranks(world, drawn_matrices)
    for rank, gathered in enumerate(ranks.run(lambda made, layers: made.gather(layers))):
        own = {str(index): m for index, m in enumerate(drawn_matrices) if m.owner == rank}
        assert gathered.keys() == own.keys()
        for name, matrix in own.items():
            whole = [part for part in (matrix.weight, matrix.bias) if part is not None]
            assert_close(gathered[name], whole, rtol=0, atol=0)


@given(worlds)
def test_every_rank_gets_its_part_of_the_updates(drawn):
    world, drawn_matrices = drawn
    ranks = Ranks(world, drawn_matrices)
    updates = {
        str(index): [10 * part for part in (matrix.weight, matrix.bias) if part is not None]
        for index, matrix in enumerate(drawn_matrices)
    }

    def work(made: Owners, layers: list[Any]) -> None:
        made.scatter(layers, {name: parts for name, parts in updates.items() if made.owns(name)})

    ranks.run(work)
    for rank in range(world):
        for index, matrix in enumerate(drawn_matrices):
            expected = [10 * part for part in parts_of(matrix, rank)]
            assert_close(ranks.parts[rank][index], expected, rtol=0, atol=0)


def test_the_costliest_layer_gets_an_owner_first(monkeypatch):
    """d_out d_in (d_out + d_in) is 462 for 1 x 21, 432 for 6 x 6, 48 for 2 x 4 and 2 for 1 x 1."""
    monkeypatch.setattr(comm, "world_size", lambda group: 2)
    shapes = {"small": (1, 1), "square": (6, 6), "long": (1, 21), "tall": (4, 2)}
    layers = [Layer(name, nn.Linear(d_in, d_out, bias=False)) for name, (d_out, d_in) in shapes.items()]
    assert assigned(layers, None) == {"long": 0, "square": 1, "tall": 1, "small": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_terms_of_a_rank_are_added_up_in_a_wide_dtype(dtype):
    layers = [Layer("0", nn.Linear(2, 2).to(dtype))]
    (total,) = Owners(layers, {"0": 0}, None).terms_of_all([torch.tensor(1.0), torch.tensor(2.5)])
    assert total == 3.5
    assert total.dtype == dtype
    assert Owners(layers, {"0": 0}, None).terms_of_all([])[0] == 0
    assert owners.Owners(layers, {"0": 3}, None).owner("0") == 3
