"""Training runs of the real autoencoder on the digits: outcomes, resuming, skipping, and clocks."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from baselines import available
from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from tests.support.records import read_metrics, read_summary
from workflow.bench import train, workloads
from workflow.bench.aggregate import aggregate
from workflow.bench.data.batches import Batch
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan.hyperparameters import accepted
from workflow.bench.plan.optimizer_signatures import read_signatures
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ROOT, schema
from workflow.bench.support.files import locked
from workflow.bench.support.source_code import is_current
from workflow.bench.training import checkpoint, one_run
from workflow.bench.training import state as training_state
from workflow.bench.training.build import Setting, build
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.loop import Loop
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import MetricsLog, RunFolder
from workflow.bench.training.runner import Runner
from workflow.bench.training.state import TrainingState
from workflow.bench.training.stop_signals import EXIT_RESUMABLE, Stop
from workflow.bench.workloads import create
from workflow.bench.workloads.autoencoder import Autoencoder
from workflow.bench.workloads.base import Workload


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
    """Return a function that requests a stop after this number of steps."""
    counter = iter(range(1, 10**9))
    return lambda: next(counter) >= steps


def setting(stop: Callable[[], bool] = never, **changes: Any) -> Setting:
    given: dict[str, Any] = {"checkpoint_minutes": 60, "progress": Progress(1, io.StringIO()), **changes}
    return Setting(torch.device("cpu"), stop=stop, **given)


def weights(folder: RunFolder, run: Run) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder.weights, run.id)


def assert_same_result(one: RunFolder, other: RunFolder, run: Run) -> None:
    """Check that two runs have the same rows, except for times, and the same weights, bit for bit."""
    assert rows(one.metrics, TIMES) == rows(other.metrics, TIMES)
    first, second = weights(one, run), weights(other, run)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def _with_periods(name: str) -> dict[str, Any]:
    """Return 7 steps for every period that an optimizer has, so that runs stop between two updates."""
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

    Runs stop between two inverse updates (after steps 9 and 12; the period is 7), between two evaluations (every 5
    steps), and on an evaluation (10).
    """
    shared = {"schedule": {"name": "linear", "warmup": 0.2}, "evaluate_every": 5}
    run = run_of(folder, name, shared, **hyperparameters)
    whole, sliced = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "sliced")
    assert one_run.train(run, workload, whole, setting(), keep_weights=True) == "finished"
    for steps in (9, 1, 2):
        torch.manual_seed(steps)  # as in another process
        assert one_run.train(run, workload, sliced, setting(after(steps)), keep_weights=True) == "interrupted"
        assert sliced.checkpoint.exists()
    assert read_summary(sliced)["steps_done"] == 12
    assert one_run.train(run, workload, sliced, setting(), keep_weights=True) == "finished"
    assert_same_result(whole, sliced, run)
    assert not sliced.checkpoint.exists()
    summary = read_summary(sliced)
    assert (summary["steps_done"], summary["slices"]) == (20, 4)


def test_a_run_killed_after_a_checkpoint_replaces_the_later_rows(folder: Path, workload: Workload, tmp_path: Path):
    """A killed process leaves rows that are later than its checkpoint, the last one incomplete."""
    run = run_of(folder, "mkor", {"evaluate_every": 2})
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    one_run.train(run, workload, whole, setting(), keep_weights=True)
    one_run.train(run, workload, killed, setting(after(7)))
    with killed.metrics.open("a") as file:
        file.write("8,0.727273,train,loss,0.5,0.1,1.0,1.0\n8,0.7272")
    killed.summary.unlink()
    assert one_run.train(run, workload, killed, setting(), keep_weights=True) == "finished"
    assert_same_result(whole, killed, run)


def test_a_run_killed_between_weights_and_record_leaves_no_second_copy(
    folder: Path, workload: Workload, tmp_path: Path
):
    run = run_of(folder, "sgd")
    place = RunFolder(tmp_path / "run")
    for _ in range(2):
        assert one_run.train(run, workload, place, setting(), keep_weights=True) == "finished"
        place.summary.unlink()
    assert sorted(file.name for file in place.path.iterdir()) == ["metrics.csv", "weights.pt"]


