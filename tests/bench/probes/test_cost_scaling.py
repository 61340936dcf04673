"""The cost-scaling probe: what is timed is the method's own work, and repeats are counted."""

from __future__ import annotations

import pytest
import torch

from tests.support import experiments
from workflow.bench.probes import cost_scaling
from workflow.bench.probes.cost_scaling import METHODS, factor_update, preconditioning

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", METHODS)
def test_every_part_does_its_method_s_work(name, monkeypatch):
    """Truth: the calls that reach the method: one state, one statistic of width d, one refresh."""
    seen = []
    method = METHODS[name]
    cls = type(method)
    accumulate, refresh = cls.accumulate, cls.refresh
    monkeypatch.setattr(cls, "accumulate", lambda *given: (seen.append(given[2]), accumulate(*given)))
    monkeypatch.setattr(cls, "refresh", lambda *given: (seen.append("refresh"), refresh(*given)))
    factor_update(method, 8, CPU)()
    captured, refreshed = seen
    assert refreshed == "refresh"
    assert captured.x.shape == ((8, 8) if name == "kaisa" else (8,))
    assert preconditioning(method, 8, CPU)().shape == (8, 8)


def test_measure_yields_every_part_at_every_width(tmp_path):
    plan = experiments.load(experiments.make_folder(tmp_path / "config"))
    rows = list(cost_scaling.measure(plan, dimensions=(4, 8), repeats=2))
    parts = {(row.optimizer, row.part) for row in rows}
    assert parts == {("copy", "floor"), *((name, part) for name in METHODS for part in ("factor", "precondition"))}
    assert len(rows) == 2 * 2 * len(parts)
    assert all(row.ms > 0 and row.calls >= 1 for row in rows)


def test_a_long_call_is_timed_once(monkeypatch):
    monkeypatch.setattr(cost_scaling, "LONG_MS", 0.0)
    called = []
    assert len(list(cost_scaling.repeated(lambda: called.append(1), 5, CPU))) == 1
    assert len(called) == 1


def test_short_calls_are_timed_together():
    called = []
    found = list(cost_scaling.repeated(lambda: called.append(1), 3, CPU))
    assert len(found) == 3
    number = found[0][0]
    assert number > 100  # a call of a microsecond, at least LEAST_MS together
    assert len(called) == 2 + 3 * number
