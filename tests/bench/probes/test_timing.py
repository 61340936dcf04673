"""Probes of time: contenders take turns, every moment is in one phase, cycles are whole, precision is the model's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, islice

import pytest
import torch

from baselines import available, build
from tests.support.events import Device
from tests.support.small_models import autoencoder, images, tokens
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.probes import (
    _models,
    _ranks,
    _timing,
    iteration_time,
    memory,
    rank1_error,
    scaling,
    spectra,
    step_breakdown,
)
from workflow.bench.probes._models import EXPERIMENTS, PERIOD, VARIANTS, ProbeModel, TimedOptimizer, optimizers
from workflow.bench.probes._timing import (
    PHASES,
    PhaseTimes,
    Round,
    TimedLoop,
    idle_rounds,
    in_groups,
    milliseconds,
    over_ranks,
    rounds,
    watched_rounds,
)
from workflow.bench.probes.iteration_time import OPTIMIZERS, PeriodSweep, summaries, sweeps, timed_jobs
from workflow.bench.probes.step_breakdown import CycleMeans, cycle_means
from workflow.bench.support import load
from workflow.bench.support.load import OtherLoad
from workflow.bench.training.clocks import EventClock

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
    taken: dict[int, list[str]] = {0: [], 1: []}
    for rank in taken:
        list(rounds({name: partial(taken[rank].append, name) for name in "abcdef"}, 5))
    assert taken[0] == taken[1]


@pytest.fixture
def loads(monkeypatch) -> Callable[..., None]:
    """Return a function that plants the loads of successive windows, each of one round."""

    def plant(*shares: float | None) -> None:
        planted = iter(shares)
        monkeypatch.setattr(load, "LOAD_SECONDS", 0.0)
        monkeypatch.setattr(OtherLoad, "share", lambda self: next(planted))

    return plant


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ([0.0, 0.02, 0.01], [0, 1, 2]),
        ([0.0, 0.5, 0.01, 0.02], [0, 2, 3]),
        ([None, None, None], [0, 1, 2]),
        ([0.5, 0.9, 0.01, 0.4, 0.6, 0.7], [2, 3, 0]),
    ],
    ids=["idle", "one is repeated", "unknown", "the least busy of twice as many"],
)
def test_busy_rounds_are_repeated(loads, shares, kept):
    """Truth: by hand, of planted loads. No more rounds are measured than have a load here."""
    loads(*shares)
    counted = count()
    found = idle_rounds({"a": lambda: next(counted)}, 3)
    assert [one.results["a"] for one in found] == kept
    assert [one.busy_share for one in found] == [shares[index] for index in kept]


def test_rounds_that_were_timed_before_count(loads):
    loads(0.01, 0.01)
    first = {share: Round({"a": -1}, share) for share in (0.02, 0.3)}
    assert [one.results["a"] for one in idle_rounds({"a": lambda: 7}, 2, first[0.02])] == [-1, 7]
    loads(0.01, 0.01)
    assert [one.results["a"] for one in idle_rounds({"a": lambda: 7}, 2, first[0.3])] == [7, 7]


def test_short_rounds_share_the_load_of_a_window(loads, monkeypatch):
    """Truth: a clock that advances by 0.3 s a reading, and windows of 0.4 s: two rounds each, and what is left."""
    loads(0.1, 0.2, 0.3)
    monkeypatch.setattr(load, "LOAD_SECONDS", 0.4)
    clock = count()
    monkeypatch.setattr(_timing.time, "perf_counter", lambda: 0.3 * next(clock))
    found = list(watched_rounds({"a": int}, 5))
    assert [one.busy_share for one in found] == [0.1, 0.1, 0.2, 0.2, 0.3]


def test_a_time_is_that_of_one_call(monkeypatch):
    clock = iter([10.0, 10.6])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    called = []
    assert milliseconds(lambda: called.append(1), CPU, calls=3) == pytest.approx(200.0)
    assert len(called) == 3


def times(refreshed: bool, **ms: float) -> PhaseTimes:
    return PhaseTimes(refreshed, {**dict.fromkeys(PHASES, 0.0), **ms})


@pytest.mark.parametrize("model", [images(), tokens(), autoencoder()], ids=lambda model: model.name)
@pytest.mark.parametrize("label", ["base", "eva", "hylo", *VARIANTS])
def test_the_phases_of_a_step_add_up_to_its_time(model, label):
    (optimizer,) = optimizers(model, 1e-4, [label])
    loop = TimedLoop(model, optimizer, "cpu")
    start = time.perf_counter()
    steps = [loop.step() for _ in range(3)]
    elapsed = 1000 * (time.perf_counter() - start)
    assert 0 < sum(step.total for step in steps) <= elapsed
    for phase in ("forward", "backward", "update"):
        assert all(step.ms[phase] > 0 for step in steps)
    second_order = label != "base"
    assert (steps[0].ms["precondition"] > 0) is second_order
    assert (steps[0].ms["capture"] > 0) is second_order
    assert all((step.ms["factor"] > 0) is (second_order and (label == "eva" or k == 0)) for k, step in enumerate(steps))


@pytest.mark.parametrize(("period", "refreshes"), [(1, 10), (10, 1), (1000, 0)])
@pytest.mark.parametrize("label", ["mkor", "kaisa", "hylo"])
def test_timed_steps_hold_a_cycle_s_refreshes(label, period, refreshes):
    """Ten successive steps hold one cycle, wherever they start; the first step of all is warm-up."""
    loop = TimedLoop(autoencoder(), *optimizers(autoencoder(), 1e-4, [label], period), "cpu", by_phase=False)
    for _ in range(3):
        steps = loop.times(PERIOD)
        assert sum(step.refreshed for step in steps) == refreshes
        assert all(math.isfinite(step.total) and step.total > 0 for step in steps)


def test_means_over_steps_and_over_ranks():
    """Truth: by hand, 1 step of 10 ms and 4 of 1 ms; and two ranks of 4 ms and none."""
    steps = [times(True, factor=10.0), *[times(False, factor=1.0)] * 4]
    assert cycle_means(steps, "factor") == CycleMeans(10.0, 1.0, 2.8)
    assert math.isnan(cycle_means(steps[1:], "factor").refresh_ms)
    assert over_ranks([[times(True, factor=4.0)], [times(True, factor=0.0)]]) == [times(True, factor=2.0)]


def test_a_timing_on_the_cpu_waits_for_no_gpu(monkeypatch):
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("used a GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr(torch.cuda, "Event", fail)
    model = autoencoder()
    (optimizer,) = optimizers(model, 1e-4, ["mkor"])
    for by_phase in (True, False):
        assert TimedLoop(model, optimizer, "cpu", by_phase=by_phase).step().total > 0


@pytest.mark.parametrize("by_phase", [True, False])
def test_timed_steps_are_queued_on_a_gpu_without_a_wait(monkeypatch, by_phase):
    """Truth: a device that works 5 ms in every phase. The host waits at the end, for the last event of each step."""
    device = Device()

    class Busy(EventClock):
        def switch(self, phase: str | None) -> None:
            device.launch(0.005)
            super().switch(phase)

    monkeypatch.setattr(_timing, "clock_of", lambda _, per_layer: Busy(per_layer=per_layer, make_event=device.event))
    model = autoencoder()
    (optimizer,) = optimizers(model, 1e-4, ["mkor"])
    loop = TimedLoop(model, optimizer, "cpu", by_phase=by_phase)
    assert (loop.step().ms["capture"] >= 5) is by_phase
    device.waits.clear()
    steps = loop.times(2)
    assert device.waits == [device.recorded] * 2
    own = dict.fromkeys(("forward", "backward", "update"), 5.0)
    if by_phase:
        assert all(step.ms["precondition"] >= 5 and step.ms["backward"] >= 5 for step in steps)
    else:
        assert [step.ms for step in steps] == [dict.fromkeys(PHASES, 0.0) | own] * 2


def test_groups_share_a_cpu_and_have_a_gpu_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    groups = [list(in_groups([1, 2, 3], device, lambda group: [list(group)])) for device in ("cpu", "cuda")]
    assert groups == [[[1, 2, 3]], [[1], [2], [3]]]


def test_two_workers_share_a_batch_and_communicate():
    """Every phase of every optimizer, on two ranks; only second-order methods communicate on their own account."""
    model, repeats = images(), 2
    chosen = optimizers(model, 1e-4, step_breakdown.OPTIMIZERS)
    ranks = _ranks.run(2, step_breakdown.cycles, model, chosen, "cpu", repeats)
    rows = list(step_breakdown.rows(model, chosen, ranks, "test-cpu"))
    assert {row.workers for row in rows} == {2}
    assert {(row.optimizer, row.repeat, row.phase) for row in rows} == {
        (optimizer.label, repeat, phase) for optimizer in chosen for repeat in range(repeats) for phase in PHASES
    }
    communicating = {row.optimizer for row in rows if row.phase == "communication" and row.ms > 0}
    assert communicating == {"mkor", "kaisa", "eva", "hylo"}
    measured = {(row.optimizer, row.inverse_update_period) for row in rows if row.estimate == "measured"}
    assert measured == {("sgd", None), ("eva", None), ("mkor", 10), ("kaisa", 10), ("hylo", 10)}
    combined = {(row.optimizer, row.inverse_update_period) for row in rows if row.estimate == "combined"}
    assert combined == {("kaisa", 50), ("hylo", 50)}


@pytest.mark.parametrize("label", sorted({*available()} - {*step_breakdown.OPTIMIZERS}))
def test_any_other_method_can_be_measured(label):
    model = images()
    chosen = optimizers(model, 1e-4, [label])
    rows = list(step_breakdown.rows(model, chosen, [step_breakdown.cycles(model, chosen, "cpu", 1)], "test-cpu"))
    assert [(row.optimizer, row.phase) for row in rows] == [(label, phase) for phase in PHASES]
    assert all(row.ms > 0 for row in rows if row.phase in ("forward", "backward", "update"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Plan:
    return Plan.load(tier="embedded", results=str(tmp_path_factory.mktemp("results")), hardware="test-cpu")


@pytest.fixture(scope="module")
def kaisa() -> PeriodSweep:
    data = workloads.create("autoencoder", batch_size=8, hidden=[4])
    values = {"base": "sgd", "lr": 0.1, "inverse_update_period": 10, "factor_update_period": 5}
    return PeriodSweep(ProbeModel("small", data, "sgd", 0.1), "kaisa", "kaisa", {10: values})


def test_long_periods_take_a_refresh_at_its_true_share():
    """Truth: 1 refresh of 110 ms in p steps, the others 10 ms, is 10 + 100 / p."""
    every = [times(True, forward=120.0), times(True, forward=100.0)]
    cycle = [times(True, forward=110.0), *[times(False, forward=12.0)] * 9]
    between = [times(False, forward=9.0), times(False, forward=11.0)]
    assert summaries(every, cycle, between) == {
        1: (2, pytest.approx(110.0), 110.0, "measured"),
        10: (10, pytest.approx(21.8), 12.0, "measured"),
        100: (3, pytest.approx(11.0), 10.0, "combined"),
        1000: (3, pytest.approx(10.1), 10.0, "combined"),
    }


def test_a_period_outside_the_experiment_takes_the_nearest_one_s_hyperparameters(kaisa):
    by_period = {1: {"lr": 1.0, "factor_update_period": 1}, 100: {"lr": 1.0, "factor_update_period": 10}}
    sweep = PeriodSweep(kaisa.model, "kaisa", "kaisa", by_period)
    for period, of_factors in ((1, 1), (100, 10), (1000, 10)):
        values = sweep.at(period).hyperparameters
        assert (values["factor_update_period"], values["inverse_update_period"]) == (of_factors, period)


def test_the_experiments_optimizers_are_timed_as_they_are_trained(plan):
    """Every optimizer of the inversion experiments with its own settings, and MKOR's released rule too."""
    by_name = {(sweep.model.name, sweep.label): sweep for sweep in sweeps(plan, OPTIMIZERS)}
    for model in iteration_time.EXPERIMENTS.values():
        assert {(model, label) for label in ("kaisa", "mkor")} <= set(by_name)
    run = plan.job("autoencoder_inversion", "kaisa").runs[0]
    timed = by_name["autoencoder", "kaisa"].at(run.hyperparameters["inverse_update_period"]).hyperparameters
    assert {**timed, "lr": 100 * timed["lr"]} == {**run.hyperparameters, "lr": pytest.approx(run.hyperparameters["lr"])}
    released = by_name["autoencoder", "mkor_released"].at(10)
    exact = by_name["autoencoder", "mkor"].at(10)
    assert released.hyperparameters == {**exact.hyperparameters, "update_rule": "released"}
    assert (exact.update_rule, released.update_rule) == ("sherman_morrison", "released")
    wide = by_name["wide_autoencoder", "mkor"].model.data.model(seed=0)
    narrow = by_name["autoencoder", "mkor"].model.data.model(seed=0)
    assert sum(p.numel() for p in wide.parameters()) > 4 * sum(p.numel() for p in narrow.parameters())


