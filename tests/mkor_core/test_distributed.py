"""Truth: the full batch on one process. Two and four gloo ranks under DDP, with a layer that later ranks never use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from baselines import KAISA, available, limits
from mkor_core import MKOR
from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import LayerShape
from mkor_core.ranks import comm, kaisa
from mkor_core.ranks.assignment import Assignment, Grid, assign, make_grid
from tests.support import ranks
from tests.support.rank_processes import results_of

UNSUPPORTED = {name: limits(name)["data_parallel"] for name in available() if "data_parallel" in limits(name)}
D_OUT_IN = {"convolution": (3, 10), "hidden": (6, 49), "branch": (6, 7), "head": (2, 7)}


@pytest.fixture(scope="module")
def legs() -> list[list[dict[str, Any]]]:
    """All that ranks do in this file, by leg and rank: processes start once."""
    return results_of((2, ranks.run_all, ()), (4, ranks.run_all, ()), (2, ranks.communicate, ()))


@pytest.fixture(scope="module")
def trained(legs: list[list[dict[str, Any]]]) -> dict[int, list[dict[str, Any]]]:
    """Every case's results by number of ranks and rank."""
    alone = {case: ranks.train(name, options) for case, (name, options) in ranks.CASES.items()}
    return {1: [alone], 2: legs[0], 4: legs[1]}


@pytest.mark.parametrize(
    ("world", "case"),
    [
        *[(world, case) for world in (2, 4) for case in ranks.cases_for(world)],
        *[pytest.param(2, n, marks=pytest.mark.skip(f"{n}: {reason}")) for n, reason in UNSUPPORTED.items()],
    ],
)
def test_ranks_train_like_one_process(trained, world, case):
    alone = trained[1][0][case]
    for result in (trained[world][rank][case] for rank in range(world)):
        assert_close(result["weights"], alone["weights"], rtol=1e-9, atol=1e-12)
        assert result.get("switch_step") == alone.get("switch_step")


@pytest.mark.parametrize("way", ["micro-batches", "begun twice"])
@pytest.mark.parametrize("case", ranks.IN_MICRO_BATCHES)
def test_micro_batches_on_ranks_train_like_the_full_batch_on_one_process(trained, case, way):
    """Two ranks, two micro-batches each, the first under no_sync; statistics are exchanged once per step.

    Steps may be given up after a first micro-batch and begun anew.
    """
    alone = trained[1][0][case]
    for result in trained[2]:
        accumulated = result[f"{case}, {way}"]
        assert_close(accumulated["weights"], alone["weights"], rtol=1e-9, atol=1e-12)
        assert accumulated["bytes"] == result[case]["bytes"]


