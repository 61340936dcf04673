"""The step-time probe: what it times, a real measurement of a small experiment, and the load of other processes."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.support.experiments import block, load, make_folder, optimizer, write
from workflow.bench.analysis.step_times import FEWEST_BLOCKS, StepTimes, TimedLabel
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.probes import step_time
from workflow.bench.probes._timing import PhaseTimes, TimedLoop
from workflow.bench.probes.step_time import LONGEST_CYCLE, Contender, Label, groups, work_of
from workflow.bench.support import load as machine_load
from workflow.bench.support.config import ConfigError
from workflow.bench.support.load import OtherLoad

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
    monkeypatch.setattr(step_time, "TURN_MS", 0.0001)
    monkeypatch.setattr(machine_load, "LOAD_SECONDS", 0.0)


def names(group: list[Contender]) -> list[str]:
    return [next(iter(one.labels)).label + ("_again" if one.again else "") for one in group]


def what(run: Run) -> tuple[str, str]:
    """Return what a run trains on, and the work of its step."""
    return json.dumps(run.spec["workload"], sort_keys=True), work_of(run.spec)


def test_every_label_of_an_experiment_with_a_target_is_timed_on_its_own_workload(embedded):
    """Every run of every (experiment, label) once, whatever the workload; the base optimizer twice."""
    timed = [one for group in groups(embedded) for one in group]
    aimed = Counter(
        (job.experiment, job.label, *what(planned.run))
        for job in embedded.jobs
        for planned in job.planned
        if planned.target is not None or job.experiment in step_time.WITHOUT_TARGET
    )
    found = [
        ((label.experiment, label.label, *what(one.run)), runs)
        for one in timed
        if not one.again
        for label, runs in one.labels.items()
    ]
    assert Counter(dict(found)) == aimed
    assert len(found) == len(aimed)
    for group in groups(embedded):
        (again,) = (one for one in group if one.again)
        assert len({one.key for one in group}) == len(group)
        assert names(group)[-1].removesuffix("_again") in names(group)
        assert again.run.method in {"sgd", "lamb", "adamw"}
    assert not any(one.problem for one in timed)


@pytest.mark.parametrize("tier", ["embedded", "evidence", "field"])
def test_a_turn_has_whole_cycles_and_is_equally_long_for_all_optimizers_of_a_workload(tier):
    """Where cycles are no multiples of each other, turns are as near as whole cycles allow: within one cycle."""
    assert step_time.ROUNDS >= FEWEST_BLOCKS
    for group in groups(Plan.load(tier=tier, hardware="test")):
        fewest = max(one.timed_cycle for one in group)
        for one in group:
            assert one.steps(fewest) % one.timed_cycle == 0
            assert fewest <= one.steps(fewest) < fewest + one.timed_cycle
        assert {one.steps(fewest) for one in group if fewest % one.timed_cycle == 0} == {fewest}


@pytest.mark.parametrize("experiment", step_time.ITERATIONS_ALONE)
def test_an_experiment_without_a_comparison_of_times_may_train_a_label_on_several_variants(tmp_path, plan, experiment):
    """Truth: the contenders of the same plan without the experiment."""
    variants = [block(optimizer("sgd", lr=0.1), target=AIM) for _ in range(2)]
    for size, variant in enumerate(variants, 16):
        variant["workload"] |= {"batch_size": size}
    write(tmp_path / "config", experiment, *variants)
    both = load(tmp_path / "config")
    assert experiment in both.experiments
    assert [names(group) for group in groups(both)] == [names(group) for group in groups(plan)]


def test_labels_that_train_alike_share_a_contender(plan):
    (group,) = groups(plan)
    assert names(group) == ["sgd", "mkor", "sgd_again"]
    sgd, twin = (Label("one", label, "autoencoder", None) for label in ("sgd", "twin"))
    assert group[0].labels == {sgd: 2, twin: 1}
    assert group[-1].labels == {sgd: 2}
    assert [contender.cycle for contender in group] == [1, 2, 1]


@pytest.fixture
def by_work(monkeypatch) -> None:
    """Steps whose time is planted: 1 ms over SGD, 4 ms over LAMB, and 2 ms more with a clip."""

    class Loop:
        def __init__(self, model, optimizer, device, *, by_phase):
            given = optimizer.hyperparameters
            self.ms = 4.0 if "lamb" in (optimizer.method, given.get("base")) else 1.0
            self.ms += 2.0 * bool(given.get("kl_clip"))

        def times(self, steps):
            return [PhaseTimes(False, {"update": self.ms})] * steps

    monkeypatch.setattr(step_time, "TimedLoop", Loop)
    monkeypatch.setattr(OtherLoad, "share", lambda self: 0.0)


def test_the_steps_after_another_optimizers_turn_do_not_count(tmp_path, quick, monkeypatch):
    """Truth: planted times. A step takes 1 ms over SGD and 2 ms with MKOR, and the first two of a turn 3 ms more."""

    class Loop(TimedLoop):
        last: Loop | None = None

        def __init__(self, model, optimizer, device, *, by_phase):
            self.ms, self.done = 2.0 if optimizer.method == "mkor" else 1.0, 0

        def _clocked_step(self):
            self.done = self.done + 1 if Loop.last is self else 1
            Loop.last = self
            ms = self.ms + 3.0 * (self.done <= 2)
            return False, SimpleNamespace(nanoseconds=Counter(update=1e6 * ms))

    monkeypatch.setattr(step_time, "TimedLoop", Loop)
    monkeypatch.setattr(OtherLoad, "share", lambda self: 0.0)
    config = make_folder(tmp_path / "config")
    mkor = optimizer("mkor", base="sgd", inverse_update_period=5)
    write(config, "one", block(optimizer("sgd"), mkor, target=AIM))
    table = pd.DataFrame(step_time.measure(load(config)))
    assert set(table["steps"]) == {5}
    assert table.groupby("optimizer")["step_ms"].unique().map(list).to_dict() == {"mkor": [2.0], "sgd": [1.0]}


def test_one_label_over_two_bases_is_timed_over_each(tmp_path, quick, by_work):
    """Truth: planted times. Both experiments train one workload, and `mkor` stands in both."""
    config = make_folder(tmp_path / "config")
    for base in ("sgd", "lamb"):
        write(
            config,
            f"over_{base}",
            block(optimizer(base, lr=0.1), optimizer("mkor", base=base, inverse_update_period=1), target=AIM),
        )
    plan = load(config)
    table = pd.DataFrame(step_time.measure(plan))
    times = StepTimes(table)
    for base, ms in {"sgd": 1.0, "lamb": 4.0}.items():
        label = TimedLabel(f"over_{base}", "autoencoder", "mkor", 1)
        assert times.mean(label) == times.mean(TimedLabel(f"over_{base}", "autoencoder", base)) == ms
        (run,) = table.loc[(table["experiment"] == f"over_{base}") & (table["optimizer"] == "mkor"), "run"].unique()
        assert plan.runs[run].hyperparameters["base"] == base


def test_two_experiments_share_no_measurement_even_of_one_run(tmp_path):
    config = make_folder(tmp_path / "config")
    for name in ("one", "two"):
        write(config, name, block(optimizer("sgd"), target=AIM))
    (group,) = groups(load(config))
    found = [(experiment, again) for experiment, _, again in (one.key for one in group)]
    assert found == [("one", False), ("two", False), ("one", True)]
    assert len({one.run.id for one in group}) == 1


def test_a_label_whose_runs_take_different_steps_has_their_mean(tmp_path, quick, by_work):
    """Truth: by hand. Of KAISA's three runs two clip, at 3 ms, and one does not, at 1 ms."""
    config = make_folder(tmp_path / "config")
    kaisa = optimizer("kaisa", base="sgd", inverse_update_period=1, factor_update_period=1)
    clips = {**kaisa, "sweep": {"kl_clip": [None, 1e-3, 1e-2]}}
    write(config, "one", block(optimizer("sgd", lr=0.1), clips, target=AIM))
    table = pd.DataFrame(step_time.measure(load(config)))
    of_kaisa = table[table["optimizer"] == "kaisa"].drop_duplicates("run")
    assert dict(zip(of_kaisa["step_ms"], of_kaisa["runs"], strict=True)) == {1.0: 1, 3.0: 2}
    assert StepTimes(table).mean(TimedLabel("one", "autoencoder", "kaisa", 1)) == pytest.approx(7 / 3)


