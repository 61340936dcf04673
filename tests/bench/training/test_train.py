"""Training one run of the autoencoder on the digits: its numbers, outcomes, resuming, clocks and progress."""

from __future__ import annotations

import io
import json
import math
import mmap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from baselines import available
from mkor_core.engines.comparison import Comparison
from tests.support.records import read_metrics, read_summary
from tests.support.trained import (
    Changed,
    InFloat64,
    after,
    amplified,
    assert_same_result,
    run_of,
    setting,
    train,
    weights,
)
from workflow.bench import workloads
from workflow.bench.plan.hyperparameters import accepted, read_signatures
from workflow.bench.support.config import schema
from workflow.bench.support.source_code import is_current
from workflow.bench.training import one_run, peak_memory
from workflow.bench.training import state as training_state
from workflow.bench.training.build import build, micro_batches
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.loop import Loop, effects, sampled_matrices, update_rms
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import MetricsLog, RunFolder
from workflow.bench.training.state import TrainingState
from workflow.bench.workloads.base import Workload


def _with_periods(name: str) -> dict[str, Any]:
    """Return 7 steps for every period that an optimizer has, so that runs stop between two updates."""
    return {period: 7 for period in accepted(name, None, read_signatures()) if period.endswith("update_period")}


MKOR = {"lr": 0.01, "inverse_update_period": 7}
METHODS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((name, {"lr": 0.01, **_with_periods(name)}, {}) for name in available()),
    ("mkor", {**MKOR, "update_rule": "released", "base": "lamb"}, {}),
    ("kaisa", {"lr": 0.01, "factor_update_period": 3, "inverse_update_period": 7}, {}),
    ("mkor_h", {"lr": 0.01, "inverse_update_period": 3, "warmup_steps": 0}, {}),
    ("mkor", MKOR, {"micro_batch_size": 32}),
    ("mkor", MKOR, {"precision": "bfloat16"}),
    ("mkor", MKOR, {"precision": "float16"}),
]


@pytest.mark.parametrize(("name", "hyperparameters", "shared"), METHODS, ids=str)
def test_interrupted_and_resumed_equals_uninterrupted(
    name: str, hyperparameters: dict[str, Any], shared: dict[str, Any], folder: Path, workload: Workload, tmp_path: Path
):
    """Truth: the uninterrupted run, bit for bit.

    Runs stop between two inverse updates (after steps 9 and 12; the period is 7), between two evaluations (every 5
    steps), and on an evaluation (10). With float16, overflows before and after the stops lower the scale.
    """
    shared = {"schedule": {"name": "linear", "warmup": 0.2}, "evaluate_every": 5, **shared}
    run = run_of(folder, name, shared, **hyperparameters)
    overflows = (3, 15) if shared.get("precision") == "float16" else ()
    whole, sliced = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "sliced")
    assert train(run, amplified(workload, *overflows), whole) == "finished"
    one = amplified(workload, *overflows)
    for steps in (9, 1, 2):
        torch.manual_seed(steps)  # as in another process
        assert train(run, one, sliced, after(steps)) == "interrupted"
        assert sliced.checkpoint.exists()
    assert read_summary(sliced)["steps_done"] == 12
    assert train(run, one, sliced) == "finished"
    assert_same_result(whole, sliced, run)
    assert not sliced.checkpoint.exists()
    for place, slices in ((whole, 1), (sliced, 4)):
        summary = read_summary(place)
        assert (summary["steps_done"], summary["slices"]) == (20, slices)
        assert summary["skipped_steps"] == len(overflows)


def test_a_run_killed_after_a_checkpoint_replaces_the_later_rows(folder: Path, workload: Workload, tmp_path: Path):
    """A killed process leaves rows that are later than its checkpoint, the last one incomplete."""
    run = run_of(folder, "mkor", {"evaluate_every": 2})
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    train(run, workload, whole)
    train(run, workload, killed, after(7))
    with killed.metrics.open("a") as file:
        file.write("8,0.727273,train,loss,0.5,0.1,1.0,1.0\n8,0.7272")
    killed.summary.unlink()
    assert train(run, workload, killed) == "finished"
    assert_same_result(whole, killed, run)


def test_a_run_killed_between_weights_and_record_leaves_no_second_copy(
    folder: Path, workload: Workload, place: RunFolder
):
    run = run_of(folder, "sgd")
    for _ in range(2):
        assert train(run, workload, place) == "finished"
        place.summary.unlink()
    assert sorted(file.name for file in place.path.iterdir()) == ["metrics.csv", "weights.pt"]


