"""The benchmark of steps: its contenders, its arithmetic on times made by hand, and a small run of the command."""

from __future__ import annotations

import math
from functools import partial
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from torch import nn

from baselines import available
from benchmarks import contenders, steps, whole_steps
from benchmarks.contenders import OptimizerContender, Times
from benchmarks.methods import ON_REQUEST, VARIANTS, labels, methods
from benchmarks.models import BLOCKS, EncoderBlock, alexnet_head, narrowed, resnet50
from benchmarks.step_rows import ADAMW, CONTROL, FORWARD_BACKWARD, PERIODS, SGD, MeasuredStep, rows, summary
from tests.support import events
from workflow.bench.probes._models import resnet50 as torchvision_resnet50
from workflow.bench.support.config import CONFIG, read_mapping
from workflow.bench.training.clocks import Clock, EventClock

CPU = torch.device("cpu")
BERT, ALEXNET, RESNET = BLOCKS


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    kinds = (nn.Linear, nn.Conv2d, nn.BatchNorm2d)
    return sorted(tuple(module.weight.shape) for module in model.modules() if isinstance(module, kinds))


def test_every_optimizer_is_a_contender():
    assert {method.label for method in methods()} == {*available(), *VARIANTS} - {*ON_REQUEST}
    blocks = read_mapping(CONFIG / "experiments" / "field_autoencoder.yaml")["tiers"]["field"]
    assert {*ON_REQUEST} <= {entry["name"] for block in blocks for entry in block["optimizers"]}
    assert {label for label in labels() if label.startswith("mkor_w")} == {"mkor_w4", "mkor_w16", "mkor_w64"}


def test_blocks_have_the_published_layers():
    with torch.device("meta"):
        bert, head, resnet, published = BERT.make(1024), alexnet_head(4096), resnet50(), torchvision_resnet50()
    assert shapes(bert) == sorted([(1024, 1024)] * 4 + [(4096, 1024), (1024, 4096)])
    assert shapes(head) == sorted([(4096, 256), (4096, 4096), (100, 4096)])
    assert shapes(resnet) == shapes(published)
    assert [block.widths[-1] for block in BLOCKS] == [1024, 4096, 64]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_takes_its_batches(block: EncoderBlock):
    narrow = narrowed(block, 4)
    model = narrow.make(narrow.widths[0])
    assert model(narrow.few(narrow.widths[0])).isfinite().all()
    assert model(narrow.batch(narrow.widths[0])).isfinite().all()


class Alternating(torch.optim.SGD):
    """SGD of which every second step, from the first or the second one on, takes 5 ms and the others 1 ms."""

    def __init__(self, parameters, updates_first: bool) -> None:
        super().__init__(parameters, lr=1e-3)
        self.number, self.updates_first, self.latest = 0, updates_first, 0.0

    def step(self, closure=None):
        self.number += 1
        self.latest = 5.0 if (self.number % 2 == 1) is self.updates_first else 1.0

    def clocked(self, call, device, calls=1) -> float:
        call()
        return self.latest


@pytest.mark.parametrize("updates_first", [True, False])
def test_a_turn_tells_updates_from_plain_steps(monkeypatch, updates_first):
    model = nn.Linear(3, 2)
    optimizer = Alternating(model.parameters(), updates_first)
    monkeypatch.setattr("benchmarks.contenders._timing.milliseconds", optimizer.clocked)
    make = partial(OptimizerContender, model, torch.randn(4, 3), optimizer)
    contender = make(alternates=True)
    contender.warm_up()
    assert contender.turn() == Times(5.0, 1.0)
    assert contender.cycle_ms == 6.0
    assert make(alternates=False).turn() == Times(3.0, 3.0)


def test_every_step_of_a_contender_has_fresh_gradients_and_statistics():
    (method,) = methods(["mkor"])
    contender = contenders.of_method(method, narrowed(BERT, 8), 16, CPU)
    assert isinstance(contender, OptimizerContender)
    before = contender.preconditioner.state_dict()["step"]
    contender.turn()
    after = contender.preconditioner.state_dict()
    assert after["step"] == before + 2
    assert contender.preconditioner.method.inverse_update_period == 2


