"""The step-time probe: what it times, a real measurement of a small experiment, and the load of other processes."""

from __future__ import annotations

import json
import math
import sys

import pandas as pd
import pytest

from tests.support.experiments import block, load, make_folder, optimizer, write
from workflow.bench.analysis.step_times import FEWEST_BLOCKS, StepTimes, TimedLabel
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.probes import _load, step_time
from workflow.bench.probes._load import CpuTime, OtherLoad, Reading, cpu_time, share_of_others
from workflow.bench.probes.step_time import LONGEST_CYCLE, Group, groups

AIM = {"split": "validation", "metric": "loss", "below": 0.1}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory) -> Plan:
    return Plan.load(tier="embedded", results=str(tmp_path_factory.mktemp("results")), hardware="test-cpu")


@pytest.fixture
def plan(tmp_path) -> Plan:
    """One experiment with a target: a rate sweep, two labels that train alike, and MKOR at period 2."""
    config = make_folder(tmp_path / "config")
    rates = {"name": "sgd", "sweep": {"lr": [0.1, 0.01]}, "hyperparameters": {"momentum": 0.9}}
    twin = {**optimizer("sgd", "twin", lr=0.1), "hyperparameters": {"lr": 0.1, "momentum": 0.9}}
    mkor = optimizer("mkor", lr=0.1, base="sgd", momentum=0.9, inverse_update_period=2)
    write(config, "one", block(rates, twin, mkor, target=AIM))
    write(config, "aimless", block(optimizer("sgd", lr=0.1)))
    return load(config)


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(step_time, "ROUNDS", 4)
    monkeypatch.setattr(step_time, "MOST_ROUNDS", 6)
    monkeypatch.setattr(step_time, "ROUND_SECONDS", 0.0001)
    monkeypatch.setattr(step_time, "LOAD_SECONDS", 0.0001)


def names(group: Group) -> list[str]:
    return [contender.name for contender in group.contenders]


def test_every_label_of_an_experiment_with_a_target_is_timed_on_its_own_workload(embedded):
    """Every (experiment, label) once, whatever the workload; the base optimizer twice."""
    timed = [(group, contender) for group in groups(embedded) for contender in group.contenders]
    aimed = {
        (job.experiment, job.label, planned.run.workload, json.dumps(planned.run.spec["workload"], sort_keys=True))
        for job in embedded.jobs
        for planned in job.planned
        if planned.target is not None or job.experiment in step_time.WITHOUT_TARGET
    }
    found = [
        (*label, one.run.workload, json.dumps(one.run.spec["workload"], sort_keys=True))
        for _, one in timed
        if not one.again
        for label in one.labels
    ]
    assert len(found) == len(set(found))
    assert set(found) == aimed
    for group in groups(embedded):
        (again,) = (one for one in group.contenders if one.again)
        assert again.name.removesuffix("_again") in names(group)
        assert again.run.method in {"sgd", "lamb", "adamw"}
    assert not any(one.problem for _, one in timed)


