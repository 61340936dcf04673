"""SPD-KFAC's schedule: its plans for all sizes and times, and the training of two gloo ranks with and without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from baselines import KAISA
from mkor_core import MKOR, Codec, Preconditioner, Schedule
from mkor_core.ranks import comm
from mkor_core.ranks.schedule import balanced, finish, merged
from tests.support.rank_processes import results_of

INPUTS, GRADIENTS = (5, 10, 7, 7), (3, 3, 6, 9)
"""The dimensions of the network's factors, in the order in which they travel."""
TRIANGLES = [d * (d + 1) // 2 for d in INPUTS + GRADIENTS]
REFRESHES = 3
seconds = st.integers(0, 50).map(float)  # whole numbers, so that sums are exact


@st.composite
def times_and_sizes(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Draw the factors' ready times, ascending, and their numbers."""
    number = draw(st.integers(0, 8))
    ready = sorted(draw(st.lists(seconds, min_size=number, max_size=number)))
    return ready, draw(st.lists(st.integers(1, 20), min_size=number, max_size=number))


@given(times_and_sizes(), seconds, st.integers(0, 3).map(float))
def test_messages_have_all_factors_once_in_their_order_and_end_no_later(drawn, startup, per_number):
    ready, sizes = drawn
    messages = merged(ready, sizes, startup, per_number)
    assert [index for members in messages for index in members] == list(range(len(ready)))
    costs = (ready, sizes, startup, per_number)
    end = finish(messages, *costs)
    assert end <= finish([range(i, i + 1) for i in range(len(ready))], *costs)
    if ready:
        assert end <= finish([range(len(ready))], *costs)


def test_the_rule_of_merging_by_hand():
    """Startup 10, one second a number. The first message, of 5 numbers, would travel from 0 to 15.

    The second factor, ready at 9, joins: less than 10 after the start. They would travel from 9 to 24. The third, at
    20, comes 11 after the start: it travels alone, from 24 to 35. The fourth, at 22, is ready before that start, and
    joins. The last, at 50, comes after their end at 36.
    """
    assert merged([0, 9, 20, 22, 50], [5, 0, 1, 1, 1], 10, 1) == [range(2), range(2, 4), range(4, 5)]
    assert finish([range(2), range(2, 4), range(4, 5)], [0, 9, 20, 22, 50], [5, 0, 1, 1, 1], 10, 1) == 61
    assert merged([], [], 10, 1) == []


@given(st.dictionaries(st.integers(), st.integers(1, 60)), st.integers(1, 4), st.integers(1, 40))
def test_factors_are_placed_once_and_loads_differ_by_no_more_than_a_factor(dimensions, ranks, bound):
    places = balanced(dimensions, ranks, bound)
    assert places.keys() == dimensions.keys()
    assert {key for key, place in places.items() if place is None} == {k for k, d in dimensions.items() if d < bound}
    loads = [sum(dimensions[key] ** 3 for key, place in places.items() if place == rank) for rank in range(ranks)]
    largest = max((d**3 for d in dimensions.values() if d >= bound), default=0)
    assert max(loads) - min(loads) <= largest


def test_the_largest_factors_are_placed_first():
    """64 and 27 and 8: the cube of 4 is more than those of 3, 3 and 2 together."""
    assert balanced({"a": 2, "b": 3, "c": 4, "d": 3, "e": 1}, 2, 2) == {"a": 1, "b": 1, "c": 0, "d": 1, "e": None}


STEPS = 5
METHODS: tuple[Literal["eigen", "inverse"], ...] = ("eigen", "inverse")
BOUND = 7
"""The dimension from which one rank decomposes a factor."""
APART = Schedule(startup=0, seconds_per_number=0, everywhere_below=BOUND)
"""Each factor travels alone: a message takes no time."""
TOGETHER = Schedule(startup=10, everywhere_below=1)
"""All factors travel in one message, and each is decomposed on one rank."""
SOME = Schedule(startup=2e-7, seconds_per_number=1e-9, packing_per_number=1e-8, everywhere_below=1000)
"""Some factors travel together, and all ranks decompose all of them."""
SCHEDULES: Mapping[str, Schedule | None] = {"plain": None, "apart": APART, "together": TOGETHER, "some": SOME}


class Branched(nn.Module):
    """A network with a layer that rank 0 alone uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh())
        self.head, self.branch = nn.Linear(6, 3), nn.Linear(6, 3)
        self.double()

    def forward(self, inputs: Tensor, *, with_branch: bool) -> Tensor:
        hidden = self.body(inputs)
        outputs: Tensor = self.head(hidden)
        return outputs + self.branch(hidden) if with_branch else outputs


def trained_by(
    method: Literal["eigen", "inverse"], schedule: Schedule | None, codec: Codec | None = None
) -> dict[str, Any]:
    """Train; return the weights, the bytes sent, and the numbers in each all-reduce of the first step."""
    torch.manual_seed(0)
    network = DistributedDataParallel(Branched(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    kaisa = KAISA(factor_update_period=1, inverse_update_period=2, compute_method=method)
    Preconditioner(network, kaisa, schedule=schedule, codec=codec).attach(optimizer)
    comm.reset_bytes_sent()
    sizes: list[int] = []
    all_reduce = dist.all_reduce
    for step in range(STEPS):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())).double()
        optimizer.zero_grad()
        network(inputs, with_branch=dist.get_rank() == 0).square().mean().backward()
        with mock.patch.object(dist, "all_reduce", side_effect=all_reduce) as launched:
            optimizer.step()
        if step == 0:
            sizes = [call.args[0].numel() for call in launched.call_args_list]
    weights = [parameter.detach() for parameter in network.parameters()]
    return {"weights": weights, "bytes": comm.bytes_sent(), "sizes": sizes}


def run(rank: int, world: int) -> dict[str, Any]:
    """Return the results of all trainings on a rank."""
    results = {f"{method}, {name}": trained_by(method, SCHEDULES[name]) for method in METHODS for name in SCHEDULES}
    results["coded"] = trained_by("eigen", TOGETHER, Codec())
    return results


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Any]]:
    """The results by rank."""
    return results_of((2, run, ()))[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "plain"])
def test_a_schedule_changes_no_number(trained, method, name):
    for result in trained:
        scheduled, plain = result[f"{method}, {name}"], result[f"{method}, plain"]
        assert_close(scheduled["weights"], plain["weights"], rtol=1e-9, atol=1e-12)
        assert scheduled["bytes"]["all_reduce"] == plain["bytes"]["all_reduce"]


def test_factors_travel_in_their_order_inputs_forward_gradients_backward(trained):
    for result in trained:
        sizes = {name: result[f"eigen, {name}"]["sizes"] for name in SCHEDULES}
        numbers = len(INPUTS)
        assert sizes["plain"] == [numbers + sum(TRIANGLES)]
        assert sizes["apart"] == [numbers, *TRIANGLES]
        assert sizes["together"] == [numbers, sum(TRIANGLES)]
        messages = SOME.messages(TRIANGLES)
        assert 1 < len(messages) < len(TRIANGLES)
        assert sizes["some"] == [numbers, *(sum(TRIANGLES[index] for index in members) for members in messages)]


def test_only_large_factors_are_sent(trained):
    def sent(name: str) -> int:
        return sum(result[name]["bytes"].get("broadcast", 0) for result in trained)

    large = [d for d in INPUTS + GRADIENTS if d >= BOUND]
    assert sent("eigen, some") == 0
    assert sent("eigen, apart") == REFRESHES * 8 * sum(d * d + d for d in large)
    assert sent("inverse, apart") == REFRESHES * 8 * sum(d * d for d in large)
    assert sent("eigen, together") == sent("eigen, plain") == REFRESHES * 8 * sum(d * d + d for d in INPUTS + GRADIENTS)
    assert sent("coded") < 0.4 * sent("eigen, together")


def test_a_schedule_that_does_not_fit_is_refused():
    model = nn.Linear(2, 2)
    for method, owners in ((MKOR(), None), (KAISA(grad_worker_fraction=0.5), None), (KAISA(), True)):
        with pytest.raises(
            ValueError, match=r"Schedule\(.*is for KAISA with grad_worker_fraction=1 and without owners"
        ):
            Preconditioner(model, method, schedule=Schedule(), owners=owners)
    with pytest.raises(ValueError, match=r"schedule='spd' must be a mkor_core\.ranks\.schedule\.Schedule or None"):
        Preconditioner(model, KAISA(), schedule="spd")
    with pytest.raises(ValueError, match=r"startup=-1\.0 must be at least 0: the seconds that an all-reduce takes"):
        Schedule(startup=-1.0)
    Preconditioner(model, KAISA(), schedule=Schedule()).remove()