def test_a_period_has_one_update():
    """Truth: 10 ms and 9 steps of 1 ms are 1.9 ms a step."""
    assert Times(10.0, 1.0).amortized(10) == pytest.approx(1.9)
    assert Times(10.0, 1.0).amortized(1) == 10.0


def measured(width: int, factor: float = 1.0) -> MeasuredStep:
    rounds = [1.0, 2.0, 4.0]
    times = {
        SGD: [Times(t, t) for t in rounds],
        CONTROL: [Times(1.5 * t, 1.5 * t) for t in rounds],
        "mkor": [Times(20 * factor * t, 2 * factor * t) for t in rounds],
        FORWARD_BACKWARD: [Times(4 * t, 4 * t) for t in rounds],
    }
    return MeasuredStep("bert", width, times, {"mkor": 7}, {"soap": "left out: slow"})


def test_ratios_are_taken_within_rounds():
    """Truth: the machine's speed changes by a factor of 4 from round to round, and no ratio with it."""
    table = list(rows([measured(8), measured(16, factor=8.0)], CPU, "test-cpu"))
    by_key = {(row.width, row.optimizer, row.period): row for row in table}
    mkor = by_key[8, "mkor", 10]
    assert (mkor.of_sgd, mkor.of_sgd_low, mkor.of_sgd_high) == pytest.approx((3.8, 3.8, 3.8))
    assert by_key[8, "mkor", 1].of_sgd == pytest.approx(20.0)
    assert mkor.of_forward_backward == pytest.approx(0.95)
    assert (mkor.update_ms, mkor.plain_ms, mkor.rounds, mkor.state_bytes) == (40.0, 4.0, 3, 7)
    assert math.isnan(mkor.of_adamw)
    assert math.isnan(mkor.slope)
    assert by_key[16, "mkor", 10].slope == pytest.approx(3.0)
    assert by_key[16, SGD, 10].slope == pytest.approx(0.0)
    assert by_key[8, CONTROL, 1].reference == SGD
    soap = by_key[8, "soap", 10]
    assert (soap.rounds, soap.note) == (0, "left out: slow")
    assert [key[2] for key in by_key if key[:2] == (8, FORWARD_BACKWARD)] == [PERIODS[0]]


def test_a_control_that_differs_from_itself_is_told():
    lines = list(summary(list(rows([measured(8)], CPU, "test-cpu"))))
    assert any("not quiet" in line and "1.500" in line for line in lines)
    quiet = measured(8)
    quiet.times[CONTROL] = list(reversed(quiet.times[SGD]))
    assert any("control passed" in line for line in summary(list(rows([quiet], CPU, "test-cpu"))))


def test_dear_contenders_have_fewer_rounds(monkeypatch):
    """A fifth of the time is kept for the cheap, even if the dear took all of it."""
    clock = [0.0]

    def turn(seconds: float) -> Times:
        clock[0] += seconds
        return Times(1.0, 1.0)

    monkeypatch.setattr("benchmarks.steps._timing.now", lambda device: clock[0])
    turns = {"dear": partial(turn, 10.0), "cheap": partial(turn, 0.1), "middle": partial(turn, 1.0)}
    for seconds, rounds in ((45.0, (3, 15, 3)), (50.0, (3, 15, 15)), (20.0, (3, 15, 3)), (0.0, (3, 3, 3))):
        times = steps.in_rounds(turns, seconds, CPU)
        assert tuple(len(times[label]) for label in turns) == rounds, seconds