def test_a_label_that_differs_in_the_factors_decay_alone_is_not_timed_again(plan):
    """Truth: `kaisa_equal_memory` takes the steps of `kaisa`; without `kaisa` it would be timed."""
    jobs = plan.experiments["autoencoder_inversion"].jobs
    assert list(jobs) == ["kaisa", "mkor", "kaisa_equal_memory", "mkor_equal_memory"]
    assert list(timed_jobs(jobs)) == ["kaisa", "mkor"]
    assert list(timed_jobs({label: job for label, job in jobs.items() if label != "kaisa"})) == [
        "mkor",
        "kaisa_equal_memory",
    ]


def test_other_methods_with_a_period_can_be_timed(plan):
    """HyLo's period has another name; Eva and first-order optimizers have none."""
    labels = {sweep.label for sweep in sweeps(plan, ["hylo", "mkor_h", "eva", "adamw"])}
    assert labels == {"kaisa", "mkor", "hylo", "mkor_h"}
    (hylo, *_) = (sweep for sweep in sweeps(plan, ["hylo"]) if sweep.label == "hylo")
    assert hylo.at(100).hyperparameters["update_period"] == 100


def test_kaisa_s_factor_updates_fit_into_a_timed_cycle(plan):
    """Else the steps between two refreshes would hold too many or too few of them."""
    for experiment in iteration_time.EXPERIMENTS:
        for run in plan.job(experiment, "kaisa").runs:
            assert iteration_time.CYCLE % (run.hyperparameters["factor_update_period"] or 1) == 0


