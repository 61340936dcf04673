"""Sharded models. Truth: the full batch on one process with whole parameters, in float64, to 1e-12."""

from __future__ import annotations

from typing import Any

import pytest
from torch.testing import assert_close

from mkor_core.ranks.assignment import Grid, assign
from tests.support import sharded_ranks as ranks
from tests.support.rank_processes import Leg, results_of

KINDS = {2: ("ddp", "fsdp", "tensor", "rows"), 4: ("fsdp", "hsdp", "2d")}
RUNS = [
    (world, kind, case) for world, kinds in KINDS.items() for kind in kinds for case in ranks.cases_for(kind, world)
]
Results = dict[tuple[str, str], dict[str, Any]]
"""By kind of parallelism and case."""


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, bool], dict[str, Any]]:
    """Every case's result on one process, by case and whether widths are even."""
    keys = [(case, even) for case in ranks.CASES for even in (False, True)]
    return {(case, even): ranks.train(case, "alone", even=even) for case, even in keys}


@pytest.fixture(scope="module")
def legs() -> dict[str, list[Any]]:
    """All that ranks do in this file, by leg and rank: processes start once."""
    work: dict[str, Leg] = {
        "kinds on 4": (4, ranks.run_kinds, (KINDS[4],)),
        "kinds on 2": (2, ranks.run_kinds, (KINDS[2],)),
        "ways": (2, ranks.run_ways, ()),
    }
    return dict(zip(work, results_of(*work.values()), strict=True))


@pytest.fixture(scope="module")
def trained(legs: dict[str, list[Any]]) -> dict[int, list[Results]]:
    """The results by number of ranks and rank."""
    return {world: legs[f"kinds on {world}"] for world in KINDS}


@pytest.mark.parametrize(("world", "kind", "case"), RUNS)
def test_sharded_training_is_that_of_one_process(trained, alone, world, kind, case):
    """With uneven blocks, empty ones (one row on four ranks), and a layer without a gradient; at least one step."""
    truth = alone[case, kind in ("tensor", "2d")]
    result = trained[world][0][kind, case]
    assert_close(result["weights"], truth["weights"], rtol=1e-12, atol=1e-12)
    if case in ranks.LONG and kind == "fsdp":
        assert_close(result["end"], truth["end"], rtol=1e-12, atol=1e-12)
    for other in trained[world]:
        assert_close(other[kind, case]["weights"], result["weights"], rtol=0, atol=0)


LAYERS = {"convolution": (3, 7), "first": (7, 7), "second": (5, 8), "third": (7, 5), "last": (1, 8), "unused": (3, 4)}
"""d_out and d_in, the bias included."""
NUMBER = 8
"""Bytes of a float64."""


def updates(period: int) -> int:
    return -(-ranks.FEW // period)


def statistics(*, bias_gradients: bool) -> int:
    """Return the numbers that ranks add up in an update: a and a count; g without a bias; if asked, bias gradients."""
    numbers = sum(d_in + 1 for _, d_in in LAYERS.values()) + 1  # a Conv2d has a second count
    biases = sum(d_out for name, (d_out, _) in LAYERS.items() if name != "third")
    return numbers + LAYERS["third"][0] + biases * bias_gradients


def rows_of(d_out: int, rank: int, world: int) -> int:
    """Return the rows that `fully_shard` gives a rank."""
    chunk = -(-d_out // world)
    return max(0, min(chunk, d_out - rank * chunk))


def owners(world: int) -> dict[str, int]:
    costs = {name: float(d_out * d_in * (d_out + d_in)) for name, (d_out, d_in) in LAYERS.items()}
    order = ("convolution", "first", "second", "third", "last", "unused")
    return {name: place.owner for name, place in assign({n: costs[n] for n in order}, Grid(1, world)).items()}


@pytest.mark.parametrize("world", [2, 4])
def test_owners_get_blocks_and_send_blocks_back(trained, world):
    """A rank sends its block of every layer that another one owns, and the other ranks' blocks of V of its own."""
    for rank, result in enumerate(trained[world]):
        numbers = 0
        for name, owner in owners(world).items():
            d_out, d_in = LAYERS[name]
            own = rows_of(d_out, rank, world) * d_in
            numbers += d_out * d_in - own if owner == rank else own
        sent = result["fsdp", "dense"]["bytes"]
        assert sent["all_to_all"] == NUMBER * ranks.FEW * numbers
        assert sent["all_reduce"] == NUMBER * updates(2) * statistics(bias_gradients=True)


def test_owners_under_data_parallelism_send_whole_updates(trained):
    """Layers without a gradient on any rank take no part."""
    for rank, result in enumerate(trained[2]):
        own = [LAYERS[name] for name, owner in owners(2).items() if owner == rank and name != "unused"]
        numbers = sum(d_out * d_in for d_out, d_in in own)
        assert result["ddp", "window by owners"]["bytes"]["broadcast"] == NUMBER * ranks.FEW * numbers


def test_an_owner_alone_holds_a_state(trained, alone):
    for world, kind in ((2, "fsdp"), (4, "fsdp"), (4, "hsdp")):
        shares = [result[kind, "dense"]["memory"] for result in trained[world]]
        assert sum(shares) == alone["dense", False]["memory"]
        assert max(shares) < alone["dense", False]["memory"]


@pytest.fixture(scope="module")
def ways(legs: dict[str, list[Any]]) -> dict[str, Any]:
    results: dict[str, Any] = legs["ways"][0]
    return results


@pytest.mark.parametrize("case", ranks.IN_WAYS)
@pytest.mark.parametrize("way", ["synchronized", "at last", "twice", "checkpointing", "gathered"])
def test_other_ways_of_training_are_that_of_one_process(ways, alone, case, way):
    """Micro-batches of which all synchronize or only the last one does, a layer that runs forward twice, stacks.

    Steps that are given up after a micro-batch and begun twice.
    """
    assert_close(ways[f"{case}, {way}"], alone[case, False]["weights"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ranks.IN_WAYS)
def test_mixed_precision_trains_nearly_alike(ways, alone, case):
    """Layers compute in float32; gradients are reduced and kept in float64."""
    assert_close(ways[f"{case}, mixed"], alone[case, False]["weights"], rtol=1e-4, atol=1e-4)


def test_a_windowed_step_takes_less_memory_than_a_full_gradient(ways):
    """A rank's blocks are half of it; what is counted are the tensors that the step makes, all live at a time."""
    assert 0 < ways["live"]["peak"] < ways["live"]["gradients"]


def test_parameters_that_are_cut_by_columns_are_refused_by_name(ways):
    assert ways["by columns"] == "The bias of layer '' is not divided at the rows of its weight."


def test_a_state_that_is_gathered_before_the_first_step_leaves_each_owner_its_layers(ways):
    whole = {}
    for case in ("dense", "window"):
        preconditioner = ranks.Training(case, "alone", freezes=True).preconditioner
        preconditioner.state_dict()
        whole[case] = preconditioner.memory_bytes()
    assert 0 < ways["dense, resumed"]["memory"] < whole["dense"]
    assert ways["window, resumed"]["memory"] == whole["window"]


@pytest.mark.parametrize("how", ["sharded", "whole"])
@pytest.mark.parametrize("case", ranks.SAVED)
def test_a_resumed_run_goes_on_bitwise_on_as_many_ranks(ways, case, how):
    """On other numbers of ranks: test_state_on_ranks.py."""
    assert_close(ways[f"{case}, resumed"][how], ways[f"{case}, resumed"]["on"], rtol=0, atol=0)