def test_the_dearest_optimizers_are_left_out_where_time_would_not_suffice():
    """Truth: 4 cycles (11, 22 and 44 ms) at four times the width take 1.408, 2.816 and 5.632 s."""
    times = {label: [Times(10.0 * k, 1.0 * k)] * 3 for label, k in (("eva", 2), ("sgd", 1), ("mkor", 4), (SGD, 9))}
    small = MeasuredStep("bert", 8, times, left_out={"soap": "why", "lamb": f"{steps.TOO_LATE} 1 s"})
    chosen = ["mkor", "sgd", "soap", "eva", "lamb"]
    left_out = steps.unaffordable(chosen, 32, 4.3, small)
    assert list(left_out) == ["soap", "mkor"]
    assert left_out["soap"] == "why"
    assert left_out["mkor"] == (
        "left out from width 32 on: by its time at width 8 it would take 6 s, and this width has 4 s for all"
    )
    assert list(steps.unaffordable(chosen, 32, 4.2, small)) == ["soap", "eva", "mkor"]
    assert list(steps.unaffordable(chosen, 32, 9.9, small)) == ["soap"]


def test_an_optimizer_is_left_out_if_it_is_too_slow_or_fails_and_a_reference_never(monkeypatch):
    contender = contenders.of_torch(narrowed(BERT, 16), 8, CPU, contenders.FOREACH_SGD)
    assert steps._warm_up("sgd", contender, 10.0, 5.0) is None
    assert steps._warm_up("sgd", contender, 1e-9, 5.0).startswith("left out: an update and a plain step took")
    assert steps._warm_up("sgd", contender, 10.0, 0.0) == (
        "left out: the optimizers before it took the 10 s of this width"
    )
    assert steps._warm_up(SGD, contender, 1e-9, 0.0) is None

    def fail(contender: OptimizerContender) -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr(OptimizerContender, "warm_up", fail)
    assert steps._warm_up("sgd", contender, 10.0, 5.0) == "failed: no such kernel"
    monkeypatch.setattr(OptimizerContender, "warm_up", lambda contender: torch.linalg.inv(torch.zeros(2, 2)))
    assert steps._warm_up("sgd", contender, 10.0, 5.0).startswith("left out: a decomposition did not converge: ")


def test_an_optimizer_without_a_time_at_the_smaller_width_comes_last():
    small = MeasuredStep("bert", 4, {"sgd": [Times(1e-3, 1e-3)] * 3}, left_out={"eva": f"{steps.TOO_LATE} 1 s"})
    measured = steps.measure_width(narrowed(BERT, 16), 8, methods(["eva", "sgd"]), CPU, 1.0, small)
    assert [label for label in measured.times if label in ("eva", "sgd")] == ["sgd", "eva"]


def test_what_is_left_out_is_not_timed():
    measured = steps.measure_width(narrowed(BERT, 16), 8, methods(["sgd"]), CPU, 1e-9, None)
    assert list(measured.left_out) == ["sgd"]
    assert set(measured.times) == {SGD, CONTROL, ADAMW, FORWARD_BACKWARD}
    assert labels()[0] == "mkor"
    assert labels()[-1] == "soap"


def test_the_command_writes_a_table_and_a_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(steps, "ROUNDS", (2, 2))
    arguments = ["--quick", "--models", "bert", "--optimizers", "mkor", "eva", "--out", str(tmp_path)]
    assert steps.main(arguments) == 0
    table = pd.read_csv(tmp_path / "steps.csv")
    assert set(table["optimizer"]) >= {SGD, CONTROL, "mkor", "eva", FORWARD_BACKWARD}
    assert set(table["block"]) == {"bert", "factor"}
    assert table["hardware"].notna().all()
    assert (tmp_path / "steps.png").stat().st_size > 10_000
    said = capsys.readouterr().out
    assert "bert, width 64" in said
    assert "mkor" in said


class Loop:
    """Steps that take 2 ms of the host, and then 5 ms of the device."""

    def __init__(self, device: events.Device) -> None:
        self.device, self.steps, self.optimizer = device, 0, torch.optim.SGD([torch.zeros(1)])

    def train_step(self, clock: Clock) -> None:
        clock.start("forward")
        clock.switch("update")
        self.steps += 1
        self.device.works_on_host(2e-3)
        self.device.launch(5e-3)
        clock.stop()