def test_checkpoints_by_time_do_not_change_the_result(folder: Path, workload: Workload, tmp_path: Path):
    run = run_of(folder, "mkor")
    whole, saved = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "saved")
    train(run, workload, whole)
    train(run, workload, saved, checkpoint_minutes=1e-9)
    assert_same_result(whole, saved, run)
    assert read_summary(saved)["seconds"]["checkpoint"] > 0
    assert read_summary(whole)["seconds"]["checkpoint"] == 0


def test_a_run_resumed_with_other_code_is_not_current(
    folder: Path, workload: Workload, place: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    run = run_of(folder, "sgd")
    monkeypatch.setattr(training_state, "code_fingerprint", lambda specs: "older")
    train(run, workload, place, after(3))
    monkeypatch.undo()
    train(run, workload, place)
    summary = read_summary(place)
    assert summary["code_fingerprint"].startswith("older, ")
    assert not is_current(summary, run.lineage)


def test_the_record_of_a_finished_run_is_complete(folder: Path, workload: Workload, place: RunFolder):
    run = run_of(folder, "mkor", {"schedule": {"name": "linear"}})
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
    evaluated = [("10", "train", "loss"), ("10", "train", "update_rms"), ("10", "validation", "loss")]
    evaluated = [("0", "validation", "loss"), *evaluated, *(("20", *row[1:]) for row in evaluated)]
    assert [(row["step"], row["split"], row["metric"]) for row in metrics] == evaluated
    # The rate of the last step: 0.1 falls to zero over 20 steps.
    assert [float(row["lr"]) for row in metrics] == pytest.approx([0.1, *[0.055] * 3, *[0.005] * 3])
    assert float(metrics[1]["epoch"]) == pytest.approx(10 / workload.steps_per_epoch, rel=1e-5)
    of_preconditioner = [(row["step"], row["metric"]) for row in rows if row["split"] == "preconditioner"]
    assert {step for step, _ in of_preconditioner} == {"10", "20"}
    assert {name for _, name in of_preconditioner} >= {
        *("cosine", "cosine_least", "cosine_left", "cosine_right", "length", "start_weight")
    }


class Three:
    """A preconditioner that has compared three layers; the gradient of one is zero, and has no direction."""

    def comparisons(self) -> dict[str, Comparison]:
        return {
            "a": Comparison(0.5, 2.0, {"left": 1.0, "right": 0.5}, 0.9),
            "b": Comparison(0.9, 1.0, {"right": 0.8}, 0.2),
            "c": Comparison(math.nan, math.nan, {"right": 0.9}, None),
        }


def test_effects_are_medians_and_extremes_over_layers():
    three: Any = Three()
    sides = {"cosine_left": 1.0, "cosine_right": 0.8, "start_weight": 0.9}
    cosines = {"cosine": 0.7, "cosine_least": 0.5, "cosine_most": 0.9}
    lengths = {"length": 1.5, "length_least": 1.0, "length_most": 2.0}
    assert effects(three) == pytest.approx({**cosines, **lengths, **sides})
    assert effects(None) == {}


def test_update_rms_is_the_size_of_one_steps_change_of_the_matrices():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 400, bias=False), torch.nn.Linear(400, 400))
    before = sampled_matrices(model)
    for weight in model.parameters():
        weight.data += 0.5 if weight.ndim == 1 else 0.0
    assert update_rms(model, before) == 0
    start = [weight.detach().clone() for weight in model.parameters() if weight.ndim > 1]
    before = sampled_matrices(model)
    for scale, weight in enumerate((w for w in model.parameters() if w.ndim > 1), start=1):
        weight.data += scale * torch.tensor(0.25)
    after = [weight.detach() for weight in model.parameters() if weight.ndim > 1]
    whole = torch.cat([(new - old).flatten() for new, old in zip(after, start, strict=True)])
    assert update_rms(model, before) == pytest.approx(float(whole.double().square().mean().sqrt()), rel=1e-5)
    # A copy of a large matrix would raise the peak memory.
    assert max(len(entries) for entries in before) <= 65536 < 400 * 400


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_run_trains_like_a_bare_loop(precision: str, folder: Path, workload: Workload, place: RunFolder):
    """Truth: the same training written out with torch alone, with its autocast and its GradScaler."""
    run = run_of(folder, "sgd", {"precision": precision}, momentum=0.9)
    overflows = (4,) if precision == "float16" else ()
    assert train(run, amplified(workload, *overflows), place) == "finished"
    model, losses = workload.model(0), []
    bare = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=False)
    if precision != "float32":
        autocast = torch.autocast("cpu", getattr(torch, precision))
    truth = amplified(workload, *overflows)
    for _, one in zip(range(20), workload.batches(0), strict=False):
        with autocast:
            loss = truth.loss(model, one)
        bare.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(bare)
        scaler.update()
        losses.append(loss.detach().double())
    trained = weights(place, run)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    if precision == "float32":
        means = [
            float(row["value"]) for row in read_metrics(place) if (row["split"], row["metric"]) == ("train", "loss")
        ]
        assert means == [torch.stack(part).mean().item() for part in (losses[:10], losses[10:])]
    with autocast:
        evaluated = workload.evaluate(model)["loss"]
    last = [row for row in read_metrics(place) if row["split"] == "validation"][-1]
    assert float(last["value"]) == evaluated
    assert read_summary(place)["skipped_steps"] == len(overflows)