def test_a_label_on_two_variants_of_a_workload_is_refused(tmp_path):
    config = make_folder(tmp_path / "config")
    small = block(optimizer("sgd", lr=0.1), target=AIM)
    large = {**small, "workload": {**small["workload"], "batch_size": 2 * small["workload"]["batch_size"]}}
    write(config, "one", small, large)
    with pytest.raises(ConfigError, match="label 'sgd' trains on two variants of autoencoder"):
        groups(load(config))


def test_the_measured_rows_give_times_of_every_label(plan, quick, capsys, monkeypatch):
    monkeypatch.setattr(OtherLoad, "share", lambda self: 0.02)
    table = pd.DataFrame(step_time.measure(plan))
    assert table.groupby(["run", "again"])["round"].nunique().tolist() == [4, 4, 4]
    assert set(table["run"]) <= set(plan.runs)
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
    monkeypatch.setattr(machine_load, "STAT", machine_load.STAT / "not_there")
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
    long, odd, _ = groups(load(config))[0]
    assert (long.cycle, long.problem) == (50, None)
    assert long.timed.hyperparameters["inverse_update_period"] == LONGEST_CYCLE
    assert long.timed.hyperparameters["factor_update_period"] == LONGEST_CYCLE
    assert odd.problem == "its cycle of 100 steps is too long to time"

    class Loop:
        def times(self, steps):
            refreshes = [step % LONGEST_CYCLE == 3 for step in range(steps)]
            return [PhaseTimes(refreshed, {"update": 110.0 if refreshed else 10.0}) for refreshed in refreshes]

    steps, step_ms = long.turn(Loop(), LONGEST_CYCLE)
    assert steps == LONGEST_CYCLE
    assert step_ms == pytest.approx(12.0)  # 10 + 100 / 50


def test_mkor_h_does_not_switch_while_it_is_timed(embedded):
    hybrids = [one for group in groups(embedded) for one in group if one.run.method == "mkor_h"]
    assert len(hybrids) == 2, "of the autoencoder and of BERT"
    for hybrid in hybrids:
        assert hybrid.timed.hyperparameters["warmup_steps"] > 10**6
        assert hybrid.timed.hyperparameters["inverse_update_period"] == hybrid.period
