"""Training runs of the real autoencoder on the digits: outcomes, resuming, skipping, and honest clocks."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baselines import available
from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from workflow.bench import train, workloads
from workflow.bench.aggregate import aggregate
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan.hyperparameters import accepted
from workflow.bench.plan.optimizer_signatures import read_signatures
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ROOT, ConfigError, schema
from workflow.bench.support.files import locked
from workflow.bench.support.source_code import is_current
from workflow.bench.training import checkpoint, one_run
from workflow.bench.training import state as training_state
from workflow.bench.training.build import Setting, build
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.loop import Loop
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import MetricsLog, RunFolder, read_metrics, read_summary
from workflow.bench.training.state import TrainingState
from workflow.bench.training.stop_signals import EXIT_RESUMABLE, Stop
from workflow.bench.workloads import create
from workflow.bench.workloads.base import Workload


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return create("autoencoder", batch_size=128)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "config")


def run_of(folder: Path, name: str, shared: dict[str, Any] | None = None, **hyperparameters: Any) -> Run:
    """Return the single run of one optimizer."""
    write(folder, "one", block(optimizer(name, **hyperparameters), **(shared or {})))
    return load(folder).job("one", name).runs[0]


def never() -> bool:
    return False


def after(steps: int) -> Callable[[], bool]:
    """Return what asks to stop after so many steps."""
    counter = iter(range(1, 10**9))
    return lambda: next(counter) >= steps


def setting(stop: Callable[[], bool] = never, **changes: Any) -> Setting:
    given: dict[str, Any] = {"checkpoint_minutes": 60, "progress": Progress(1, io.StringIO()), **changes}
    return Setting(torch.device("cpu"), stop=stop, **given)


def weights(folder: RunFolder, run: Run) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder.weights, run.id)


def assert_same_result(one: RunFolder, other: RunFolder, run: Run) -> None:
    """The same rows but for the times, and the same weights, bit for bit."""
    assert rows(one.metrics, TIMES) == rows(other.metrics, TIMES)
    mine, theirs = weights(one, run), weights(other, run)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


def _with_periods(name: str) -> dict[str, Any]:
    """Return periods of 7 steps, as far as an optimizer has any, so that runs stop between two updates."""
    return {period: 7 for period in accepted(name, None, read_signatures()) if period.endswith("update_period")}


METHODS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"lr": 0.01, **_with_periods(name)}) for name in available()),
    ("mkor", {"lr": 0.01, "inverse_update_period": 7, "update_rule": "released", "base": "lamb"}),
    ("kaisa", {"lr": 0.01, "factor_update_period": 3, "inverse_update_period": 7}),
    ("mkor_h", {"lr": 0.01, "inverse_update_period": 3, "warmup_steps": 0}),
]


@pytest.mark.parametrize(("name", "hyperparameters"), METHODS)
def test_interrupted_and_resumed_equals_uninterrupted(
    name: str, hyperparameters: dict[str, Any], folder: Path, workload: Workload, tmp_path: Path
):
    """Truth: the uninterrupted run, bit for bit.

    Stops lie between two inverse updates (9, 12 with a period of 7) and two evaluations (every 5), and on one (10).
    """
    shared = {"schedule": {"name": "linear", "warmup": 0.2}, "evaluate_every": 5}
    run = run_of(folder, name, shared, **hyperparameters)
    whole, sliced = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "sliced")
    assert one_run.train(run, workload, whole, setting(), keep_weights=True) == "finished"
    for steps in (9, 1, 2):
        torch.manual_seed(steps)  # what another process would draw
        assert one_run.train(run, workload, sliced, setting(after(steps)), keep_weights=True) == "interrupted"
        assert sliced.checkpoint.exists()
    assert (read_summary(sliced) or {})["steps_done"] == 12
    assert one_run.train(run, workload, sliced, setting(), keep_weights=True) == "finished"
    assert_same_result(whole, sliced, run)
    assert not sliced.checkpoint.exists()
    summary = read_summary(sliced) or {}
    assert (summary["steps_done"], summary["slices"]) == (20, 4)


def test_killed_after_a_checkpoint_the_rows_behind_it_are_made_anew(folder: Path, workload: Workload, tmp_path: Path):
    """A process that dies without a word leaves rows that its checkpoint does not know of, the last one torn."""
    run = run_of(folder, "mkor", {"evaluate_every": 2})
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    one_run.train(run, workload, whole, setting(), keep_weights=True)
    one_run.train(run, workload, killed, setting(after(7)))
    with killed.metrics.open("a") as file:
        file.write("8,0.727273,train,loss,0.5,0.1,1.0,1.0\n8,0.7272")
    killed.summary.unlink()
    assert one_run.train(run, workload, killed, setting(), keep_weights=True) == "finished"
    assert_same_result(whole, killed, run)


def test_killed_after_its_weights_and_before_its_record_a_run_leaves_no_second_copy(
    folder: Path, workload: Workload, tmp_path: Path
):
    run = run_of(folder, "sgd")
    place = RunFolder(tmp_path / "run")
    for _ in range(2):
        assert one_run.train(run, workload, place, setting(), keep_weights=True) == "finished"
        place.summary.unlink()
    assert sorted(file.name for file in place.path.iterdir()) == ["metrics.csv", "weights.pt"]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "mkor", {"evaluate_every": 2})
    whole, damaged = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "damaged")
    one_run.train(run, workload, whole, setting(), keep_weights=True)
    for steps in (5, 6):
        one_run.train(run, workload, damaged, setting(after(steps)))
    os.truncate(damaged.checkpoint, damaged.checkpoint.stat().st_size // 2)
    with pytest.warns(UserWarning, match="going back to the checkpoint before it"):
        one_run.train(run, workload, damaged, setting(after(3)), keep_weights=True)
    assert (read_summary(damaged) or {})["steps_done"] == 8
    one_run.train(run, workload, damaged, setting(), keep_weights=True)
    assert_same_result(whole, damaged, run)


def test_checkpoints_by_time_change_nothing(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "mkor")
    whole, saved = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "saved")
    one_run.train(run, workload, whole, setting(), keep_weights=True)
    one_run.train(run, workload, saved, setting(checkpoint_minutes=1e-9), keep_weights=True)
    assert_same_result(whole, saved, run)
    assert (read_summary(saved) or {})["seconds"]["checkpoint"] > 0
    assert (read_summary(whole) or {})["seconds"]["checkpoint"] == 0


def test_checkpoints_by_steps_are_there_after_a_kill(folder: Path, workload: Workload, tmp_path: Path):
    """The one after step 14 and the one before it, at 7; a run that died goes on from there."""
    run = run_of(folder, "mkor")
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    one_run.train(run, workload, whole, setting(checkpoint_steps=7), keep_weights=True)
    assert_same_result(whole, whole, run)

    def die(loss: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("killed")

    spoilt: Any = Sabotaged(workload, 16, die)
    with pytest.raises(RuntimeError, match="killed"):
        one_run.train(run, spoilt, killed, setting(checkpoint_steps=7))
    saved = (killed.checkpoint, killed.checkpoint.with_name("checkpoint.pt.previous"))
    assert [json.loads(file.open("rb").readline())["step"] for file in saved] == [14, 7]
    assert one_run.train(run, workload, killed, setting(), keep_weights=True) == "finished"
    assert_same_result(whole, killed, run)


def test_a_tier_s_checkpoint_steps_reach_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch):
    tier = folder / "tiers" / "embedded.yaml"
    tier.write_text(tier.read_text() + "checkpoint_steps: 6\n")
    write(folder, "one", block(optimizer("sgd")))
    steps: list[int] = []
    monkeypatch.setattr(checkpoint, "save", lambda path, run, step, state: steps.append(step))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    assert steps == [6, 12, 18]


def test_a_time_limit_saves_and_the_next_slice_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Truth: the run that has all the time."""
    write(folder, "one", block(optimizer("mkor", inverse_update_period=1), steps=3000, evaluate_every=1000))
    arguments = ["one", "mkor", *options(folder)]
    assert train.main([*arguments, "--minutes=0.01"]) == EXIT_RESUMABLE
    assert capsys.readouterr().err.endswith("interrupted and saved; the same command resumes it\n")
    assert train.main(arguments) == 0
    plan = load(folder)
    (run,) = plan.runs.values()
    place = RunFolder.of(plan.results, run.id)
    whole = RunFolder(folder / "whole")
    one_run.train(run, create(**run.spec["workload"]), whole, setting())
    assert rows(whole.metrics, TIMES) == rows(place.metrics, TIMES)