def test_a_first_step_that_overflows_gives_no_warning(
    folder: Path, workload: Workload, place: RunFolder, recwarn: pytest.WarningsRecorder
):
    """torch warns if the schedule steps before the first update; the rate is a function of the step regardless."""
    run = run_of(folder, "mkor", {"precision": "float16", "schedule": {"name": "linear"}})
    assert train(run, amplified(workload, 1), place) == "finished"
    assert not [str(warning.message) for warning in recwarn if "lr_scheduler" in str(warning.message)]
    assert float(read_metrics(place)[-1]["lr"]) == pytest.approx(0.1 / 20)


@pytest.mark.parametrize(
    ("name", "hyperparameters"),
    [
        ("sgd", {}),
        ("lamb", {}),
        ("mkor", {"inverse_update_period": 2}),
        ("mkor", {"inverse_update_period": 2, "update_rule": "released", "base": "lamb"}),
        ("mkor_h", {"inverse_update_period": 2, "warmup_steps": 0}),
        ("kaisa", {"factor_update_period": 1, "inverse_update_period": 3}),
    ],
)
def test_micro_batches_train_like_the_full_batch(
    name: str, hyperparameters: dict[str, Any], folder: Path, workload: Workload, tmp_path: Path
):
    """Truth: the same run without micro-batches, float64."""
    double: Any = InFloat64(workload)
    whole = run_of(folder, name, **hyperparameters)
    cut = run_of(folder, name, {"micro_batch_size": 32}, **hyperparameters)
    assert (whole.accumulation_steps, cut.accumulation_steps) == (1, 4)
    places = {run: RunFolder(tmp_path / run.id) for run in (whole, cut)}
    for run, place in places.items():
        assert train(run, double, place) == "finished"
    truth = weights(places[whole], whole)
    for key, tensor in weights(places[cut], cut).items():
        torch.testing.assert_close(tensor, truth[key], rtol=1e-9, atol=1e-12, msg=key)
    losses = [
        [float(row["value"]) for row in read_metrics(place) if row["split"] == "train"] for place in places.values()
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    switches = [read_summary(place)["switch_step"] for place in places.values()]
    assert switches[0] == switches[1]


def test_micro_batches_keep_the_order_of_the_batch():
    batch = {"x": torch.arange(12).reshape(6, 2), "y": torch.arange(6)}
    parts = micro_batches(batch, 3)
    assert [part["y"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    for name, tensor in batch.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), tensor)
    assert micro_batches(batch, 1) == (batch,)
    with pytest.raises(ValueError, match="cannot be cut into 4 equal parts"):
        micro_batches(batch, 4)
    with pytest.raises(ValueError, match="cannot be cut"):
        micro_batches({"x": torch.zeros(4), "y": torch.zeros(2)}, 2)


def test_the_phases_add_up_to_the_wall_time(folder: Path, workload: Workload, place: RunFolder):
    """Truth: a clock outside the loop."""
    run = run_of(folder, "mkor", {"steps": 150, "evaluate_every": 50})
    watch = {}

    class Watched(Progress):
        def start(self, name: str, steps: int, done: int) -> None:
            watch["begin"] = time.perf_counter()
            super().start(name, steps, done)

    watched = setting(progress=Watched(1, io.StringIO()))
    parts = build(run, workload, watched)
    state = TrainingState(parts, place, watched, MetricsLog(place.metrics))
    Loop(parts, state, watched).run()
    wall = time.perf_counter() - watch["begin"]
    seconds = {phase: used / 1e9 for phase, used in state.account.nanoseconds.items()}
    assert seconds.keys() == set(PHASES)
    assert sum(seconds.values()) == pytest.approx(wall, rel=0.05)
    assert {phase for phase, used in seconds.items() if used == 0} <= {"communication", "checkpoint"}
    assert seconds["checkpoint"] == 0


@pytest.mark.parametrize(("name", "hyperparameters"), [("sgd", {}), ("mkor", {}), ("kaisa", {"kl_clip": None})])
def test_divergence_is_an_outcome(
    name: str, hyperparameters: dict[str, Any], folder: Path, workload: Workload, place: RunFolder
):
    run = run_of(folder, name, {"evaluate_every": 4}, lr=1e30, **hyperparameters)
    assert train(run, workload, place) == "diverged"
    assert read_summary(place)["reason"]
    assert not place.weights.exists()
    assert all(row["value"] not in ("nan", "inf") for row in read_metrics(place))


def _fail(loss: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("a mistake")


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        (lambda loss: loss * torch.nan, "diverged", "the training loss is nan in step 6"),
        # Truth: torch's own error for 4 petabytes.
        (lambda loss: loss + torch.empty(2**50).sum(), "out_of_memory", "memory"),
        (_fail, None, "a mistake"),
    ],
    ids=["not finite", "memory", "error"],
)
def test_what_goes_wrong_in_a_step_is_an_outcome_or_an_error(
    change: Any, status: str | None, reason: str, folder: Path, workload: Workload, place: RunFolder
):
    """A mistake in the code is raised, and not recorded."""
    run, sabotaged = run_of(folder, "sgd"), Changed(workload, {6}, change)
    if status is None:
        with pytest.raises(RuntimeError, match=reason):
            train(run, sabotaged, place)
        assert not place.summary.exists()
        return
    assert train(run, sabotaged, place) == status
    summary = read_summary(place)
    assert reason in summary["reason"]
    assert status != "out_of_memory" or summary["steps_done"] == 5


