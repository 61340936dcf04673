"""The cost-scaling probe times the method's own work, and counts repeats."""

from __future__ import annotations

import pytest
import torch

from baselines import available, method_class
from tests.support import experiments
from workflow.bench.probes import cost_scaling
from workflow.bench.probes._models import method_of
from workflow.bench.probes.cost_scaling import OPTIMIZERS, factor_update, preconditioning

CPU = torch.device("cpu")
METHODS = sorted({*OPTIMIZERS, *(name for name in available() if method_class(name) is not None)})


@pytest.mark.parametrize("label", METHODS)
def test_every_part_does_its_method_s_work(label, monkeypatch):
    """Truth: the calls that reach the method: one state, one statistic of width d, one refresh."""
    seen = []
    method = method_of(label)
    cls = type(method)
    accumulate, refresh = cls.accumulate, cls.refresh
    monkeypatch.setattr(cls, "accumulate", lambda *given: (seen.append(given[2]), accumulate(*given)))
    monkeypatch.setattr(cls, "refresh", lambda *given: (seen.append("refresh"), refresh(*given)))
    factor_update(method, 8, CPU)()
    captured, refreshed = seen
    assert refreshed == "refresh"
    if method.statistic.kind != "rows":
        assert captured.x.shape == ((8, 8) if method.statistic.kind == "moment" else (8,))
    assert preconditioning(method, 8, CPU)().shape == (8, 8)


def test_measure_yields_every_part_at_every_width(tmp_path):
    plan = experiments.load(experiments.make_folder(tmp_path / "config"))
    rows = list(cost_scaling.measure(plan, [*METHODS, "soap"], dimensions=(4, 8), repeats=2))
    parts = {(row.optimizer, row.part) for row in rows}
    # A first-order optimizer such as SOAP has no such parts.
    assert parts == {("copy", "floor"), *((name, part) for name in METHODS for part in ("factor", "precondition"))}
    assert len(rows) == 2 * 2 * len(parts)
    assert all(row.ms > 0 and row.calls >= 1 for row in rows)


def test_a_long_call_is_timed_three_times(monkeypatch, tmp_path):
    """So that its times have an interval, and a decomposition of 9 seconds is not timed in every repeat."""
    monkeypatch.setattr(cost_scaling, "LONG_MS", 0.0)
    called = []
    number, first = cost_scaling.number_of_calls(lambda: called.append(1), CPU)
    assert number == 0
    assert first > 0
    assert len(called) == 1
    plan = experiments.load(experiments.make_folder(tmp_path / "config"))
    rows = list(cost_scaling.measure(plan, ["mkor"], dimensions=(4,), repeats=5))
    assert [row.repeat for row in rows] == [0, 1, 2] * 3


def test_hylo_preconditions_with_rows_and_updates_a_whole_layer():
    """Truth: a gradient that it would leave as it is without rows, but for the division by the damping."""
    method = method_of("hylo")
    assert not torch.allclose(
        preconditioning(method, 8, CPU)() * method.damping,
        torch.randn(8, 8, generator=torch.Generator().manual_seed(0)),
    )


def test_short_calls_are_timed_together():
    called = []
    number, _ = cost_scaling.number_of_calls(lambda: called.append(1), CPU)
    assert number > 100  # a call of a microsecond, at least LEAST_MS together
    assert len(called) == 2