def test_every_period_of_every_optimizer_has_a_row_in_every_repeat(kaisa):
    rows = list(iteration_time.rows([kaisa], "cpu", "test-cpu", repeats=2))
    assert [(row.repeat, row.inverse_update_period) for row in rows] == [
        (repeat, period) for repeat in range(2) for period in (1, 10, 100, 1000)
    ]
    assert {(row.workload, row.optimizer, row.hardware) for row in rows} == {("small", "kaisa", "test-cpu")}
    assert all(0 < row.iteration_ms < 1000 for row in rows)


def test_a_tier_s_probes_have_the_precision_of_its_experiments(tmp_path):
    """Truth: the experiments' files."""
    at = {tier: Plan.load(tier=tier, results=str(tmp_path), hardware="here") for tier in ("embedded", "single_gpu")}
    at_gpu = {model.name: model.precision for model in _models.probe_models(at["single_gpu"])}
    assert at_gpu == {"bert": "bfloat16", "resnet": "float32"}
    assert {_models.precision_of(at["embedded"], name) for name in EXPERIMENTS} == {"float32"}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_timed_loop_trains_in_its_model_s_precision(precision):
    """Truth: a loop written out, with autocast and, for float16, torch's scaler."""
    model = replace(autoencoder(), precision=precision)
    (optimizer,) = optimizers(model, 1e-2, ["mkor"])
    loop = TimedLoop(model, optimizer, "cpu")
    loop.times(3)

    network = model.data.model(seed=0)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")
    bare, _ = build(optimizer.method, network, optimizer.hyperparameters, grad_scale=scaler)
    for step in range(5):
        with torch.autocast("cpu", getattr(torch, precision)):
            loss = model.data.loss(network, next(islice(model.data.batches(seed=0), step % 4, None)))
        bare.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(bare)
        scaler.update()
    for name, weight in network.state_dict().items():
        assert torch.equal(loop.model.state_dict()[name], weight), name