class Terminal(io.StringIO):
    """Takes text as a terminal does."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("log", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_progress_is_plain_lines_in_a_log_and_a_bar_on_a_terminal(
    log: io.StringIO, folder: Path, workload: Workload, place: RunFolder
):
    progress = Progress(3, log)
    progress.interval_ns = 0
    one_run.train(run_of(folder, "sgd"), workload, place, setting(progress=progress))
    progress.end("finished")
    said = log.getvalue()
    assert "run 1 of 3: autoencoder sgd lr=0.1 seed=0:" in said
    assert "loss 0." in said
    assert ("\r" in said) is log.isatty()
    if not log.isatty():
        lines = said.splitlines()
        assert len(lines) >= 10
        assert lines[0].startswith("run 1 of 3: autoencoder sgd lr=0.1 seed=0: step ")
        assert all(word in lines[0] for word in (" of 20, loss 0.", " steps/s, ", " left"))


def test_the_peak_covers_an_array_that_was_allocated_and_freed():
    peak_memory.reset_peak_memory(torch.device("cpu"))
    before = peak_memory.peak_memory_bytes(torch.device("cpu"))
    # A mapping of its own: an allocator may serve an array from memory that earlier tests have freed to it.
    with mmap.mmap(-1, 2**28) as array:
        array[:] = bytes(2**28)
    # Not all of it: the system may meanwhile reclaim memory that this process does not use.
    assert peak_memory.peak_memory_bytes(torch.device("cpu")) - before >= 2**27


@pytest.mark.parametrize("name", [".", "absent/clear_refs"], ids=["not writable", "absent"])
def test_a_peak_that_cannot_be_reset_is_no_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Truth: writing to a folder is an OSError for every user, as writing clear_refs is in a sandbox."""
    monkeypatch.setattr(peak_memory, "RESET_FILE", tmp_path / name)
    peak_memory.reset_peak_memory(torch.device("cpu"))
    assert peak_memory.peak_memory_bytes(torch.device("cpu")) > 0


# No package contains ResNet-50's data set; tests/bench/workloads/test_images.py tests it.
@pytest.mark.parametrize("name", sorted({*workloads.NAMES} - {"resnet50"}))
def test_a_workload_evaluates_the_metrics_that_its_schema_names(name: str):
    """Targets and tuning are checked against those names before anything runs."""
    workload = workloads.create(name)
    model, named = workload.model(0), schema(f"workloads/{name}")
    evaluated = set(workload.evaluate(model))
    # Each task has its own metrics; tests/bench/workloads/test_finetuning.py checks them.
    by_task = name in ("bert_classification", "bert_krona")
    assert evaluated <= set(named["metrics"]) if by_task else evaluated == set(named["metrics"])
    assert set(workload.evaluate_training(model)) == set(named.get("training_metrics", []))