def test_whole_steps_are_timed_by_the_device_without_a_wait_and_the_host_from_an_idle_one(monkeypatch):
    """Truth: a device that takes 5 ms for what the host issues in 2, as set; a synchronized step would take 7."""
    device = events.Device()
    monkeypatch.setattr("workflow.bench.training.clocks.perf_counter_ns", lambda: round(1e9 * device.host))
    idle: list[int] = []

    def wait(_: torch.device) -> float:
        idle.append(loop.steps)
        device.host = max(device.host, device.idle_from)
        return device.host

    monkeypatch.setattr("benchmarks.whole_steps._timing.now", wait)
    loop = Loop(device)
    times = whole_steps.turn(loop, CPU, lambda _: EventClock(make_event=device.event))
    assert (times.ms, times.host_ms, times.host_update_ms) == pytest.approx((5.0, 2.0, 2.0))
    streamed = whole_steps.WARM_UP + whole_steps.PERIOD
    assert device.waits == [2]  # once both events were recorded
    assert idle == [streamed + k for k in range(whole_steps.PERIOD)]


def test_whole_models_are_timed_beside_their_base(monkeypatch):
    monkeypatch.setattr(whole_steps, "ROUNDS", (2, 2))
    monkeypatch.setattr(whole_steps, "PERIOD", 2)
    makers = [whole_steps.small_models()["resnet"]]
    table = list(whole_steps.measure(makers, methods(["mkor_w4", "adamw"]), CPU, "test-cpu", 1.0))
    assert [row.optimizer for row in table] == [whole_steps.BASE, whole_steps.AGAIN, "mkor_w4", "adamw"]
    assert all(row.rounds == 2 and row.of_base > 0 and row.host_ms > row.host_update_ms > 0 for row in table)
    assert all((row.workload, row.base, row.period) == ("resnet", "sgd", 2) for row in table)
    for low, high, word in ((0.9, 1.1, "passed"), (1.1, 1.2, "not quiet")):
        again = table[1]._replace(of_base_low=low, of_base_high=high)
        assert any(word in line for line in whole_steps.summary([again]))
    left_out = table[2]._replace(rounds=0, note="out of memory")
    assert any(line.split() == ["mkor_w4", "out", "of", "memory"] for line in whole_steps.summary([left_out]))


def test_a_whole_model_s_contender_that_fails_is_left_out(monkeypatch):
    make = whole_steps.small_models()["resnet"]
    mkor = whole_steps.contenders(make(), methods(["mkor"]))[-1]
    for fault, note in (
        (torch.OutOfMemoryError("no"), "out of memory"),
        (ValueError("no kernel"), "failed: no kernel"),
        (ModuleNotFoundError("no", name="timm"), "the package timm is not installed"),
    ):
        monkeypatch.setattr(whole_steps, "turn", Mock(side_effect=fault))
        assert whole_steps.loop_or_reason(make(), mkor, CPU) == note


def test_rounds_of_whole_models_end_with_the_time(monkeypatch):
    clock = [0.0]

    def turn() -> whole_steps.TurnTimes:
        clock[0] += 10.0
        return whole_steps.TurnTimes(1.0, 1.0, 1.0)

    monkeypatch.setattr("benchmarks.whole_steps._timing.now", lambda device: clock[0])
    rounds = {seconds: len(whole_steps.in_rounds({"a": turn}, seconds, CPU)["a"]) for seconds in (0.0, 55.0, 1e3)}
    assert rounds == {0.0: 3, 55.0: 5, 1e3: 15}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_whole_models_need_a_gpu(capsys):
    assert steps.main(["--gpu"]) == 1
    assert capsys.readouterr().err.strip().splitlines() == ["--gpu: PyTorch finds no GPU"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "vit"], "models = 'vit': unknown"),
        (["--optimizers", "mkorr"], "optimizer = 'mkorr': unknown; did you mean 'mkor'?"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(arguments, message, capsys):
    assert steps.main(arguments) == 1
    assert message in capsys.readouterr().err