def test_a_time_limit_that_leaves_no_time_to_train_asks_for_no_next_slice(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    """A chain of jobs would go on like that for ever."""
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder), "--minutes=0.000001"]) == 1
    assert capsys.readouterr().err == "--minutes = 1e-06: over before a step was trained; give it more\n"


def test_a_process_that_waits_for_another_s_run_heeds_its_time_limit(folder: Path):
    write(folder, "one", block(optimizer("sgd")))
    (run,) = load(folder).runs.values()
    started = time.monotonic()
    with locked(RunFolder.of(load(folder).results, run.id).lock):
        assert train.main(["one", "sgd", *options(folder), "--minutes=0.02"]) == 1
    assert time.monotonic() - started < 20


def test_a_run_that_went_on_with_other_code_is_no_run_of_todays(
    folder: Path, workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = run_of(folder, "sgd")
    place = RunFolder(tmp_path / "run")
    monkeypatch.setattr(training_state, "code_fingerprint", lambda specs: "older")
    one_run.train(run, workload, place, setting(after(3)))
    monkeypatch.undo()
    one_run.train(run, workload, place, setting())
    summary = read_summary(place) or {}
    assert summary["code_fingerprint"].startswith("older, ")
    assert not is_current(summary, run.lineage)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_a_time_limit_must_be_one(folder: Path, capsys: pytest.CaptureFixture[str], minutes: str):
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder), f"--minutes={minutes}"]) == 1
    assert capsys.readouterr().err == f"--minutes = {float(minutes)}: must be greater than 0\n"


