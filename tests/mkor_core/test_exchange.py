"""Collectives, what ranks exchange, and who gets which layer. Truth: by hand from what each of two gloo ranks has."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, Preconditioner
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import mean_locations
from mkor_core.capture.statistics import MOMENT, LayerShape, Sums
from mkor_core.capture.sums import Capture
from mkor_core.method import Method, put
from mkor_core.ranks import comm, kaisa
from mkor_core.ranks.assignment import Assignment, Grid, assign, make_grid
from mkor_core.ranks.codec import Codec, Coder
from mkor_core.ranks.exchange import exchange
from mkor_core.ranks.kaisa import Sharing
from tests.support.rank_processes import results_of

EXCHANGES: dict[str, Method] = {
    "mean": MKOR(),
    "half precision": MKOR(factor_dtype=torch.bfloat16),
    "moment": KAISA(kl_clip=None),
    "rows": HyLo(),
}
"""Methods that exchange their statistics in different ways."""


ROWS: dict[str, Method] = {
    "kaisa global": KAISA(factor_decay=0.5, kl_clip=None),
    "kaisa rank": KAISA(factor_decay=0.5, kl_clip=None, rows="rank"),
    "eva global": Eva(kl_clip=None),
    "eva rank": Eva(kl_clip=None, rows="rank"),
}
"""Methods that use rows of the global mean loss, or of each rank's own."""


def one_step(method: Method, rank: int) -> tuple[Preconditioner, Tensor, Tensor]:
    """Take a step on a rank's twelve examples; return X and the rows of its own mean loss too."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    preconditioner = Preconditioner(model, method)
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(rank + 1), dtype=torch.float64)
    output = model(inputs)
    output.retain_grad()
    output.square().mean().backward()
    preconditioner.step()
    assert output.grad is not None
    return preconditioner, torch.cat([inputs, inputs.new_ones(12, 1)], 1), output.grad


def captured(kind: str, rank: int) -> dict[str, Sums]:
    """Return a rank's statistics of a float64 layer ``both`` that two ranks use, and of one that only rank 1 uses.

    Their numbers are ``rank + 1``; all entries are small whole numbers, so that bfloat16 holds their means and sums.
    """
    number = torch.tensor(float(rank + 1))
    if kind == "moment":
        x, g = torch.ones(3, 3) * (rank + 1), torch.tensor([[2.0, 1.0], [1.0, 4.0]]) * (rank + 1)
    elif kind == "rows":
        x, g = torch.ones(rank + 1, 3) * (rank + 1), torch.ones(rank + 1, 2) * (rank + 2)
    else:
        x, g = torch.tensor([3.0, 6.0, 12.0]) * (2 * rank + 1), torch.tensor([1.0, 2.0]) * (rank + 1)
    both = Sums(x.double(), g.double(), number.double())
    return {"both": both} if rank == 0 else {"both": both, "one": Sums(x, g, number)}


def with_biases(method: Method, rank: int) -> dict[str, Sums]:
    """Exchange the statistics of layers whose biases have g: rank 0 uses the convolution, on 4 locations an example.

    Rank 1 uses it on one location, and the Linear. Each counts half of an image of 4 locations that they share.
    """
    layers = [
        Layer("linear", nn.Linear(2, 2)),
        Layer("convolution", nn.Conv2d(1, 2, 2)),
        Layer("no", nn.Conv2d(1, 2, 2)),
        Layer("shared", nn.Conv2d(1, 2, 2)),
    ]
    number, half = torch.tensor(2.0 - rank), torch.tensor(0.5)
    convolution = Sums(torch.arange(5.0) * number, None, number, torch.tensor(4.0 - 3 * rank))
    shared = Sums(torch.arange(5.0) * half, None, half, mean_locations(torch.tensor(2.0), half))
    local = {"convolution": convolution, "linear": Sums(torch.ones(3), None, number), "shared": shared}
    if rank == 0:
        del local["linear"]
    return exchange(layers, local, None, statistic=method.statistic, group=None)[0]


def moments_of_inputs(rank: int) -> dict[str, Sums]:
    """Exchange second moments of inputs alone: rank 0 uses the convolution, on several locations, rank 1 the Linear."""
    layers = [Layer("convolution", nn.Conv2d(1, 2, 2)), Layer("linear", nn.Linear(2, 2))]
    own = Capture({layer.name: layer for layer in layers}, MOMENT.of_inputs(), shares=2)
    layers[rank].module(torch.ones(2, 1, 3, 3) if rank == 0 else torch.ones(2, 2)).sum().backward()
    return exchange(layers, own.take(), None, statistic=MOMENT.of_inputs(), group=None)[0]


def consolidated(rank: int) -> list[set[str]]:
    """Return the names of the tensors in MEM-OPT's state.

    Consolidated on both ranks, after another step, loaded again, and consolidated on rank 1.
    """
    preconditioner, *_ = one_step(KAISA(kl_clip=None, grad_worker_fraction=0.5), rank)
    keys = lambda: set(preconditioner.state_dict()["layers"][""])  # noqa: E731
    preconditioner.consolidate()
    state, held = preconditioner.state_dict(), [keys()]
    preconditioner.step()
    held.append(keys())
    preconditioner.consolidate()
    preconditioner.load_state_dict(state)
    held.append(keys())
    preconditioner.consolidate(1)
    held.append(keys())
    with pytest.raises(ValueError, match="rank=2 is not one of the 2 ranks"):
        preconditioner.consolidate(2)
    return held


def gathered(rank: int) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Return a layer's gathered tensors with their strides; rank 0 has them, as refreshes leave them in its state."""
    method, layer = KAISA(grad_worker_fraction=0.5), Layer("one", nn.Linear(2, 2))
    sharing = Sharing([layer], method, None)
    blank = method.initial_state(LayerShape(2, 3), torch.float32, torch.device("cpu"))
    own = {key: tensor.clone() for key, tensor in blank.items()}
    put(own, None, left_vectors=torch.arange(4.0).view(2, 2).T, right_vectors=torch.arange(9.0).view(3, 3))
    assert sharing.owns("one") == (rank == 0)
    whole = sharing.gather({"one": sharing.local_part("one", own)}, lambda name: dict(blank), None)["one"]
    return {name: (tensor, tensor.stride()) for name, tensor in whole.items()}


