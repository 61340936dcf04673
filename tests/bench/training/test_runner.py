"""The command `train` and its list of runs: what it trains, skips, refuses and publishes, and how it is stopped."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import Timeout

from tests.support.experiments import TIMES, block, load, optimizer, options, rows, write
from tests.support.records import read_metrics, read_summary
from tests.support.trained import SMALL, run_of, setting, slow_steps
from workflow.bench import train, workloads
from workflow.bench.aggregate import aggregate
from workflow.bench.data import digits
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.results.rows import run_rows
from workflow.bench.status import states
from workflow.bench.support import provenance
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.support.files import first_free, locked, write_json
from workflow.bench.training import build, one_run, ranks
from workflow.bench.training import record as records_read
from workflow.bench.training.launcher import LaunchedRank
from workflow.bench.training.precision import choose_algorithms
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder, origin_of
from workflow.bench.training.runner import Runner
from workflow.bench.training.stop_signals import EXIT_RESUMABLE, Stop
from workflow.bench.workloads import create
from workflow.bench.workloads.autoencoder import Autoencoder
from workflow.bench.workloads.base import Workload

START = {"experiment": "first", "optimizer": "sgd", "seed": 0}
SHORT: dict[str, Any] = {"workload": SMALL, "steps": 1, "evaluate_every": 1}
Says = pytest.CaptureFixture[str]


def call(folder: Path, *words: str) -> int:
    """Call the command, by default for sgd in the experiment ``one``."""
    if not words or words[0].startswith("--"):
        words = ("one", "sgd", *words)
    return train.main([*words, *options(folder)])


def write_chain(folder: Path, **shared: Any) -> tuple[Plan, RunFolder]:
    """Write two experiments, of which the second starts from the first; return the plan and the folder of the first."""
    write(folder, "first", block(optimizer("sgd"), **SHORT))
    write(folder, "second", block(optimizer("sgd"), **{**SHORT, **shared}, start_from=START))
    plan = load(folder)
    return plan, RunFolder.of(plan.results, plan.job("first", "sgd").run_ids[0])


def place_of(folder: Path) -> RunFolder:
    """Return the folder of a plan's only run."""
    plan = load(folder)
    (run,) = plan.runs.values()
    return RunFolder.of(plan.results, run.id)