def test_a_checkpoint_of_another_run_is_refused(folder: Path, workload: Workload, tmp_path: Path):
    one, other = run_of(folder, "sgd"), run_of(folder, "sgd", lr=0.2)
    place = RunFolder(tmp_path / "run")
    one_run.train(one, workload, place, setting(after(3)))
    with pytest.raises(ConfigError, match=f"belongs to run {one.id}, not to {other.id}"):
        one_run.train(other, workload, place, setting())


def test_a_finished_run_tells_where_it_comes_from(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "mkor", {"schedule": {"name": "linear"}})
    place = RunFolder(tmp_path / "run")
    one_run.train(run, workload, place, setting())
    summary = json.loads(place.summary.read_text())
    assert summary["spec"] == run.spec
    assert (summary["status"], summary["reason"], summary["steps_done"]) == ("finished", "", 20)
    assert summary["parameters"] == sum(p.numel() for p in workload.model(0).parameters())
    assert summary["data_fingerprint"] == workload.data_fingerprint
    assert summary["preconditioner_bytes"] == sum(summary["preconditioner_bytes_by_tensor"].values()) > 0
    assert summary["peak_memory_bytes"] > 10**7
    assert summary["packages"]["torch"] == torch.__version__
    assert summary["machine"]["cpu"]
    assert len(summary["code_fingerprint"]) == 16
    assert not place.weights.exists()

    found = read_metrics(place)
    assert [(row["step"], row["split"], row["metric"]) for row in found] == [
        ("0", "validation", "loss"),
        ("10", "train", "loss"),
        ("10", "validation", "loss"),
        ("20", "train", "loss"),
        ("20", "validation", "loss"),
    ]
    # The rate of the last step made: 0.1 falls to zero over 20 steps.
    assert [float(row["lr"]) for row in found] == pytest.approx([0.1, 0.055, 0.055, 0.005, 0.005])
    assert float(found[1]["epoch"]) == pytest.approx(10 / workload.steps_per_epoch, rel=1e-5)