@pytest.mark.parametrize("tier", ["embedded", "evidence"])
def test_the_rounds_on_an_idle_machine_hold_enough_whole_cycles_of_every_optimizer(tier):
    """Even where a turn is as short as it can be: one step, since a step alone fills a round."""
    for group in groups(Plan.load(tier=tier, hardware="test")):
        turns = {one.name: one.steps(1) for one in group.contenders if one.problem is None}
        cycles = {one.name: one.cycle for one in group.contenders if one.cycle <= step_time.LONGEST_CYCLE}
        block = math.lcm(*(cycle // math.gcd(cycle, turns[name]) for name, cycle in cycles.items()))
        assert step_time.ROUNDS // block >= FEWEST_BLOCKS
        assert turns[group.contenders[-1].name] == 1


def test_labels_that_train_alike_share_a_contender(plan):
    (group,) = groups(plan)
    assert names(group) == ["sgd", "mkor", "sgd_again"]
    assert list(group.contenders[0].labels) == [("one", "sgd"), ("one", "twin")]
    assert list(group.contenders[-1].labels) == [("one", "sgd")]
    assert [contender.cycle for contender in group.contenders] == [1, 2, 1]


def test_the_measured_rows_give_times_of_every_label(plan, quick, capsys, monkeypatch):
    monkeypatch.setattr(OtherLoad, "share", lambda self: 0.02)
    table = pd.DataFrame(step_time.measure(plan))
    assert table.groupby("contender")["round"].nunique().to_dict() == {"sgd": 4, "mkor": 4, "sgd_again": 4}
    assert (table["step_ms"] > 0).all()
    assert not table["left_out"].any()
    times = StepTimes(table)
    sgd, twin = (TimedLabel("one", "autoencoder", label) for label in ("sgd", "twin"))
    assert times.blocks(sgd).tolist() == times.blocks(twin).tolist()
    assert times.blocks(sgd, TimedLabel("one", "autoencoder", "mkor", 2)).shape[0] == 2
    assert len(times.aa_tests) == 1
    assert capsys.readouterr().err == ""


def test_busy_rounds_are_left_out_repeated_and_reported(plan, quick, capsys, monkeypatch):
    """Truth: every second window is busy, so that 6 rounds hold 3 idle ones."""
    shares = iter([0.5, 0.01] * 3)
    monkeypatch.setattr(OtherLoad, "share", lambda self: next(shares))
    table = pd.DataFrame(step_time.measure(plan))
    assert table.drop_duplicates("round")["left_out"].tolist() == [True, False] * 3
    assert capsys.readouterr().err == "step_time: autoencoder: busy in 3 of 6 rounds\n"


def test_an_unknown_load_leaves_nothing_out(plan, quick, monkeypatch):
    monkeypatch.setattr(_load, "STAT", _load.STAT / "not_there")
    table = pd.DataFrame(step_time.measure(plan))
    assert table["busy_share"].isna().all()
    assert not table["left_out"].any()


def test_a_workload_without_its_data_is_named(plan, quick, monkeypatch):
    def absent(**_: object) -> None:
        raise DataNotFound("CIFAR-100", "data", "download it")

    monkeypatch.setattr(step_time.workloads, "create", absent)
    table = pd.DataFrame(step_time.measure(plan))
    assert set(table["note"]) == {"CIFAR-100 not found at data; download it"}
    problem = StepTimes(table).problem(TimedLabel("one", "autoencoder", "sgd"))
    assert problem == "step_time.csv has no step of sgd in one (CIFAR-100 not found at data; download it)"


def test_a_long_cycle_is_weighted_from_a_short_one(tmp_path):
    """Only a refresh and the steps between are timed; two different long periods cannot be."""
    config = make_folder(tmp_path / "config")
    both = optimizer("kaisa", lr=0.1, base="sgd", factor_update_period=50, inverse_update_period=50)
    mixed = optimizer("kaisa", "mixed", lr=0.1, base="sgd", factor_update_period=4, inverse_update_period=50)
    write(config, "one", block(both, mixed, target=AIM))
    long, odd, _ = groups(load(config))[0].contenders
    assert (long.cycle, long.problem) == (50, None)
    assert long.timed.hyperparameters["inverse_update_period"] == LONGEST_CYCLE
    assert long.timed.hyperparameters["factor_update_period"] == LONGEST_CYCLE
    assert odd.problem == "its cycle of 100 steps is too long to time"

    class Loop:
        steps = iter(range(100))

        def step(self):
            refreshed = next(self.steps) % LONGEST_CYCLE == 3
            return step_time_of(110.0 if refreshed else 10.0, refreshed)

    assert long.mean_ms(Loop(), LONGEST_CYCLE) == pytest.approx(12.0)  # 10 + 100 / 50


def step_time_of(ms: float, refreshed: bool):
    return type("Step", (), {"total": ms, "refreshed": refreshed})


def test_mkor_h_does_not_switch_while_it_is_timed(embedded):
    hybrids = [one for group in groups(embedded) for one in group.contenders if one.name == "mkor_h"]
    assert len(hybrids) == 2, "of the autoencoder and of BERT"
    for hybrid in hybrids:
        assert hybrid.timed.hyperparameters["warmup_steps"] > 10**6
        assert hybrid.timed.hyperparameters["inverse_update_period"] == hybrid.period


STAT = """cpu  400 0 100 1000 0 0 0 0 0 0
cpu0 100 10 50 300 40 5 5 90 7 0
cpu1 300 0 50 700 0 0 0 0 0 0
intr 12345
"""


def test_cpu_times_are_those_of_this_process_s_cores():
    """Truth: by hand, with 100 ticks a second. Waiting for a disk is idle; time stolen by other machines is busy."""
    assert cpu_time(STAT, [0], 100) == pytest.approx((2.6, 6.0))
    assert cpu_time(STAT, [0, 1], 100) == pytest.approx((6.1, 16.5))


@pytest.mark.parametrize(
    ("busy", "total", "own", "share"), [(3.0, 4.0, 1.0, 0.5), (1.0, 4.0, 1.2, 0.0), (0.0, 0.0, 0.0, None)]
)
def test_what_others_take_is_what_this_process_does_not(busy, total, own, share):
    before = Reading(CpuTime(7.0, 20.0), 3.0)
    assert share_of_others(before, Reading(CpuTime(7.0 + busy, 20.0 + total), 3.0 + own)) == share


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/stat")
def test_the_load_of_this_machine_is_a_share():
    load = OtherLoad()
    sum(range(3_000_000))
    share = load.share()
    assert share is None or 0 <= share <= 1