def phases(rank: int) -> list[str]:
    """Return the phases that a step names."""
    model, names = nn.Linear(3, 2), list[str]()
    preconditioner = Preconditioner(model, MKOR())

    def phase(name: str) -> AbstractContextManager[None]:
        names.append(name)
        return nullcontext()

    preconditioner.phases = phase
    model(torch.ones(4, 3) + rank).square().mean().backward()
    preconditioner.step()
    return sorted({*names})


def unused_state(method: Method, rank: int) -> dict[str, Tensor]:
    """Return the state of a layer that no rank uses in a step, in which the other is."""
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    preconditioner = Preconditioner(model, method)
    model[0](torch.ones(3, 2) + rank).square().mean().backward()
    preconditioner.step()
    return preconditioner.state_dict()["layers"]["1"]


def everyones(rank: int, large: int, codec: Codec | None = None) -> list[list[Tensor]]:
    """Return what three messages of rank 0 and one of rank 1 have brought, in rounds from ``large`` bytes on."""
    sent = [[torch.arange(6.0).view(3, 2).T, torch.tensor(7.0), torch.ones(4, 1)], [torch.full((1, 2), 9.0)]]
    targets = [[torch.empty_like(tensor) for tensor in of_rank] for of_rank in sent]
    with mock.patch.object(comm, "LARGE", large):
        comm.broadcast_all(sent[rank], targets, coding=Coder(codec).coding("all", rank))
        comm.broadcast_all([], [[], []])  # makes no call
    return targets