def test_the_mean_training_loss_is_that_of_a_bare_loop(folder: Path, workload: Workload, tmp_path: Path):
    """Truth: the same training written out with torch alone."""
    run = run_of(folder, "sgd", momentum=0.9)
    place = RunFolder(tmp_path / "run")
    one_run.train(run, workload, place, setting(), keep_weights=True)
    model = workload.model(0)
    bare = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _, one in zip(range(20), workload.batches(0), strict=False):
        loss = workload.loss(model, one)
        bare.zero_grad()
        loss.backward()
        bare.step()
        losses.append(loss.detach().double())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights(place, run)[name]), name
    means = [float(row["value"]) for row in read_metrics(place) if row["split"] == "train"]
    assert means == [torch.stack(part).mean().item() for part in (losses[:10], losses[10:])]
    last = [row for row in read_metrics(place) if row["split"] == "validation"][-1]
    assert float(last["value"]) == workload.evaluate(model)["loss"]


def test_the_phases_add_up_to_the_wall_time(folder: Path, workload: Workload, tmp_path: Path):
    """Truth: a watch held beside the loop."""
    run = run_of(folder, "mkor", {"steps": 150, "evaluate_every": 50})
    watch = {}

    class Watched(Progress):
        def start(self, what: str, steps: int, done: int) -> None:
            watch["begin"] = time.perf_counter()
            super().start(what, steps, done)

    watched = setting(progress=Watched(1, io.StringIO()))
    parts = build(run, workload, watched)
    log = MetricsLog(RunFolder(tmp_path).metrics)
    state = TrainingState(parts, RunFolder(tmp_path), watched, log)
    Loop(parts, state, watched).run()
    wall = time.perf_counter() - watch["begin"]
    seconds = {phase: used / 1e9 for phase, used in state.account.nanoseconds.items()}
    assert seconds.keys() == set(PHASES)
    assert sum(seconds.values()) == pytest.approx(wall, rel=0.05)
    worked = {"data", "forward", "backward", "capture", "factor", "precondition", "update", "evaluation"}
    assert {phase for phase, used in seconds.items() if used > 0} >= worked
    assert seconds["checkpoint"] == 0


@pytest.mark.parametrize(
    ("name", "hyperparameters"),
    [("sgd", {"lr": 1e30}), ("mkor", {"lr": 1e30}), ("kaisa", {"lr": 1e30, "kl_clip": None})],
)
def test_divergence_is_an_outcome(
    name: str, hyperparameters: dict[str, Any], folder: Path, workload: Workload, tmp_path: Path
):
    run = run_of(folder, name, {"evaluate_every": 4}, **hyperparameters)
    place = RunFolder(tmp_path)
    assert one_run.train(run, workload, place, setting(), keep_weights=True) == "diverged"
    summary = read_summary(place) or {}
    assert summary["reason"]
    assert not place.weights.exists()
    assert all(row["value"] not in ("nan", "inf") for row in read_metrics(place))


