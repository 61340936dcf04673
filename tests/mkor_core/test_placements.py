"""Placements of parameters and activations on each of four ranks that don't communicate. Truth: whole tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing import assert_close

from mkor_core.capture.blocks import block_of, ranks_of_a_batch, shard_of
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import gradient_sum, input_vector
from mkor_core.ranks import comm
from mkor_core.ranks.comm import sum_over_groups
from tests.support.rank_processes import fake_world

WORLD = 4
RANKS = range(WORLD)
PLACEMENTS: list[tuple[Placement, Placement]] = [
    (Shard(0), Replicate()),
    (Replicate(), Shard(0)),
    (Replicate(), Shard(1)),
    (Shard(0), Shard(0)),
    (Shard(0), Shard(1)),
    (Shard(1), Shard(0)),
    (Replicate(), Replicate()),
]


@contextmanager
def place(rank: int, sizes: tuple[int, int] = (2, 2)) -> Iterator[DeviceMesh]:
    """Be one of four ranks, on a mesh; collectives leave values as they are."""
    with fake_world(rank, WORLD):
        yield init_device_mesh("cpu", sizes, mesh_dim_names=("data", "tensor"))


def distributed(tensor: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Any:
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("shape", [(5, 6), (1, 3), (8, 4)], ids=str)
@pytest.mark.parametrize("sizes", [(2, 2), (4, 1), (1, 4)], ids=str)
def test_a_block_is_the_part_of_d_that_a_rank_has(shape, placements, sizes):
    weight, bias = torch.arange(1.0, shape[0] * shape[1] + 1).view(shape), torch.arange(1.0, shape[0] + 1)
    of_bias = tuple(place if place == Shard(0) else Replicate() for place in placements)
    holders, counted = torch.zeros(shape), torch.zeros(shape[0])
    for rank in RANKS:
        with place(rank, sizes) as mesh:
            part, rows_of_bias = distributed(weight, mesh, placements), distributed(bias, mesh, of_bias)
            block = block_of("layer", part, rows_of_bias)
            assert block is not None
            rows, columns = slice(*block.rows), slice(*block.columns)
            assert_close(weight[rows, columns], part.to_local())
            assert_close(bias[rows], rows_of_bias.to_local())
            axes = [axis for axis, placement in enumerate(placements) if placement == Shard(0)]
            assert block.row_groups == tuple(mesh.get_group(axis) for axis in axes)
            assert block.row_shards == prod(sizes[axis] for axis in axes)
            axes = [axis for axis, placement in enumerate(placements) if placement == Shard(1)]
            assert block.column_groups == tuple(mesh.get_group(axis) for axis in axes)
            holders[rows, columns] += 1
            counted[rows] += block.counts_bias
    # Every entry has as many holders; so many of them are in one sum, in which each row's bias counts once.
    blocks = prod(size for size, placement in zip(sizes, placements, strict=True) if placement != Replicate())
    assert (holders == WORLD // blocks).all()
    assert (counted == WORLD // blocks).all()


def test_a_block_of_a_convolution_has_all_columns_of_its_rows():
    with place(3) as mesh:
        weight = distributed(torch.zeros(5, 2, 3, 2), mesh, (Shard(0), Shard(0)))
        block = block_of("layer", weight, None)
        assert block is not None
        assert (block.rows, block.columns) == ((4, 5), (0, 12))
    with place(0) as mesh:
        block = block_of("layer", distributed(torch.zeros(5, 2, 3, 2), mesh, (Shard(0), Replicate())), None)
        assert block is not None
        assert (block.rows, block.columns) == ((0, 3), (0, 12))


def test_a_bias_must_be_divided_at_the_rows_of_its_weight():
    with place(0) as mesh:
        weight = distributed(torch.zeros(4, 4), mesh, (Shard(0), Replicate()))
        for bias in (torch.zeros(4), distributed(torch.zeros(4), mesh, (Replicate(), Replicate()))):
            with pytest.raises(TypeError, match="The bias of layer 'layer' is not divided at the rows of its weight"):
                block_of("layer", weight, bias)
        whole = distributed(torch.zeros(4, 4), mesh, (Replicate(), Replicate()))
        assert block_of("layer", whole, torch.zeros(4)) is not None
        assert block_of("layer", torch.zeros(4, 4), torch.zeros(4)) is None


ROWS = [
    (Replicate(), Replicate()),
    (Replicate(), Shard(1)),
    (Shard(0), Replicate()),
    (Shard(0), Shard(1)),
    (Shard(1), Shard(1)),
    (Shard(-1), Shard(0)),
]
TOKENS = [(Replicate(), Shard(2)), (Shard(1), Shard(2)), (Shard(0), Shard(1))]
PARTS = [*product([(6, 5), (5, 7), (2, 1)], ROWS), *product([(3, 2, 5)], TOKENS)]
"""The shapes of rows, or of examples with tokens, and their placements."""


@pytest.mark.parametrize(("shape", "placements"), PARTS, ids=str)
def test_the_sums_of_the_parts_of_rows_are_those_of_all_rows(shape, placements):
    """All four ranks share the batch; some may have no rows or no columns."""
    rows, width = torch.arange(1.0, prod(shape) + 1).view(shape), shape[-1]
    layer = Layer("layer", nn.Linear(width, width))
    vector, gradient = torch.zeros(width + 1), torch.zeros(width)
    for rank in RANKS:
        with place(rank) as mesh:
            part = distributed(rows, mesh, placements)
            shard = shard_of(part).shared_by(WORLD)
            vector += input_vector(layer, part.to_local(), 1, shard=shard)
            gradient += gradient_sum(layer, part.to_local(), 1, shard=shard)
    total = rows.flatten(0, -2).sum(0)
    assert_close(vector, torch.cat([total, torch.tensor([float(prod(shape[:-1]))])]))
    assert_close(gradient, total)


def test_a_tensor_that_all_sharing_ranks_have_counts_as_one():
    rows = torch.arange(1.0, 7).view(2, 3)
    layer = Layer("layer", nn.Linear(3, 3))
    shard = shard_of(rows).shared_by(2)
    assert_close(2 * gradient_sum(layer, rows, 1, shard=shard), rows.sum(0))
    assert_close(2 * input_vector(layer, rows, 1, shard=shard), torch.cat([rows.sum(0), torch.tensor([2.0])]))


def test_values_that_are_to_be_added_up_count_for_each_rank():
    """Two ranks whose parts add up to the rows, twice."""
    rows = torch.arange(1.0, 7).view(2, 3)
    layer = Layer("layer", nn.Linear(3, 3))
    total = torch.zeros(3)
    for rank in RANKS:
        with place(rank) as mesh:
            local = rows / 4 if rank % 2 else rows * 3 / 4
            part = DTensor.from_local(local, mesh, [Replicate(), Partial()])
            total += gradient_sum(layer, local, 1, shard=shard_of(part).shared_by(WORLD))
    assert_close(total, rows.sum(0))


def test_tensor_parallel_ranks_share_a_batch():
    plan = {"0": ColwiseParallel()}

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    with place(0) as mesh:
        assert ranks_of_a_batch(network(), WORLD) == 1
        assert ranks_of_a_batch(parallelize_module(network(), mesh["tensor"], plan), WORLD) == 2
        mixed = parallelize_module(network(), init_device_mesh("cpu", (1,)), {"1": ColwiseParallel()})
        assert ranks_of_a_batch(parallelize_module(mixed, mesh["tensor"], plan), WORLD) == 2
        assert ranks_of_a_batch(fully_shard(network()), WORLD) == 1
        assert ranks_of_a_batch(fully_shard(network(), mesh=mesh), WORLD) == 1
        both = parallelize_module(network(), mesh["tensor"], plan)
        inner = cast("Any", both)[0]
        fully_shard(inner, mesh=mesh["data"])
        assert ranks_of_a_batch(both, WORLD) == 2
        assert ranks_of_a_batch(fully_shard(both, mesh=mesh["data"]), WORLD) == 2
        empty = fully_shard(nn.Sequential(both), mesh=mesh["data"])  # without parameters of its own
        assert ranks_of_a_batch(empty, WORLD) == 2
        assert ranks_of_a_batch(fully_shard(network(), mesh=mesh["data"]), 2) == 1


def test_one_flat_sum_for_each_group_in_the_order_of_their_first_tensor(monkeypatch):
    calls: list[tuple[object, int]] = []

    def sum_across_ranks(tensors: list[Tensor], group: Any) -> list[Tensor]:
        calls.append((group, len(tensors)))
        return [tensor * {"rows": 2, "columns": 3}[group] for tensor in tensors]

    monkeypatch.setattr(comm, "sum_across_ranks", sum_across_ranks)
    groups: list[Any] = [("rows",), (), ("rows", "columns"), ("columns",)]
    totals = sum_over_groups([(torch.tensor(1.0), group) for group in groups])
    assert [float(total) for total in totals] == [2, 1, 6, 3]
    assert calls == [("rows", 2), ("columns", 2)]