def test_after_a_damaged_checkpoint_the_previous_one_is_used(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "mkor", {"evaluate_every": 2})
    whole, damaged = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "damaged")
    one_run.train(run, workload, whole, setting(), keep_weights=True)
    for steps in (5, 6):
        one_run.train(run, workload, damaged, setting(after(steps)))
    os.truncate(damaged.checkpoint, damaged.checkpoint.stat().st_size // 2)
    with pytest.warns(UserWarning, match="going back to the checkpoint before it"):
        one_run.train(run, workload, damaged, setting(after(3)), keep_weights=True)
    assert read_summary(damaged)["steps_done"] == 8
    one_run.train(run, workload, damaged, setting(), keep_weights=True)
    assert_same_result(whole, damaged, run)


def test_checkpoints_by_time_do_not_change_the_result(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "mkor")
    whole, saved = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "saved")
    one_run.train(run, workload, whole, setting(), keep_weights=True)
    one_run.train(run, workload, saved, setting(checkpoint_minutes=1e-9), keep_weights=True)
    assert_same_result(whole, saved, run)
    assert read_summary(saved)["seconds"]["checkpoint"] > 0
    assert read_summary(whole)["seconds"]["checkpoint"] == 0


def test_a_killed_run_resumes_from_a_checkpoint_by_steps(folder: Path, workload: Workload, tmp_path: Path):
    """Checkpoints of steps 14 and 7 exist when the run dies in step 16."""
    run = run_of(folder, "mkor")
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    one_run.train(run, workload, whole, setting(checkpoint_steps=7), keep_weights=True)
    assert_same_result(whole, whole, run)

    def die(loss: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("killed")

    sabotaged: Any = Sabotaged(workload, 16, die)
    with pytest.raises(RuntimeError, match="killed"):
        one_run.train(run, sabotaged, killed, setting(checkpoint_steps=7))
    saved = (killed.checkpoint, killed.checkpoint.with_name("checkpoint.pt.previous"))
    assert [json.loads(file.open("rb").readline())["step"] for file in saved] == [14, 7]
    assert one_run.train(run, workload, killed, setting(), keep_weights=True) == "finished"
    assert_same_result(whole, killed, run)


def test_a_run_uses_its_tiers_checkpoint_steps(folder: Path, monkeypatch: pytest.MonkeyPatch):
    tier = folder / "tiers" / "embedded.yaml"
    tier.write_text(tier.read_text() + "checkpoint_steps: 6\n")
    write(folder, "one", block(optimizer("sgd")))
    steps: list[int] = []
    monkeypatch.setattr(checkpoint, "save", lambda path, run, step, state: steps.append(step))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    assert steps == [6, 12, 18]


def test_a_run_stopped_by_a_time_limit_is_saved_and_resumed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Truth: the same run without a time limit."""
    write(folder, "one", block(optimizer("mkor", inverse_update_period=1), steps=100, evaluate_every=50))
    arguments = ["one", "mkor", *options(folder)]
    mark = folder / "mark"
    monkeypatch.setenv("MKOR_SAVED", str(mark))
    with monkeypatch.context() as patch:
        slow_down(patch)
        assert train.main([*arguments, "--minutes=0.01"]) == EXIT_RESUMABLE
    assert capsys.readouterr().err.endswith("interrupted and saved; the same command resumes it\n")
    mark.unlink()  # launchers may turn the code into another
    assert train.main(arguments) == 0
    assert not mark.exists()
    plan = load(folder)
    (run,) = plan.runs.values()
    place = RunFolder.of(plan.results, run.id)
    whole = RunFolder(folder / "whole")
    one_run.train(run, create(**run.spec["workload"]), whole, setting())
    assert rows(whole.metrics, TIMES) == rows(place.metrics, TIMES)


def slow_down(patch: pytest.MonkeyPatch) -> None:
    """Have each step of the autoencoder take ten milliseconds more, so that a short run outlasts a time limit."""
    quick = Autoencoder.loss

    def slow(self: Autoencoder, model: torch.nn.Module, one: Batch) -> torch.Tensor:
        time.sleep(0.01)
        return quick(self, model, one)

    patch.setattr(Autoencoder, "loss", slow)


def test_a_time_limit_too_short_for_a_step_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]):
    """With the exit code that requests another slice, a chain of jobs would never end."""
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder), "--minutes=0.000001"]) == 1
    assert capsys.readouterr().err == "--minutes = 1e-06: over before a step was trained; give it more\n"


def test_the_time_limit_also_ends_a_wait_for_another_process(folder: Path):
    write(folder, "one", block(optimizer("sgd")))
    (run,) = load(folder).runs.values()
    started = time.monotonic()
    with locked(RunFolder.of(load(folder).results, run.id).lock):
        assert train.main(["one", "sgd", *options(folder), "--minutes=0.02"]) == 1
    assert time.monotonic() - started < 20


def test_a_run_resumed_with_other_code_is_not_current(
    folder: Path, workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = run_of(folder, "sgd")
    place = RunFolder(tmp_path / "run")
    monkeypatch.setattr(training_state, "code_fingerprint", lambda specs: "older")
    one_run.train(run, workload, place, setting(after(3)))
    monkeypatch.undo()
    one_run.train(run, workload, place, setting())
    summary = read_summary(place)
    assert summary["code_fingerprint"].startswith("older, ")
    assert not is_current(summary, run.lineage)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_a_time_limit_must_be_positive_and_finite(folder: Path, capsys: pytest.CaptureFixture[str], minutes: str):
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder), f"--minutes={minutes}"]) == 1
    assert capsys.readouterr().err == f"--minutes = {float(minutes)}: must be greater than 0\n"


def test_labels_given_together_are_trained_and_published_as_one_by_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    """Truth: the same labels, each in a call of its own."""
    write(folder, "one", block(optimizer("sgd"), optimizer("adamw")))
    plan = load(folder)
    files = [plan.csv_of(job) for job in plan.jobs]
    assert train.main(["one", "sgd", "adamw", *options(folder)]) == 0
    together = [rows(file) for file in files]
    shutil.rmtree(plan.results)
    for label in ("sgd", "adamw"):
        assert train.main(["one", label, *options(folder)]) == 0
    for ours, theirs in zip(together, map(rows, files), strict=True):
        assert [(row["run"], row["step"], row["value"]) for row in ours] == [
            (row["run"], row["step"], row["value"]) for row in theirs
        ]
    capsys.readouterr()
    assert train.main(["one", "sgd", "adamw", *options(folder), "--out=x.csv"]) == 1
    assert capsys.readouterr().err == "--out: takes the CSV of one label; leave it out, or train one label at a time\n"


def test_a_folder_to_write_to_is_refused_before_training(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Given as ``--out``, or in the place of the CSV file that is written without it."""
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder), f"--out={folder}"]) == 1
    load(folder).csv_of(load(folder).job("one", "sgd")).mkdir(parents=True)
    assert train.main(["one", "sgd", *options(folder)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["is a folder; give the name of a file"] * 2
    assert not (load(folder).results / "runs").exists()


def test_a_run_starts_anew_beside_the_checkpoint_of_another(folder: Path, workload: Workload, tmp_path: Path):
    one, other = run_of(folder, "sgd"), run_of(folder, "sgd", lr=0.2)
    place = RunFolder(tmp_path / "run")
    one_run.train(one, workload, place, setting(after(3)))
    with pytest.warns(UserWarning, match=f"belongs to run {one.id}, not to {other.id}"):
        one_run.train(other, workload, place, setting())
    assert (read_summary(place)["id"], read_summary(place)["slices"]) == (other.id, 1)


def test_the_record_of_a_finished_run_is_complete(folder: Path, workload: Workload, tmp_path: Path):
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

    rows = read_metrics(place)
    metrics = [row for row in rows if row["split"] != "preconditioner"]
    assert [(row["step"], row["split"], row["metric"]) for row in metrics] == [
        ("0", "validation", "loss"),
        ("10", "train", "loss"),
        ("10", "validation", "loss"),
        ("20", "train", "loss"),
        ("20", "validation", "loss"),
    ]
    # The rate of the last step: 0.1 falls to zero over 20 steps.
    assert [float(row["lr"]) for row in metrics] == pytest.approx([0.1, 0.055, 0.055, 0.005, 0.005])
    assert float(metrics[1]["epoch"]) == pytest.approx(10 / workload.steps_per_epoch, rel=1e-5)
    effects = [(row["step"], row["metric"]) for row in rows if row["split"] == "preconditioner"]
    assert {step for step, _ in effects} == {"10", "20"}
    assert {"cosine", "cosine_least", "cosine_left", "cosine_right", "length", "start_weight"} <= {
        m for _, m in effects
    }


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
    """Truth: a clock outside the loop."""
    run = run_of(folder, "mkor", {"steps": 150, "evaluate_every": 50})
    watch = {}

    class Watched(Progress):
        def start(self, name: str, steps: int, done: int) -> None:
            watch["begin"] = time.perf_counter()
            super().start(name, steps, done)

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
    summary = read_summary(place)
    assert summary["reason"]
    assert not place.weights.exists()
    assert all(row["value"] not in ("nan", "inf") for row in read_metrics(place))


class Sabotaged:
    """The workload, except that the loss of one step is altered."""

    def __init__(self, workload: Workload, step: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._workload = workload
        self._step = step
        self._change = change
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def loss(self, model: torch.nn.Module, one: Any) -> torch.Tensor:
        self._calls += 1
        loss = self._workload.loss(model, one)
        return self._change(loss) if self._calls == self._step else loss


def test_the_first_step_with_a_non_finite_loss_is_named(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "sgd")
    sabotaged: Any = Sabotaged(workload, 6, lambda loss: loss * torch.nan)
    assert one_run.train(run, sabotaged, RunFolder(tmp_path), setting()) == "diverged"
    assert read_summary(RunFolder(tmp_path))["reason"] == "the training loss is nan in step 6"


def test_lack_of_memory_is_an_outcome(folder: Path, workload: Workload, tmp_path: Path):
    """Truth: torch's own error for 4 petabytes."""
    run = run_of(folder, "sgd")
    sabotaged: Any = Sabotaged(workload, 6, lambda loss: loss + torch.empty(2**50).sum())
    assert one_run.train(run, sabotaged, RunFolder(tmp_path), setting()) == "out_of_memory"
    summary = read_summary(RunFolder(tmp_path))
    assert "memory" in summary["reason"]
    assert summary["steps_done"] == 5


def test_an_error_in_the_code_is_raised_and_not_recorded(folder: Path, workload: Workload, tmp_path: Path):
    def fail(loss: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a mistake")

    sabotaged: Any = Sabotaged(workload, 6, fail)
    with pytest.raises(RuntimeError, match="a mistake"):
        one_run.train(run_of(folder, "sgd"), sabotaged, RunFolder(tmp_path), setting())
    assert not RunFolder(tmp_path).summary.exists()


def test_the_command_trains_missing_runs_and_publishes(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd", "plain"), optimizer("mkor"), seeds=[0, 1]))
    assert train.main(["one", "plain", *options(folder)]) == 0
    published = load(folder).results / "one" / "plain.csv"
    published_rows = rows(published)
    assert {(row["optimizer"], row["method"], row["seed"], row["status"]) for row in published_rows} == {
        ("plain", "sgd", "0", "finished"),
        ("plain", "sgd", "1", "finished"),
    }
    assert len(published_rows) == 10
    assert "run 2 of 2" in capsys.readouterr().err
    content = published.read_bytes()

    assert train.main(["one", "plain", *options(folder)]) == 0
    assert capsys.readouterr().err.count("done before") == 2
    assert published.read_bytes() == content

    # One more seed: only that is trained.
    write(folder, "one", block(optimizer("sgd", "plain"), seeds=[0, 1, 2]))
    assert train.main(["one", "plain", *options(folder)]) == 0
    errors = capsys.readouterr().err
    assert errors.count("done before") == 2
    assert errors.count("finished after") == 1
    specs = load(folder).results / "specs"
    assert {file.stem for file in specs.iterdir()} == set(load(folder).runs)
    for file in specs.iterdir():
        assert Run(json.loads(file.read_text())).id == file.stem


def test_a_checkpoint_left_behind_by_a_finished_run_is_removed(folder: Path):
    """A process may be killed between writing the record and removing the checkpoint."""
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    plan = load(folder)
    place = RunFolder.of(plan.results, plan.job("one", "sgd").run_ids[0])
    record = place.summary.read_bytes()
    place.checkpoint.write_bytes(b"left behind")
    assert train.main(["one", "sgd", *options(folder)]) == 0
    assert not place.checkpoint.exists()
    assert place.summary.read_bytes() == record


@pytest.mark.parametrize(
    "name", ["run.json", "metrics.csv", "lock", "checkpoint.pt", "checkpoint.pt.previous", "weights.pt"]
)
def test_a_folder_where_a_file_of_the_run_belongs_is_refused_before_training(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    write(folder, "one", block(optimizer("sgd")))
    plan = load(folder)
    place = RunFolder.of(plan.results, plan.job("one", "sgd").run_ids[0]).path / name
    place.mkdir(parents=True)
    assert train.main(["one", "sgd", *options(folder)]) == 1
    assert capsys.readouterr().err == f"{place}: cannot be read: it is a folder, not a file\n"
    assert not (place.parent / "metrics.csv").is_file()


def test_damaged_weights_are_made_anew_if_their_length_shows_it_else_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    write(folder, "first", block(optimizer("sgd")))
    start = {"experiment": "first", "optimizer": "sgd", "seed": 0}
    write(folder, "second", block(optimizer("sgd"), steps=1, evaluate_every=1, start_from=start))
    assert train.main(["first", "sgd", *options(folder)]) == 0
    plan = load(folder)
    place = RunFolder.of(plan.results, plan.job("first", "sgd").run_ids[0])
    whole = place.weights.read_bytes()
    place.weights.write_bytes(whole[:-1] + b"?")
    capsys.readouterr()
    assert train.main(["second", "sgd", *options(folder)]) == 1
    said = (
        f"{place.weights}: damaged: its checksum does not match; delete it, and run {place.path.name} is trained again"
    )
    assert capsys.readouterr().err.splitlines()[-1] == said
    place.weights.write_bytes(whole[:-1])
    with pytest.warns(
        UserWarning, match=r"weights\.pt: damaged: contains \d+ of \d+ bytes; the run counts as not done"
    ):
        assert train.main(["second", "sgd", *options(folder)]) == 0
    assert place.weights.read_bytes() == whole


def test_single_seeds_are_trained_and_not_published(folder: Path):
    write(folder, "one", block(optimizer("sgd"), seeds=[0, 1]))
    assert train.main(["one", "sgd", "--seed", "1", *options(folder)]) == 0
    plan = load(folder)
    first, second = plan.job("one", "sgd").runs
    assert not RunFolder.of(plan.results, first.id).summary.exists()
    assert RunFolder.of(plan.results, second.id).summary.exists()
    assert not plan.csv_of(plan.job("one", "sgd")).exists()


def test_the_run_that_others_start_from_is_trained_first(folder: Path, capsys: pytest.CaptureFixture[str]):
    """The command trains it without the pipeline, and the other runs start from its final weights."""
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
    # Once the data is there, a skipped run is tried again.
    assert train.main(["third", "sgd", *options(folder)]) == 0
    assert "finished after 20 steps" in capsys.readouterr().err


def test_runs_without_data_and_the_runs_that_start_from_them_are_skipped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Truth: the reasons in the tables of both experiments."""
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
    skipped = rows(plan.results / "second.runs.csv")
    assert [row["reason"] for row in skipped] == [f"it starts from run {source}, which is skipped: {why[0]}"]
    assert {row["status"] for row in (*rows(plan.results / "first.csv"), *rows(plan.results / "second.csv"))} == {
        "skipped"
    }


def test_a_value_that_only_the_optimizer_refuses_is_reported_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    write(folder, "one", block(optimizer("sgd", nesterov=True, momentum=0.0)))
    assert train.main(["one", "sgd", *options(folder)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith("autoencoder sgd lr=0.1 seed=0: ")
    assert "Nesterov" in errors


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd")))
    (folder.parent / "results").write_text("a file in the way")
    assert train.main(["one", "sgd", *options(folder)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "results" in errors


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
    _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert "done by another process" in errors


SLOWLY = """
import runpy, time
from workflow.bench.workloads.autoencoder import Autoencoder
quick = Autoencoder.loss
Autoencoder.loss = lambda *given: time.sleep(0.01) or quick(*given)
runpy.run_module("workflow.bench.train", run_name="__main__")
"""
"""``python -m workflow.bench.train`` with steps of at least ten milliseconds."""


def test_a_run_stopped_by_a_signal_is_saved_and_resumed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """SIGTERM in the middle of a run, then the same command again. Truth: the uninterrupted run."""
    write(folder, "one", block(optimizer("mkor"), steps=200, evaluate_every=20))
    plan = load(folder)
    (run,) = plan.runs.values()
    place = RunFolder.of(plan.results, run.id)
    arguments = ["one", "mkor", *options(folder)]
    first = subprocess.Popen([sys.executable, "-c", SLOWLY, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while len(read_metrics(place)) < 3 and time.monotonic() < limit:
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == EXIT_RESUMABLE == 75, errors
    *_, message, cost = errors.splitlines()
    assert message == "interrupted and saved; the same command resumes it"
    assert cost.startswith("cost: ")
    summary = read_summary(place)
    assert summary["status"] == "interrupted"
    assert 20 <= summary["steps_done"] < 200
    assert not plan.csv_of(plan.job("one", "mkor")).exists()

    assert train.main(arguments) == 0
    assert f"resuming from step {summary['steps_done']}" in capsys.readouterr().err
    whole = RunFolder(tmp_path / "whole")
    one_run.train(run, create(**run.spec["workload"]), whole, setting())
    assert rows(whole.metrics, TIMES) == rows(place.metrics, TIMES)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_signal_of_a_queue_may_arrive_twice(number: signal.Signals):
    """The queue sends it, and the launcher passes it on."""
    before = signal.getsignal(number)
    with Stop().listening() as stop:
        assert not stop()
        for _ in range(2):
            os.kill(os.getpid(), number)
            assert stop()
    assert signal.getsignal(number) == before


def test_under_a_launcher_ctrl_c_may_arrive_twice():
    with Stop(launched=True).listening() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()


def test_the_first_ctrl_c_requests_a_stop_and_the_second_interrupts():
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


def test_a_progress_counts_on_from_the_runs_that_others_showed(folder: Path):
    log = io.StringIO()
    run = run_of(folder, "sgd")
    assert Runner(load(folder), stream=io.StringIO()).train([run], Progress(7, log, done=4))
    assert Runner(load(folder), stream=io.StringIO()).train([run], Progress(7, log, done=5))
    lines = log.getvalue().splitlines()
    assert lines[-2].startswith("run 5 of 7: autoencoder sgd lr=0.1 seed=0: finished after 20 steps, ")
    assert lines[-1] == "run 6 of 7: autoencoder sgd lr=0.1 seed=0: done before"


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


# No package contains ResNet-50's data set; tests/bench/workloads/test_images.py tests it.
@pytest.mark.parametrize("name", sorted({*workloads.NAMES} - {"resnet50"}))
def test_a_workload_evaluates_the_metrics_that_its_schema_names(name: str):
    """Targets and tuning are checked against those names before anything runs."""
    workload = create(name)
    model, named = workload.model(0), schema(f"workloads/{name}")
    evaluated = set(workload.evaluate(model))
    # Each task has its own metrics; tests/bench/workloads/test_finetuning.py checks them.
    by_task = name in ("bert_classification", "bert_krona")
    assert evaluated <= set(named["metrics"]) if by_task else evaluated == set(named["metrics"])
    assert set(workload.evaluate_training(model)) == set(named.get("training_metrics", []))
