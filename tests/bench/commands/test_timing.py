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
from workflow.bench.support.load import BUSY, OtherLoad


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
    assert timing.announcement(PROBES, plan) == (
        "tier embedded: step_time, memory; about 1 min 50 s if the machine is idle and as fast as the reference"
    )
    for name in ("sizes", "spectra"):  # without a cost, and unknown there
        assert timing.expected([*PROBES, describe("probes", name)], plan) is None
    assert timing.announcement([describe("probes", "sizes")], plan) == "tier embedded: sizes"


@pytest.fixture
def loads(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The shares that others use at each look, the last one from then on; to sleep only moves the clock."""
    shares: list[float | None] = []
    clock = [0.0]
    monkeypatch.setattr(OtherLoad, "share", lambda self: shares.pop(0) if len(shares) > 1 else shares[0])
    monkeypatch.setattr(timing, "WATCHED", 2.0)
    monkeypatch.setattr("workflow.bench.timing.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("workflow.bench.timing.time.sleep", lambda seconds: clock.append(clock.pop() + seconds))
    monkeypatch.setattr(timing, "run_pipeline", lambda *_: 0)
    return shares


@pytest.mark.parametrize(
    ("shares", "given", "status", "said"),
    [
        ([BUSY - 0.01], [], 0, ""),
        ([BUSY], [], 1, "not measured: other processes use 10% of the cores. Stop them, or give --wait MINUTES"),
        ([0.5], ["--anyway"], 0, "warning: other processes use 50% of the cores: times will be too long"),
        ([None], [], 0, "warning: this system does not tell"),
        ([0.5, 0.5, 0.05], ["--wait", "1"], 0, "waiting for an idle machine: others use 50% of the cores; 58 s left"),
        ([0.5], ["--wait", "0.5"], 1, "not measured: other processes use 50% of the cores after 0.5 minutes"),
        ([0.5], ["--wait", "0.5", "--anyway"], 0, "warning: other processes use 50%"),
    ],
)
def test_a_busy_machine_is_measured_after_a_wait_or_on_request_alone(
    loads, capsys, tmp_path, shares, given, status, said
):
    loads[:] = shares
    assert timing.main([*given, *options(tmp_path / "config")]) == status
    out, err = capsys.readouterr()
    assert ("\nmeasured in " in out) == (status == 0)
    assert said in err
    assert max(map(len, err.splitlines()), default=0) <= 120


def test_a_wait_of_hours_prints_a_line_a_minute_in_a_file_and_one_line_on_a_terminal(loads, capsys, monkeypatch):
    loads[:] = [0.5]
    assert timing.share_of_others(3600, timing.sys.stderr) == 0.5
    assert 50 <= capsys.readouterr().err.count("\n") <= 61
    monkeypatch.setattr(timing.sys.stderr, "isatty", lambda: True, raising=False)
    assert timing.share_of_others(3600, timing.sys.stderr) == 0.5
    said = capsys.readouterr().err
    assert said.count("\n") == 0
    assert said.endswith("\r\x1b[K")


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