def whole_metrics(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a plan's only run, trained here without a disturbance, except for the times."""
    (run,) = load(folder).runs.values()
    place = RunFolder(folder / "whole")
    one_run.train(run, create(**run.spec["workload"]), place, setting())
    return rows(place.metrics, TIMES)


def test_the_command_trains_missing_runs_and_publishes(folder: Path, capsys: Says):
    write(folder, "one", block(optimizer("sgd", "plain"), optimizer("mkor"), seeds=[0, 1]))
    assert call(folder, "one", "plain") == 0
    published = load(folder).results / "one" / "plain.csv"
    published_rows = rows(published)
    assert {(row["optimizer"], row["method"], row["seed"], row["status"]) for row in published_rows} == {
        ("plain", "sgd", "0", "finished"),
        ("plain", "sgd", "1", "finished"),
    }
    assert len(published_rows) == 14  # two runs with 1 + 2 * 3 rows each
    assert "run 2 of 2" in capsys.readouterr().err
    content = published.read_bytes()

    assert call(folder, "one", "plain") == 0
    assert capsys.readouterr().err.count("done before") == 2
    assert published.read_bytes() == content

    # One more seed: only that is trained.
    write(folder, "one", block(optimizer("sgd", "plain"), seeds=[0, 1, 2]))
    assert call(folder, "one", "plain") == 0
    errors = capsys.readouterr().err
    assert errors.count("done before") == 2
    assert errors.count("finished after") == 1
    specs = load(folder).results / "specs"
    assert {file.stem for file in specs.iterdir()} == set(load(folder).runs)
    for file in specs.iterdir():
        assert Run(json.loads(file.read_text())).id == file.stem


def test_a_record_is_read_once_for_the_list_and_once_before_training(folder: Path, monkeypatch: pytest.MonkeyPatch):
    write(folder, "one", block(optimizer("sgd"), **SHORT, seeds=[0, 1]))
    first, second = load(folder).job("one", "sgd").runs
    read: list[str] = []
    true = records_read.read_record

    def counted(folder: RunFolder, run: Run) -> records_read.Record:
        read.append(run.id)
        return true(folder, run)

    monkeypatch.setattr(records_read, "read_record", counted)
    stream = io.StringIO()
    assert Runner(load(folder), stream=stream).train([first])
    assert read == [first.id] * 2
    assert Runner(load(folder), stream=stream).train([first, second])
    assert read[2:] == [first.id, *([second.id] * 2)]


def test_labels_given_together_are_trained_and_published_as_one_by_one(folder: Path, capsys: Says):
    """Truth: the same labels, each in a call of its own."""
    write(folder, "one", block(optimizer("sgd"), optimizer("adamw")))
    plan = load(folder)
    files = [plan.csv_of(job) for job in plan.jobs]
    assert call(folder, "one", "sgd", "adamw") == 0
    together = [rows(file, TIMES) for file in files]
    shutil.rmtree(plan.results)
    for label in ("sgd", "adamw"):
        assert call(folder, "one", label) == 0
    assert [rows(file, TIMES) for file in files] == together
    capsys.readouterr()
    assert call(folder, "one", "sgd", "adamw", "--out=x.csv") == 1
    assert capsys.readouterr().err == "--out: takes the CSV of one label; leave it out, or train one label at a time\n"


def test_single_seeds_are_trained_and_not_published(folder: Path):
    write(folder, "one", block(optimizer("sgd"), seeds=[0, 1]))
    assert call(folder, "one", "sgd", "--seed", "1") == 0
    plan = load(folder)
    first, second = plan.job("one", "sgd").runs
    assert not RunFolder.of(plan.results, first.id).summary.exists()
    assert RunFolder.of(plan.results, second.id).summary.exists()
    assert not plan.csv_of(plan.job("one", "sgd")).exists()


def test_a_checkpoint_left_behind_by_a_finished_run_is_removed(folder: Path):
    """A process may be killed between writing the record and removing the checkpoint."""
    write(folder, "one", block(optimizer("sgd"), **SHORT))
    assert call(folder) == 0
    place = place_of(folder)
    record = place.summary.read_bytes()
    place.checkpoint.write_bytes(b"left behind")
    assert call(folder) == 0
    assert not place.checkpoint.exists()
    assert place.summary.read_bytes() == record


def test_the_run_that_others_start_from_is_trained_first(folder: Path, capsys: Says):
    """The command trains it without the pipeline, and the other runs start from its final weights."""
    plan, source = write_chain(folder, seeds=[0, 1])
    assert call(folder, "second", "sgd") == 0
    assert "run 3 of 3" in capsys.readouterr().err
    last = read_metrics(source)[-1]
    for run in plan.job("second", "sgd").runs:
        place = RunFolder.of(plan.results, run.id)
        assert read_metrics(place)[0]["value"] == last["value"]
        assert not place.weights.exists()


def test_damaged_weights_are_made_anew_if_their_length_shows_it_else_named(folder: Path, capsys: Says):
    _, place = write_chain(folder)
    assert call(folder, "first", "sgd") == 0
    whole = place.weights.read_bytes()
    place.weights.write_bytes(whole[:-1] + b"?")
    capsys.readouterr()
    assert call(folder, "second", "sgd") == 1
    advice = f"delete it, and run {place.path.name} is trained again"
    said = f"{place.weights}: damaged: its checksum does not match; {advice}"
    assert capsys.readouterr().err.splitlines()[-1] == said
    place.weights.write_bytes(whole[:-1])
    said = r"weights\.pt: damaged: contains \d+ of \d+ bytes; the run counts as not done"
    with pytest.warns(UserWarning, match=said):
        assert call(folder, "second", "sgd") == 0
    assert place.weights.read_bytes() == whole


def test_an_adopted_run_is_trained_only_if_another_is_about_to_start_from_it(folder: Path, capsys: Says):
    """Its record counts as done, but it has no weights."""
    plan, place = write_chain(folder)
    assert call(folder, "second", "sgd") == 0
    place.weights.unlink()
    write_json(place.origin, "elsewhere")
    record = place.summary.read_bytes()
    for experiment in ("first", "second"):
        assert call(folder, experiment, "sgd") == 0
    assert origin_of(place) == "elsewhere"
    assert place.summary.read_bytes() == record
    assert [row["hardware"] for row in run_rows(plan, plan.job("first", "sgd"))] == ["elsewhere"]
    assert [row["hardware"] for row in run_rows(plan, plan.job("second", "sgd"))] == ["test"]
    assert [state.state for state in states(plan, plan.job("first", "sgd"))] == ["finished"]

    write_chain(folder, seeds=[0, 1])
    capsys.readouterr()
    assert call(folder, "second", "sgd") == 0
    assert "run 2 of 3: autoencoder sgd" in capsys.readouterr().err
    assert origin_of(place) is None
    assert place.weights.exists()


def test_a_damaged_origin_is_named(folder: Path, capsys: Says):
    _, place = write_chain(folder)
    write_json(place.origin, "../elsewhere")
    assert call(folder, "first", "sgd") == 1
    assert capsys.readouterr().err == f"{place.origin}: damaged: it does not contain the name of a machine\n"


def test_runs_that_cannot_start_are_rows_with_a_reason(folder: Path, capsys: Says, monkeypatch: pytest.MonkeyPatch):
    write(folder, "first", block(optimizer("sgd", lr=1e30)))
    write(folder, "second", block(optimizer("mkor"), start_from=START))
    assert call(folder, "second", "mkor") == 0
    plan = load(folder)
    (row,) = rows(plan.csv_of(plan.job("second", "mkor")))
    assert (row["status"], row["step"], row["value"]) == ("skipped", "", "")
    assert "which is diverged" in capsys.readouterr().err

    def absent(*_: Any, **__: Any) -> Workload:
        raise DataNotFound("cifar", "data/cifar", "download it")

    monkeypatch.setattr(workloads, "create", absent)
    write(folder, "third", block(optimizer("sgd")))
    assert call(folder, "third", "sgd") == 0
    assert "skipped: cifar not found at data/cifar; download it" in capsys.readouterr().err
    monkeypatch.undo()
    # Once the data is there, a skipped run is tried again.
    assert call(folder, "third", "sgd") == 0
    assert "finished after 20 steps" in capsys.readouterr().err


def test_runs_without_data_and_the_runs_that_start_from_them_are_skipped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Truth: the reasons in the tables of both experiments."""
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    absent = {"name": "autoencoder", "dataset": "cifar100", "batch_size": 128}
    write(folder, "first", block(optimizer("sgd"), workload=absent, seeds=[0, 1]))
    write(folder, "second", block(optimizer("mkor"), start_from=START))
    plan = load(folder)
    for experiment, label in (("first", "sgd"), ("second", "mkor")):
        assert call(folder, experiment, label) == 0
        aggregate(plan, experiment)
    source = plan.job("first", "sgd").runs[0].id
    why = [row["reason"] for row in rows(plan.results / "first.runs.csv")]
    assert len(set(why)) == 1
    assert why[0].startswith(f"CIFAR-100 not found at {tmp_path / 'data'}")
    skipped = rows(plan.results / "second.runs.csv")
    assert [row["reason"] for row in skipped] == [f"it starts from run {source}, which is skipped: {why[0]}"]
    tables = (*rows(plan.results / "first.csv"), *rows(plan.results / "second.csv"))
    assert {row["status"] for row in tables} == {"skipped"}


@pytest.mark.parametrize(
    ("name", "hyperparameters", "shared", "said"),
    [
        ("sgd", {"nesterov": True, "momentum": 0.0}, {}, "autoencoder sgd lr=0.1 seed=0: Nesterov"),
        ("singd", {}, {"precision": "float16"}, "precision = float16: singd cannot: "),
    ],
)
def test_what_only_an_optimizer_refuses_is_one_line(
    name: str, hyperparameters: dict[str, Any], shared: dict[str, Any], said: str, folder: Path, capsys: Says
):
    run_of(folder, name, shared, **hyperparameters)
    assert call(folder, "one", name) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert said in errors


@pytest.mark.parametrize(
    ("word", "said"),
    [
        *((f"--minutes={word}", f"--minutes = {float(word)}: must be greater than 0") for word in ("0", "-1", "nan")),
        ("--minutes=inf", "--minutes = inf: must be greater than 0"),
        # The system's timer takes no more than some centuries.
        ("--minutes=1e300", "--minutes = 1e+300: must be at most 525600, a year"),
        # With the exit code that asks for another slice, a chain of jobs would never end.
        ("--minutes=0.000001", "--minutes = 1e-06: over before a step was trained; give it more"),
    ],
)
def test_a_wrong_time_limit_is_one_line(word: str, said: str, folder: Path, capsys: Says):
    write(folder, "one", block(optimizer("sgd")))
    assert call(folder, word) == 1
    assert capsys.readouterr().err == f"{said}\n"


def test_a_folder_to_write_to_is_refused_before_training(folder: Path, capsys: Says):
    """Given as ``--out``, or in the place of the CSV file that is written without it; and a file in that of results."""
    write(folder, "one", block(optimizer("sgd")))
    assert call(folder, f"--out={folder}") == 1
    load(folder).csv_of(load(folder).job("one", "sgd")).mkdir(parents=True)
    assert call(folder) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["is a folder; give the name of a file"] * 2
    assert not (load(folder).results / "runs").exists()
    shutil.rmtree(folder.parent / "results")
    (folder.parent / "results").write_text("a file in the way")
    assert call(folder) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "results" in errors


@pytest.mark.parametrize(
    "name", ["run.json", "metrics.csv", "lock", "checkpoint.pt", "checkpoint.pt.previous", "weights.pt"]
)
def test_a_folder_where_a_file_of_the_run_belongs_is_refused_before_training(name: str, folder: Path, capsys: Says):
    write(folder, "one", block(optimizer("sgd")))
    place = place_of(folder).path / name
    place.mkdir(parents=True)
    assert call(folder) == 1
    assert capsys.readouterr().err == f"{place}: cannot be read: it is a folder, not a file\n"
    assert not (place.parent / "metrics.csv").is_file()


def test_a_batch_larger_than_the_data_set_is_one_line_before_the_first_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Says
):
    """Where the plan does not know the size of the data, the workload compares it."""
    monkeypatch.setattr(digits, "TRAIN_EXAMPLES", 10**6)
    write(folder, "one", block(optimizer("sgd"), workload={"name": "autoencoder", "batch_size": 1438}))
    assert call(folder) == 1
    said = "batch_size=1438 must be at most the number of training examples, 1437."
    assert capsys.readouterr().err.splitlines()[-1] == f"workload autoencoder: {said}"
    assert read_summary(place_of(folder))["reason"].endswith(said)


def test_a_model_larger_than_the_memory_is_an_outcome(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Says):
    """Linux grants more memory than it has, and kills whoever uses it. Truth: weights and biases counted by hand."""
    monkeypatch.setattr(build, "memory_bytes", lambda: 10**6)
    write(folder, "one", block(optimizer("sgd"), workload={"name": "autoencoder", "hidden": [3000]}))
    assert call(folder) == 0
    (row,) = rows(load(folder).results / "one" / "sgd.csv")
    assert (row["status"], row["step"]) == ("out_of_memory", "")
    size = 4 * (2 * 64 * 3000 + 3000 + 64)
    said = f"the weights of autoencoder 64-3000-64 take {size:,} bytes, and this machine has 1,000,000 bytes of memory"
    assert said in capsys.readouterr().err


def test_a_scale_beyond_the_dtype_is_divergence(folder: Path, capsys: Says):
    """AdamW scales its first step by lr / (1 - beta1), here 1e43, which torch refuses for float32."""
    write(folder, "one", block(optimizer("adamw", lr=1e36, beta1=1 - 1e-7)))
    assert call(folder, "one", "adamw") == 0
    assert "diverged after 0 steps" in capsys.readouterr().err


SLOWLY = """
import runpy, time
from workflow.bench.workloads.autoencoder import Autoencoder
quick = Autoencoder.loss
Autoencoder.loss = lambda *given: time.sleep(0.01) or quick(*given)
runpy.run_module("workflow.bench.train", run_name="__main__")
"""
"""``python -m workflow.bench.train`` with steps of at least ten milliseconds."""


def test_a_run_stopped_by_a_signal_is_saved_and_resumed(folder: Path, capsys: Says):
    """SIGTERM in the middle of a run, then the same command again. Truth: the uninterrupted run."""
    write(folder, "one", block(optimizer("mkor"), steps=200, evaluate_every=20))
    plan, place = load(folder), place_of(folder)
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
    assert rows(place.metrics, TIMES) == whole_metrics(folder)


def test_a_run_stopped_by_a_time_limit_is_saved_and_resumed(
    folder: Path, capsys: Says, monkeypatch: pytest.MonkeyPatch
):
    """Truth: the same run without a time limit."""
    write(folder, "one", block(optimizer("mkor", inverse_update_period=1), steps=100, evaluate_every=50))
    mark = folder / "mark"
    monkeypatch.setenv("MKOR_SAVED", str(mark))
    with monkeypatch.context() as patch:
        patch.setattr(Autoencoder, "loss", slow_steps())
        assert call(folder, "one", "mkor", "--minutes=0.01") == EXIT_RESUMABLE
    assert capsys.readouterr().err.endswith("interrupted and saved; the same command resumes it\n")
    mark.unlink()  # launchers may turn the code into another
    assert call(folder, "one", "mkor") == 0
    assert not mark.exists()
    assert rows(place_of(folder).metrics, TIMES) == whole_metrics(folder)


def test_the_time_limit_also_ends_a_wait_for_another_process(folder: Path):
    write(folder, "one", block(optimizer("sgd")))
    started = time.monotonic()
    with locked(place_of(folder).lock):
        assert call(folder, "--minutes=0.02") == 1
    assert time.monotonic() - started < 20


def test_one_process_at_a_time_trains_a_run(folder: Path):
    """A second process waits for the lock, and then finds the run done."""
    write(folder, "one", block(optimizer("sgd")))
    (run,) = load(folder).runs.values()
    place = place_of(folder)
    command = [sys.executable, "-m", "workflow.bench.train", "one", "sgd", *options(folder)]
    with locked(place.lock):
        waiting = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert waiting.stderr.readline().endswith("another process trains it; waiting\n")
        one_run.train(run, create(**run.spec["workload"]), place, setting())
    _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert "done by another process" in errors


@pytest.mark.parametrize(
    ("number", "launched", "is_ctrl_c"),
    [
        (signal.SIGTERM, False, False),
        (signal.SIGUSR1, False, False),
        (signal.SIGINT, True, False),
        (signal.SIGINT, False, True),
    ],
)
def test_a_signal_asks_for_a_stop_and_only_a_second_ctrl_c_interrupts(
    number: signal.Signals, launched: bool, is_ctrl_c: bool
):
    """A queue's signal may arrive twice, as its launcher passes it on; under a launcher, Ctrl-C as well."""
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with Stop(launched=launched).listening() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        if is_ctrl_c:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        else:
            os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


def test_a_progress_counts_on_from_the_runs_that_others_showed(folder: Path):
    log = io.StringIO()
    run = run_of(folder, "sgd")
    assert Runner(load(folder), stream=io.StringIO()).train([run], Progress(7, log, done=4))
    assert Runner(load(folder), stream=io.StringIO()).train([run], Progress(7, log, done=5))
    lines = log.getvalue().splitlines()
    assert lines[-2].startswith("run 5 of 7: autoencoder sgd lr=0.1 seed=0: finished after 20 steps, ")
    assert lines[-1] == "run 6 of 7: autoencoder sgd lr=0.1 seed=0: done before"


def test_defaults_keep_a_runs_id_and_other_values_change_it(folder: Path):
    plain = run_of(folder, "sgd")
    assert run_of(folder, "sgd", {"micro_batch_size": 128, "precision": "float32"}).id == plain.id
    changes: list[dict[str, Any]] = [
        {"micro_batch_size": 64},
        {"precision": "bfloat16"},
        {"precision": "float16", "micro_batch_size": 32},
    ]
    others = [run_of(folder, "sgd", change) for change in changes]
    assert len({plain.id, *(run.id for run in others)}) == 4
    for run, change in zip(others, changes, strict=True):
        assert {**plain.spec, **change} == run.spec
    with pytest.raises(ConfigError, match="micro_batch_size = 48: must divide the workload's batch_size, 128"):
        run_of(folder, "sgd", {"micro_batch_size": 48})


def test_a_tier_has_a_precision_and_a_block_may_have_another(folder: Path):
    tier = folder / "tiers" / "embedded.yaml"
    tier.write_text(tier.read_text() + "precision: bfloat16\n")
    assert run_of(folder, "sgd").precision == "bfloat16"
    assert run_of(folder, "sgd", {"precision": "float32"}).spec.get("precision") is None
    tier.write_text(tier.read_text().replace("bfloat16", "float8"))
    with pytest.raises(ConfigError, match='precision = "float8": must be one of the known values'):
        load(folder)


@pytest.fixture
def _flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave torch's flags and the environment as they were."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    choose_algorithms(deterministic=False)


@pytest.mark.usefixtures("_flags")
def test_a_deterministic_tier_sets_its_flags_before_cuda_starts_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Runs of other tiers keep their ids: the setting is in a spec only if it is true."""
    write(folder, "one", block(optimizer("mkor"), **SHORT))
    (plain,) = load(folder).runs.values()
    tier = folder / "tiers" / "embedded.yaml"
    tier.write_text(tier.read_text() + "deterministic: true\n")
    plan = load(folder)
    (run,) = plan.runs.values()
    assert run.spec == {**plain.spec, "deterministic": True}
    assert run.id != plain.id
    at_start: list[str | None] = []  # CUDA starts when ranks join
    join = ranks.joined

    def joined(place: LaunchedRank, device: str) -> AbstractContextManager[ranks.Ranks]:
        at_start.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        return join(place, device)

    monkeypatch.setattr(ranks, "joined", joined)
    assert call(folder, "one", "mkor") == 0
    assert at_start == [":4096:8"]
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert read_summary(RunFolder.of(plan.results, run.id))["spec"]["deterministic"] is True
    tier.write_text(tier.read_text().replace("true", "false"))
    assert call(folder, "one", "mkor") == 0
    assert not torch.are_deterministic_algorithms_enabled()
    assert "deterministic" not in read_summary(RunFolder.of(plan.results, plain.id))["spec"]


@pytest.mark.parametrize("tier", ["single_gpu", "paper"])
def test_without_a_gpu_a_gpu_tier_can_be_planned_but_not_trained(
    tier: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Says
):
    monkeypatch.setattr(provenance, "gpu_names", tuple)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write(folder, "one", block(optimizer("sgd")), tier=tier)
    plan = load(folder, tier=tier, hardware="auto")
    assert plan.hardware == provenance.NO_GPU
    assert plan.notes[-1].startswith(f"tier '{tier}' trains on a GPU, but nvidia-smi lists none")
    assert not plan.results.parents[1].exists()
    assert call(folder, f"--tier={tier}") == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith(f"tier = '{tier}': it trains on a GPU, and ")


def _hold(path: Path, ready: Any, done: Any) -> None:
    with first_free([path]):
        ready.set()
        done.wait(60)


def test_the_first_free_lock_is_taken(tmp_path: Path):
    """Truth: another process that holds the first one, as a job that uses a GPU does."""
    paths = [tmp_path / "locks" / f"gpu-{index}.lock" for index in range(2)]
    processes = multiprocessing.get_context("fork")
    ready, done, messages = processes.Event(), processes.Event(), []
    other = processes.Process(target=_hold, args=(paths[0], ready, done))
    other.start()
    assert ready.wait(60)
    with first_free(paths) as index:
        assert index == 1

    def wait() -> None:
        messages.append("waiting")
        done.set()

    with pytest.raises(Timeout), first_free(paths[:1], give_up=lambda: True):
        pass
    with first_free(paths[:1], on_wait=wait) as index:
        assert index == 0
    other.join()
    assert messages == ["waiting"]
    with first_free(paths) as index:
        assert index == 0
