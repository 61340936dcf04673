"""make timing: what it says of the time that it takes, and of other processes that use the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from tests.support.experiments import block, load, optimizer, options, write
from workflow.bench import timing
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import describe
from workflow.bench.probes._load import OtherLoad
from workflow.bench.probes.step_time import BUSY


@pytest.fixture
def plan(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan that is compared with a machine whose costs are known, on two idle cores that are not watched."""
    write(folder, "one", block(optimizer("sgd")))
    other = tmp_path / "other-cpu" / "embedded"
    other.mkdir(parents=True)
    (other / "costs.csv").write_text(
        "name,runs,core_seconds,seconds_alone,peak_mb\nstep_time,,,90,\nmemory,,40,,\nsizes,,,,\n"
    )
    monkeypatch.setattr(timing, "usable_cores", lambda: 2)
    monkeypatch.setattr(timing, "WATCHED", 0.0)
    monkeypatch.setattr(OtherLoad, "share", lambda self: BUSY - 0.01)
    return dataclasses.replace(load(folder), compared=(other,))


PROBES = [describe("probes", "step_time"), describe("probes", "memory")]


def test_the_time_is_what_another_machine_took(plan):
    """Truth: 90 s alone, and 40 core-seconds on two cores."""
    assert timing.expected(PROBES, plan) == 110.0
    assert list(timing.before(PROBES, plan)) == [
        "tier embedded: step_time, memory; about 1 min 50 s if the machine is idle and as fast as the reference"
    ]
    for name in ("sizes", "spectra"):  # without a cost, and unknown there
        assert timing.expected([*PROBES, describe("probes", name)], plan) is None
    assert list(timing.before([describe("probes", "sizes")], plan)) == ["tier embedded: sizes"]


@pytest.mark.parametrize(("share", "said"), [(BUSY, "10% of the cores"), (None, "does not tell")])
def test_it_warns_if_the_machine_is_busy_or_does_not_tell(plan, monkeypatch, share, said):
    monkeypatch.setattr(OtherLoad, "share", lambda self: share)
    _, warning = timing.before(PROBES, plan)
    assert warning.startswith("warning: ")
    assert said in warning


@pytest.mark.parametrize(("busy", "share"), [(0, 0.0), (1, 0.1), (None, None)])
def test_it_warns_afterwards_if_rounds_were_busy(plan, capsys, monkeypatch, tmp_path, busy, share):
    """Truth: 10 rounds, of which one was left out; rounds whose load is unknown do not count."""

    def measured(made: Plan, given: object, targets: list[str]) -> int:
        assert targets == ["--forceall", "timing"]
        shares = [None if busy is None else 0.3 * (number < busy) for number in range(10)]
        rows = [{"busy_share": one, "left_out": bool(one)} for one in shares]
        (made.results / "probes").mkdir(parents=True)
        pd.DataFrame([*rows, {"busy_share": None, "left_out": False}]).to_csv(
            made.results / "probes" / "step_time.csv", index=False
        )
        return 0

    monkeypatch.setattr(timing, "run_pipeline", measured)
    assert timing.main(options(tmp_path / "config")) == 0
    assert timing.rounds_left_out(plan.results / "probes" / "step_time.csv") == share
    said = capsys.readouterr().out
    assert "measured in " in said
    assert ("busy in 10% of the rounds" in said) is bool(busy)


def test_a_failed_measurement_ends_with_its_status(plan, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "run_pipeline", lambda *_: 3)
    assert timing.main(options(tmp_path / "config")) == 3
    assert "measured in" not in capsys.readouterr().out