@pytest.mark.parametrize("case", ranks.IN_LOSSES)
def test_two_losses_in_turn_on_ranks_train_like_their_sum_on_one_process(trained, case):
    """Each backward pass exchanges its gradients, which writes to those of the pass before."""
    for result in trained[2]:
        weights = result[f"{case}, losses"]["weights"]
        assert_close(weights, trained[1][0][case]["weights"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ranks.IN_PAIRS)
def test_a_process_group_of_some_ranks_trains_like_one_process(trained, case):
    """Four ranks in two pairs, each pair on the full batch."""
    for result in trained[4]:
        assert_close(result[f"{case}, pair"]["weights"], trained[1][0][case]["weights"], rtol=1e-9, atol=1e-12)


def test_every_method_is_distributed_or_gives_a_reason():
    assert {name for name, _ in ranks.CASES.values()} | set(UNSUPPORTED) == set(available())


@pytest.mark.parametrize("case", ["kaisa half", "kaisa mem"])
def test_a_consolidated_state_is_whole_on_every_rank(trained, case):
    alone = trained[1][0][case]["state"]
    for result in trained[4]:
        state = result[case]["state"]
        assert {name: set(tensors) for name, tensors in state.items()} == {
            name: set(tensors) for name, tensors in alone.items()
        }
        if case == "kaisa half":  # inverses are unique, eigenvectors only up to their signs
            assert_close(state, alone, rtol=1e-9, atol=1e-12)


def test_fewer_gradient_workers_hold_less(trained):
    whole, half, mem = (max(r[case]["memory"] for r in trained[4]) for case in ("kaisa", "kaisa half", "kaisa mem"))
    assert mem < whole
    assert half < whole


def test_mkor_sends_the_vectors_and_nothing_else(trained):
    """One all-reduce at steps 0, 2 and 4: d_in numbers and a count for each layer, two for the Conv2d, in float64."""
    numbers = sum(d_in + 1 for _, d_in in D_OUT_IN.values()) + 1
    assert trained[2][0]["mkor"]["bytes"] == {"all_reduce": 3 * 8 * numbers}
    assert trained[1][0]["mkor"]["bytes"] == {}


def test_mkor_sends_half_in_half_precision_and_trains_nearly_alike(trained):
    """Each number of a vector takes 2 bytes; the counts are sent separately before them, in float64."""
    result, exact, start = trained[2][0]["mkor bfloat16"], trained[1][0]["mkor"], ranks.Branched()
    numbers = sum(d_in for _, d_in in D_OUT_IN.values())
    assert result["bytes"] == {"all_reduce": 3 * (2 * numbers + 8 * (len(D_OUT_IN) + 1))}
    for near, true, first in zip(result["weights"], exact["weights"], start.parameters(), strict=True):
        assert (near - true).norm() < 0.1 * (true - first).norm()


def test_kaisa_sends_triangles_of_the_factors(trained):
    """Factors are sent every step; every rank owns some layers and sends their decompositions at steps 0, 2 and 4."""
    triangles = sum(d * (d + 1) // 2 for shape in D_OUT_IN.values() for d in shape) + len(D_OUT_IN)
    sent = trained[2][0]["kaisa"]["bytes"]
    assert sent["all_reduce"] == 5 * 8 * triangles
    decompositions = sum(d * d + d for shape in D_OUT_IN.values() for d in shape)
    assert sum(trained[2][rank]["kaisa"]["bytes"]["broadcast"] for rank in range(2)) == 3 * 8 * decompositions


@pytest.fixture(scope="module")
def communicated(legs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The results of two ranks' collectives, each with the bytes that the rank sent."""
    return legs[2]


def test_collectives_return_what_all_ranks_have(communicated):
    """Sums in one buffer for each dtype; rows in rank order, padded to the most rows; bytes of a broadcast once."""
    for rank, results in enumerate(communicated):
        summed = [torch.full((2, 2), 3.0), torch.tensor(11), 2 * torch.arange(3.0), torch.empty(0)]
        assert_close(results["sum"], (summed, {"all_reduce": 4 * (4 + 3) + 8}))
        assert results["nothing"] == ([[], []], {})
        rows = [torch.tensor([[0.0, 0.0]] * 3 + [[1.0, 1.0]]), torch.full((1, 3), 7.0), torch.empty(0, 1)]
        assert_close(results["gather"], (rows, {"all_gather": 4 * (3 * 2 + 3)}))
        received = [torch.ones(2, 2), torch.tensor(2.0)]
        assert_close(results["broadcast"], (received, {"broadcast": 4 * 5} if rank == 1 else {}))


@pytest.mark.parametrize("large", [0, 10**9])
def test_all_ranks_get_what_each_has_for_all(communicated, large):
    """In rounds or in one. Bytes are those of a rank's own tensors; with a code, their lengths and what it keeps."""
    truth = [[torch.arange(6.0).view(3, 2).T, torch.tensor(7.0), torch.ones(4, 1)], [torch.full((1, 2), 9.0)]]
    for rank, results in enumerate(communicated):
        assert_close(results[f"broadcast from all, {large}"], (truth, {"broadcast": 4 * (11 if rank == 0 else 2)}))
        coded, sent = results[f"coded broadcast from all, {large}"]
        assert_close(coded, truth, atol=5 / 127, rtol=0)
        # A length takes 8 bytes, a scale 4, a mask 1. Of the first matrix, 0 is dropped and 1 to 5 are kept.
        assert sent == {"broadcast": 3 * 8 + (4 + 1 + 5) + 4 + (4 + 1 + 4) if rank == 0 else 8 + 4 + 1 + 2}
    for name in ("broadcast from all", "coded broadcast from all"):
        assert_close(*(results[f"{name}, {large}"][0] for results in communicated), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ranks.EXCHANGES)
def test_ranks_exchange_sums_or_rows_and_the_mean_loss(communicated, kind):
    """Truth: the statistics of both ranks, added or joined; a layer that no rank used has number 0, or no rows."""
    parts = [ranks.captured(kind, rank) for rank in range(2)]
    together = torch.cat if kind == "rows" else lambda tensors: sum(tensors)
    truth = {
        "both": [together([part["both"].x for part in parts]), together([part["both"].g for part in parts])],
        "one": [parts[1]["one"].x, parts[1]["one"].g],
    }
    if kind != "rows":
        truth["none"] = [torch.zeros_like(tensor) for tensor in truth["one"]]
    numbers = {"both": 3.0, "one": 2.0, "none": 0.0}
    for (statistics, loss), _ in (results[kind] for results in communicated):
        assert loss == 1.5
        assert list(statistics) == list(truth)
        for name, (x, g) in truth.items():
            number = torch.tensor(numbers[name], dtype=x.dtype)
            assert_close(tuple(statistics[name][:3]), (x, g, number), rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "bytes_of_a_number"), [("mean", 4), ("half precision", 2)])
def test_the_gradients_of_biases_are_not_exchanged(communicated, kind, bytes_of_a_number):
    """Only x and the number; the rows of a Conv2d too, because locations may differ: (2 * 4 + 1 * 1) / 3 = 3."""
    both = {"linear": 1, "convolution": 3}  # numbers and locations alike
    for sums, sent in (results[f"{kind} with biases"] for results in communicated):
        assert {name: part.number.item() for name, part in sums.items()} == {**both, "no": 0, "shared": 1}
        assert {name: float(part.locations) for name, part in sums.items()} == {**both, "no": 1, "shared": 4}
        assert all(part.g is None for part in sums.values())
        assert_close(sums["convolution"].x, 3 * torch.arange(5.0))
        assert_close(sums["linear"].x, torch.ones(3))
        assert sent == {"all_reduce": bytes_of_a_number * (3 + 5 + 5 + 5) + 4 * (4 + 3)}


def test_moments_of_inputs_alone_travel_without_those_of_gradients(communicated):
    """Of rows of ones: d (d + 1) / 2 numbers, and a count. The rows of 4 locations are divided by their number."""
    for sums, sent in (results["moments of inputs"] for results in communicated):
        assert [(part.g, part.number.item(), part.locations) for part in sums.values()] == [(None, 1, 1)] * 2
        assert_close(sums["convolution"].x, torch.ones(5, 5) / 16)
        assert_close(sums["linear"].x, torch.ones(3, 3))
        assert sent == {"all_reduce": 4 * (15 + 6 + 2)}


@pytest.mark.parametrize("loss", ["global", "rank"])
def test_rows_belong_to_the_global_mean_loss_or_to_each_ranks_own(communicated, loss):
    """Truth: dense. Eva takes the first sixteen examples of the global batch, or of each rank's twelve."""
    rows = [ranks.one_step(MKOR(), rank)[1:] for rank in range(2)]
    share = 2 if loss == "global" else 1
    moment = sum((g / share).T @ (g / share) / len(g) for _, g in rows) / 2
    g = torch.cat([rows[0][1], rows[1][1][:4]]) / 2 if loss == "global" else torch.cat([g for _, g in rows])
    x = torch.cat([rows[0][0], rows[1][0][:4]] if loss == "global" else [x for x, _ in rows])
    for results in communicated:
        assert_close(results[f"kaisa {loss}"][0]["left"], 0.5 * torch.eye(2).double() + 0.5 * moment)
        assert_close(results[f"eva {loss}"][0]["left"], g.mean(0))
        assert_close(results[f"eva {loss}"][0]["right"], x.mean(0))


def test_what_was_consolidated_holds_until_the_next_step_or_load(communicated):
    """The only layer belongs to rank 0, so the other rank holds its running averages alone."""
    whole, after_a_step, loaded, _ = communicated[1]["consolidated"][0]
    assert whole == communicated[0]["consolidated"][0][0] == set(communicated[0]["kaisa global"][0])
    assert after_a_step == loaded == {"left", "right", "batches"}


def test_one_rank_keeps_what_is_consolidated_for_it(communicated):
    """The only layer belongs to rank 0, whose own state is whole."""
    whole, _, _, for_rank_1 = communicated[1]["consolidated"][0]
    assert for_rank_1 == whole


@pytest.mark.parametrize(("rank", "keeps"), [(None, True), (0, True), (1, False)])
def test_gathered_tensors_are_in_host_memory(monkeypatch, rank, keeps):
    """On a fake GPU, whose tensors have no data."""
    monkeypatch.setattr(comm, "broadcast", lambda sent, *_: sent)
    method = KAISA(grad_worker_fraction=0.5)
    with monkeypatch.context() as patched:
        patched.setattr(comm, "world_size", lambda _: 2)
        patched.setattr(kaisa, "_make_group", lambda *_: None)
        shared = kaisa.Sharing([Layer("one", nn.Linear(2, 2))], method, None)
    with FakeTensorMode():
        state = method.initial_state(LayerShape(2, 3), torch.float32, torch.device("cuda"))
        kept = shared.gather({"one": state}, lambda _: dict(state), rank)
    assert list(kept) == (["one"] if keeps else [])
    for name, tensor in kept.get("one", {}).items():
        assert (tensor.device.type == "cpu") == (name in method.refreshed), name


def test_gathered_tensors_have_their_owners_values_and_layout(communicated):
    """Products round differently for another layout, so that a resumed run would differ.

    A state is written in place, so that what LAPACK returns in column-major order is kept in row-major order.
    """
    for results in communicated:
        gathered = results["gathered"][0]
        assert_close(gathered["left_vectors"], (torch.arange(4.0).view(2, 2).T, (2, 1)))
        assert_close(gathered["right_vectors"], (torch.arange(9.0).view(3, 3), (3, 1)))
        assert_close(gathered["left_values"], (torch.ones(2), (1,)))


def test_ranks_name_the_phase_in_which_they_communicate(communicated):
    for results in communicated:
        assert results["phases"][0] == ["capture", "communication", "factor", "precondition"]


@pytest.mark.parametrize("kind", ["mean", "moment"])
def test_a_layer_that_no_rank_used_keeps_its_state(communicated, kind):
    initial = ranks.EXCHANGES[kind].initial_state(LayerShape(2, 3), torch.float32, torch.device("cpu"))
    for results in communicated:
        assert_close(results[f"{kind} of an unused layer"][0], initial)


def test_on_one_process_collectives_return_their_input():
    tensors = [torch.ones(2, 3), torch.ones(1)]
    for returned in (comm.sum_across_ranks(tensors), comm.broadcast(tensors, 0), comm.gather_rows(tensors)):
        assert all(mine is given for mine, given in zip(returned, tensors, strict=False))
        assert returned
    assert (comm.rank(), comm.world_size()) == (0, 1)
    assert not comm.is_distributed()


def test_a_grid_has_gradient_workers_in_its_columns():
    grid = make_grid(8, 0.25)
    assert grid == Grid(rows=2, columns=4)
    assert [grid.column(index) for index in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [grid.row(index) for index in range(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert make_grid(8, 1.0).columns == 1  # COMM-OPT
    assert make_grid(8, 1 / 8).rows == 1  # MEM-OPT


@pytest.mark.parametrize(("world", "fraction"), [(8, 0.3), (6, 2 / 3), (4, 0.9)])
def test_a_fraction_that_does_not_fit_the_ranks_is_refused(world, fraction):
    with pytest.raises(ValueError, match="must be a whole number that divides them"):
        make_grid(world, fraction)


def test_the_costliest_layer_is_assigned_first_and_ties_go_to_the_earlier_name_and_rank():
    """By hand: c alone weighs as much as a and b together."""
    costs = {"a": 1.0, "b": 1.0, "c": 2.0}
    alone, shared = Assignment(owner=0, column=0), Assignment(owner=1, column=1)
    assert assign(costs, Grid(rows=1, columns=2)) == {"a": shared, "b": shared, "c": alone}
    in_one_column = {"a": Assignment(1, 0), "b": Assignment(1, 0), "c": Assignment(0, 0)}
    assert assign(costs, Grid(rows=2, columns=1)) == in_one_column
    # Both columns are empty at first, then column 1 is: its first rank takes b; rank 2 of column 0 is free for c.
    costs = {"a": 3.0, "b": 3.0, "c": 1.0}
    places = {"a": Assignment(0, 0), "b": Assignment(1, 1), "c": Assignment(2, 0)}
    assert assign(costs, Grid(rows=2, columns=2)) == places


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_buffers_of_all_sizes_reach_all_ranks_in_equal_pieces(sizes):
    """Truth: the buffers end to end. Rank after rank: first each sends, then each has its piece, then all have all."""
    stream, world = torch.arange(sum(sizes)), len(sizes)
    sent, pieces = dict[int, list[torch.Tensor]](), dict[int, torch.Tensor]()

    def all_to_all(piece, flat, incoming, outgoing, group):
        sent[here] = list(flat.split(outgoing))
        if len(sent) == world:
            parts = [sent[source][here] for source in range(world)]
            assert [len(part) for part in parts] == incoming
            pieces[here] = torch.cat(parts, out=piece)

    def all_gather(whole, piece, group):
        if len(pieces) == world:
            parts = [torch.nn.functional.pad(part, (0, len(piece) - len(part))) for _, part in sorted(pieces.items())]
            torch.cat(parts, out=whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "rank", lambda group: here)
        patch.setattr(torch.distributed, "all_to_all_single", all_to_all)
        patch.setattr(torch.distributed, "all_gather_single", all_gather, raising=False)
        for here in [*range(world)] * 3:
            arrived = comm._pieces_of_all(stream.split(sizes)[here], sizes, None)
            if len(pieces) == world:
                assert torch.equal(arrived[: len(stream)], stream)
    assert len(arrived) < len(stream) + world


@given(
    costs=st.lists(st.floats(1, 1e6), min_size=1, max_size=30),
    shape=st.sampled_from([(1, 1), (1, 4), (2, 4), (4, 1), (8, 1)]),
)
def test_every_layer_gets_an_owner_in_its_column_and_no_rank_is_overloaded(costs, shape):
    """Greedy balancing: no rank's load exceeds the mean by more than twice the costliest layer."""
    grid = Grid(*shape)
    named = {f"layer{i}": cost for i, cost in enumerate(costs)}
    assignments = assign(named, grid)
    assert list(assignments) == list(named)
    load = dict.fromkeys(range(grid.rows * grid.columns), 0.0)
    for name, assignment in assignments.items():
        assert assignment.owner in grid.column(assignment.column)
        load[assignment.owner] += named[name]
    assert max(load.values()) <= sum(costs) / len(load) + 2 * max(costs)


@given(dimension=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_a_packed_symmetric_matrix_unpacks(dimension, seed):
    root = torch.randn(dimension, dimension, generator=torch.Generator().manual_seed(seed))
    matrix = root + root.T
    triangles = comm.Triangles()
    packed = triangles.pack(matrix)
    assert torch.equal(packed, matrix[torch.ones(dimension, dimension).triu() > 0])
    assert torch.equal(triangles.unpack(packed, dimension), matrix)
    assert torch.equal(triangles.unpack(triangles.pack(2 * matrix), dimension), 2 * matrix)
