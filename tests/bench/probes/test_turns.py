"""The rig of every comparison: contenders take turns within each round."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from workflow.bench.probes._turns import milliseconds, rounds

CPU = torch.device("cpu")


def test_every_contender_has_one_turn_a_round():
    taken = []
    turns = {name: partial(lambda name: taken.append(name) or name.upper(), name) for name in "abcd"}
    results = list(rounds(turns, 20))
    assert results == [{name: name.upper() for name in "abcd"}] * 20
    assert all(list(result) == list("abcd") for result in results)
    by_round = ["".join(taken[start : start + 4]) for start in range(0, len(taken), 4)]
    assert {"".join(sorted(order)) for order in by_round} == {"abcd"}
    # Each of them is sometimes first, and sometimes follows each of the others.
    assert {order[0] for order in by_round} == set("abcd")
    assert len({order[k : k + 2] for order in by_round for k in range(3)}) == 12


def test_the_order_is_the_same_on_every_rank():
    def orders() -> list[str]:
        taken: list[str] = []
        list(rounds({name: partial(taken.append, name) for name in "abcdef"}, 5))
        return taken

    assert orders() == orders()


def test_a_time_is_that_of_one_call(monkeypatch):
    clock = iter([10.0, 10.6])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    called = []
    assert milliseconds(lambda: called.append(1), CPU, calls=3) == pytest.approx(200.0)
    assert len(called) == 3