def mkor(model: ProbeModel) -> list[TimedOptimizer]:
    return optimizers(model, 1e-4, ["mkor"])


def breakdown(model: ProbeModel) -> Iterator[object]:
    return step_breakdown.rows(model, mkor(model), [step_breakdown.cycles(model, mkor(model), "cpu", 1)], "here")


def sweep(model: ProbeModel) -> Iterator[object]:
    by_period = {10: mkor(model)[0].hyperparameters}
    return iteration_time.rows([PeriodSweep(model, "mkor", "mkor", by_period)], "cpu", "here", repeats=1)


PROBES: dict[str, Callable[[ProbeModel], Iterator[object]]] = {
    "rank1_error": lambda model: rank1_error.follow(model, 0, (0,), "cpu", "here"),
    "spectra": lambda model: spectra.follow(model, 0, (0,), "cpu", "here"),
    "step_breakdown": breakdown,
    "memory": lambda model: iter(memory.rows(model, mkor(model)[0], "cpu", "here")),
    "scaling": lambda model: scaling.rows(model, mkor(model), "cpu", "here", (1,), repeats=1),
    "iteration_time": sweep,
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_trains_in_and_records_its_model_s_precision(name, monkeypatch):
    model = replace(autoencoder(), precision="bfloat16")
    seen = set()
    loss_of = model.data.loss

    def watched(network, batch):
        seen.add(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        return loss_of(network, batch)

    monkeypatch.setattr(model.data, "loss", watched)
    assert {row.precision for row in PROBES[name](model)} == {"bfloat16"}
    assert seen == {torch.bfloat16}