class Sabotaged:
    """The workload, except that the loss of one step is spoilt."""

    def __init__(self, workload: Workload, step: int, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._workload = workload
        self._step = step
        self._spoil = spoil
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def loss(self, model: torch.nn.Module, one: Any) -> torch.Tensor:
        self._calls += 1
        loss = self._workload.loss(model, one)
        return self._spoil(loss) if self._calls == self._step else loss


def test_the_first_bad_step_is_named(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "sgd")
    spoilt: Any = Sabotaged(workload, 6, lambda loss: loss * torch.nan)
    assert one_run.train(run, spoilt, RunFolder(tmp_path), setting()) == "diverged"
    assert (read_summary(RunFolder(tmp_path)) or {})["reason"] == "the training loss is nan in step 6"


def test_lack_of_memory_is_an_outcome(folder: Path, workload: Workload, tmp_path: Path):
    """Truth: torch's own error for 4 petabytes."""
    run = run_of(folder, "sgd")
    spoilt: Any = Sabotaged(workload, 6, lambda loss: loss + torch.empty(2**50).sum())
    assert one_run.train(run, spoilt, RunFolder(tmp_path), setting()) == "out_of_memory"
    summary = read_summary(RunFolder(tmp_path)) or {}
    assert "memory" in summary["reason"]
    assert summary["steps_done"] == 5


def test_an_error_of_the_code_is_no_outcome(folder: Path, workload: Workload, tmp_path: Path):
    def fail(loss: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a mistake")

    spoilt: Any = Sabotaged(workload, 6, fail)
    with pytest.raises(RuntimeError, match="a mistake"):
        one_run.train(run_of(folder, "sgd"), spoilt, RunFolder(tmp_path), setting())
    assert not RunFolder(tmp_path).summary.exists()


def test_the_command_trains_what_is_not_there_and_publishes(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd", "plain"), optimizer("mkor"), seeds=[0, 1]))
    assert train.main(["one", "plain", *options(folder)]) == 0
    published = load(folder).results / "one" / "plain.csv"
    found = rows(published)
    assert {(row["optimizer"], row["method"], row["seed"], row["status"]) for row in found} == {
        ("plain", "sgd", "0", "finished"),
        ("plain", "sgd", "1", "finished"),
    }
    assert len(found) == 10
    assert "run 2 of 2" in capsys.readouterr().err
    content = published.read_bytes()

    assert train.main(["one", "plain", *options(folder)]) == 0
    assert capsys.readouterr().err.count("done before") == 2
    assert published.read_bytes() == content

    # One more seed: only that is trained.
    write(folder, "one", block(optimizer("sgd", "plain"), seeds=[0, 1, 2]))
    assert train.main(["one", "plain", *options(folder)]) == 0
    said = capsys.readouterr().err
    assert said.count("done before") == 2
    assert said.count("finished after") == 1
    specs = load(folder).results / "specs"
    assert {file.stem for file in specs.iterdir()} == set(load(folder).runs)
    for file in specs.iterdir():
        assert Run(json.loads(file.read_text())).id == file.stem


def test_a_checkpoint_left_beside_a_finished_record_is_removed(folder: Path):
    """Of a process that was killed between writing its record and removing its checkpoint."""
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    plan = load(folder)
    place = RunFolder.of(plan.results, plan.job("one", "sgd").run_ids[0])
    record = place.summary.read_bytes()
    place.checkpoint.write_bytes(b"left behind")
    assert train.main(["one", "sgd", *options(folder)]) == 0
    assert not place.checkpoint.exists()
    assert place.summary.read_bytes() == record


def test_single_seeds_are_trained_and_not_published(folder: Path):
    write(folder, "one", block(optimizer("sgd"), seeds=[0, 1]))
    assert train.main(["one", "sgd", "--seed", "1", *options(folder)]) == 0
    plan = load(folder)
    first, second = plan.job("one", "sgd").runs
    assert not RunFolder.of(plan.results, first.id).summary.exists()
    assert RunFolder.of(plan.results, second.id).summary.exists()
    assert not plan.csv_of(plan.job("one", "sgd")).exists()


def test_fine_tuning_trains_what_it_starts_from_first(folder: Path, capsys: pytest.CaptureFixture[str]):
    """By hand, without the pipeline; and it starts from those weights."""
    write(folder, "first", block(optimizer("sgd", lr=1.0)))
    start = {"experiment": "first", "optimizer": "sgd", "seed": 0}
    write(folder, "second", block(optimizer("sgd"), seeds=[0, 1], start_from=start))
    assert train.main(["second", "sgd", *options(folder)]) == 0
    assert "run 3 of 3" in capsys.readouterr().err
    plan = load(folder)
    (source,) = plan.job("first", "sgd").runs
    last = read_metrics(RunFolder.of(plan.results, source.id))[-1]
    for run in plan.job("second", "sgd").runs:
        place = RunFolder.of(plan.results, run.id)
        assert read_metrics(place)[0]["value"] == last["value"]
        assert not place.weights.exists()


def test_runs_that_cannot_start_are_rows_with_a_reason(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    write(folder, "first", block(optimizer("sgd", lr=1e30)))
    start = {"experiment": "first", "optimizer": "sgd", "seed": 0}
    write(folder, "second", block(optimizer("mkor"), start_from=start))
    assert train.main(["second", "mkor", *options(folder)]) == 0
    plan = load(folder)
    (row,) = rows(plan.csv_of(plan.job("second", "mkor")))
    assert (row["status"], row["step"], row["value"]) == ("skipped", "", "")
    assert "which is diverged" in capsys.readouterr().err

    def absent(*_: Any, **__: Any) -> Workload:
        raise DataNotFound("cifar", "data/cifar", "download it")

    monkeypatch.setattr(workloads, "create", absent)
    write(folder, "third", block(optimizer("sgd")))
    assert train.main(["third", "sgd", *options(folder)]) == 0
    assert "skipped: cifar not found at data/cifar; download it" in capsys.readouterr().err
    monkeypatch.undo()
    # Data that came in the meantime: a skipped run is tried again.
    assert train.main(["third", "sgd", *options(folder)]) == 0
    assert "finished after 20 steps" in capsys.readouterr().err


def test_absent_data_end_runs_and_what_starts_from_them_with_the_reason_and_stop_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """From the empty data folder to the experiments' tables."""
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    absent = {"name": "autoencoder", "dataset": "cifar100", "batch_size": 128}
    write(folder, "first", block(optimizer("sgd"), workload=absent, seeds=[0, 1]))
    start = {"experiment": "first", "optimizer": "sgd", "seed": 0}
    write(folder, "second", block(optimizer("mkor"), start_from=start))
    plan = load(folder)
    for experiment, label in (("first", "sgd"), ("second", "mkor")):
        assert train.main([experiment, label, *options(folder)]) == 0
        aggregate(plan, experiment)
    source = plan.job("first", "sgd").runs[0].id
    why = [row["reason"] for row in rows(plan.results / "first.runs.csv")]
    assert len(set(why)) == 1
    assert why[0].startswith(f"CIFAR-100 not found at {tmp_path / 'data'}")
    found = rows(plan.results / "second.runs.csv")
    assert [row["reason"] for row in found] == [f"it starts from run {source}, which is skipped: {why[0]}"]
    assert {row["status"] for row in (*rows(plan.results / "first.csv"), *rows(plan.results / "second.csv"))} == {
        "skipped"
    }


def test_a_value_that_only_the_optimizer_knows_to_be_wrong_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    write(folder, "one", block(optimizer("sgd", nesterov=True, momentum=0.0)))
    assert train.main(["one", "sgd", *options(folder)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("autoencoder sgd lr=0.1 seed=0: ")
    assert "Nesterov" in said


def test_a_folder_that_cannot_be_written_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd")))
    (folder.parent / "results").write_text("a file in the way")
    assert train.main(["one", "sgd", *options(folder)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "results" in said


def test_one_process_at_a_time_trains_a_run(folder: Path):
    """A second process waits for the lock, and then finds the run done."""
    write(folder, "one", block(optimizer("sgd")))
    plan = load(folder)
    (run,) = plan.runs.values()
    place = RunFolder.of(plan.results, run.id)
    command = [sys.executable, "-m", "workflow.bench.train", "one", "sgd", *options(folder)]
    with locked(place.lock):
        waiting = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert waiting.stderr.readline().endswith("another process trains it; waiting\n")
        one_run.train(run, create(**run.spec["workload"]), place, setting())
    _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert "done by another process" in said


def test_a_signal_saves_and_exits_with_the_code_to_go_on(folder: Path, tmp_path: Path):
    """A queue's SIGTERM in the middle of a run, then the same command again: the result is the uninterrupted one."""
    write(folder, "one", block(optimizer("mkor"), steps=500, evaluate_every=20))
    plan = load(folder)
    (run,) = plan.runs.values()
    place = RunFolder.of(plan.results, run.id)
    command = [sys.executable, "-m", "workflow.bench.train", "one", "mkor", *options(folder)]
    first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while len(read_metrics(place)) < 3 and time.monotonic() < limit:
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=60)
    assert first.returncode == EXIT_RESUMABLE == 75, said
    assert said.endswith("interrupted and saved; the same command resumes it\n")
    summary = read_summary(place) or {}
    assert summary["status"] == "interrupted"
    assert 20 <= summary["steps_done"] < 500
    assert not plan.csv_of(plan.job("one", "mkor")).exists()

    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert f"resuming from step {summary['steps_done']}" in second.stderr
    whole = RunFolder(tmp_path / "whole")
    one_run.train(run, create(**run.spec["workload"]), whole, setting())
    assert rows(whole.metrics, TIMES) == rows(place.metrics, TIMES)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_queue_s_signal_may_come_twice(number: signal.Signals):
    """From the queue, and from the launcher that passes it on."""
    before = signal.getsignal(number)
    with Stop().listening() as stop:
        assert not stop()
        for _ in range(2):
            os.kill(os.getpid(), number)
            assert stop()
    assert signal.getsignal(number) == before


def test_under_a_launcher_ctrl_c_may_come_twice():
    with Stop(launched=True).listening() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop = Stop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_progress_in_a_log_is_plain_lines(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "sgd")
    log = io.StringIO()
    progress = Progress(3, log)
    progress.interval_ns = 0
    one_run.train(run, workload, RunFolder(tmp_path), setting(progress=progress))
    lines = log.getvalue().splitlines()
    assert len(lines) >= 10
    assert lines[0].startswith("run 1 of 3: autoencoder sgd lr=0.1 seed=0: step ")
    assert all(word in lines[0] for word in (" of 20, loss 0.", " steps/s, ", " left"))
    assert "\r" not in log.getvalue()


def test_progress_on_a_terminal_is_a_bar(folder: Path, workload: Workload, tmp_path: Path):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    log = Terminal()
    progress = Progress(3, log)
    progress.interval_ns = 0
    one_run.train(run_of(folder, "sgd"), workload, RunFolder(tmp_path), setting(progress=progress))
    progress.end("finished")
    assert "run 1 of 3: autoencoder sgd lr=0.1 seed=0:" in log.getvalue()
    assert "loss 0." in log.getvalue()
    assert "\r" in log.getvalue()


# ResNet-50's data set comes with no package; tests/bench/workloads/ has its test.
@pytest.mark.parametrize("name", sorted({*workloads.NAMES} - {"resnet50"}))
def test_a_workload_evaluates_the_metrics_that_its_schema_names(name: str):
    """Targets and tuning are checked against those names before anything runs."""
    workload = create(name)
    model, named = workload.model(0), schema(f"workloads/{name}")
    found = set(workload.evaluate(model))
    # Tasks of one workload have metrics of their own; tests/bench/workloads/test_finetuning.py tests each task's.
    assert found <= set(named["metrics"]) if name == "bert_classification" else found == set(named["metrics"])
    assert set(workload.evaluate_training(model)) == set(named.get("training_metrics", []))