def communicate(rank: int, _: int) -> dict[str, Any]:
    """Call collectives and exchange statistics on two ranks; return the results, each with the bytes sent."""
    calls: dict[str, Any] = {
        "sum": lambda: comm.sum_across_ranks(
            [torch.ones(2, 2) * (rank + 1), torch.tensor(rank + 5), torch.arange(3.0), torch.empty(0)]
        ),
        "nothing": lambda: [comm.sum_across_ranks([]), comm.broadcast([], 0)],
        "gather": lambda: comm.gather_rows(
            [torch.full((3 - 2 * rank, 2), float(rank)), torch.full((rank, 3), 7.0), torch.empty(0, 1)]
        ),
        "broadcast": lambda: comm.broadcast([torch.ones(2, 2) * rank, torch.ones(()) * (rank + 1)], 1),
    }
    for large in (0, 10**9):
        calls[f"broadcast from all, {large}"] = lambda large=large: everyones(rank, large)
        calls[f"coded broadcast from all, {large}"] = lambda large=large: everyones(rank, large, Codec(drop=0.2))
    modules = {"both": nn.Linear(3, 2, bias=False).double(), "one": nn.Linear(3, 2, bias=False)}
    modules["none"] = nn.Linear(3, 2, bias=False)
    layers = [Layer(name, module) for name, module in modules.items()]
    for kind, method in EXCHANGES.items():
        calls[kind] = lambda kind=kind, method=method: exchange(
            layers, captured(kind, rank), torch.tensor(rank + 1.0), statistic=method.statistic, group=None
        )
    for kind, method in ROWS.items():
        calls[kind] = lambda method=method: one_step(method, rank)[0].state_dict()["layers"][""]
    for kind in ("mean", "moment"):
        calls[f"{kind} of an unused layer"] = lambda kind=kind: unused_state(EXCHANGES[kind], rank)
    for kind in ("mean", "half precision"):
        calls[f"{kind} with biases"] = lambda kind=kind: with_biases(EXCHANGES[kind], rank)
    calls["moments of inputs"] = lambda: moments_of_inputs(rank)
    calls["consolidated"] = lambda: consolidated(rank)
    calls["gathered"] = lambda: gathered(rank)
    calls["phases"] = lambda: phases(rank)
    results: dict[str, Any] = {}
    for name, call in calls.items():
        comm.reset_bytes_sent()
        results[name] = (call(), comm.bytes_sent())
    return results


@pytest.fixture(scope="module")
def communicated() -> list[dict[str, Any]]:
    """The results of two ranks' collectives, each with the bytes that the rank sent."""
    return results_of((2, communicate, ()))[0]


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


@pytest.mark.parametrize("kind", EXCHANGES)
def test_ranks_exchange_sums_or_rows_and_the_mean_loss(communicated, kind):
    """Truth: the statistics of both ranks, added or joined; a layer that no rank used has number 0, or no rows."""
    parts = [captured(kind, rank) for rank in range(2)]
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
    rows = [one_step(MKOR(), rank)[1:] for rank in range(2)]
    share = 2 if loss == "global" else 1
    moment = sum((g / share).T @ (g / share) / len(g) for _, g in rows) / 2
    g = torch.cat([rows[0][1], rows[1][1][:4]]) / 2 if loss == "global" else torch.cat([g for _, g in rows])
    x = torch.cat([rows[0][0], rows[1][0][:4]] if loss == "global" else [x for x, _ in rows])
    for results in communicated:
        assert_close(results[f"kaisa {loss}"][0]["left"], 0.5 * torch.eye(2).double() + 0.5 * moment)
        assert_close(results[f"eva {loss}"][0]["left"], g.mean(0))
        assert_close(results[f"eva {loss}"][0]["right"], x.mean(0))


def test_what_was_consolidated_holds_until_the_next_step_or_load(communicated):
    """The only layer belongs to rank 0, so the other rank holds its running averages alone, unless it is to keep it."""
    whole, after_a_step, loaded, for_rank_1 = communicated[1]["consolidated"][0]
    assert whole == communicated[0]["consolidated"][0][0] == set(communicated[0]["kaisa global"][0])
    assert after_a_step == loaded == {"left", "right", "batches"}
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
    initial = EXCHANGES[kind].initial_state(LayerShape(2, 3), torch.float32, torch.device("cpu"))
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
