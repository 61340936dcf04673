"""Numbers of a step: micro-batches against the full batch, autocast and loss scale against bare torch loops."""

from __future__ import annotations

import io
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import Timeout
from torch import Tensor, nn

from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from tests.support.records import read_metrics, read_summary
from workflow.bench import train
from workflow.bench.data.batches import Batch
from workflow.bench.plan.runs import Run
from workflow.bench.support import provenance
from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import first_free
from workflow.bench.training import checkpoint, one_run, ranks
from workflow.bench.training.batch_shares import micro_batches
from workflow.bench.training.build import Setting
from workflow.bench.training.launcher import Place
from workflow.bench.training.precision import choose_algorithms
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads import create
from workflow.bench.workloads.base import ONE_PROCESS, Team, Workload


@pytest.fixture(scope="module")
def workload() -> Workload:
    return create("autoencoder", batch_size=128, hidden=[32, 8, 32])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "config")


class InFloat64:
    """The autoencoder in double precision, so that sums in different orders agree to many digits."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def model(self, seed: int) -> nn.Module:
        return self._workload.model(seed).double()

    def loss(self, model: nn.Module, one: Batch) -> Tensor:
        images = one["images"].double()
        return nn.functional.mse_loss(model(images), images)

    def evaluate(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        return {"loss": 1.0}


class Amplified:
    """The workload, but in some of its calls the loss is so large that float16's gradients overflow."""

    def __init__(self, workload: Workload, calls: set[int]) -> None:
        self._workload = workload
        self._calls = calls
        self._call = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def loss(self, model: nn.Module, one: Batch) -> Tensor:
        self._call += 1
        loss = self._workload.loss(model, one)
        return loss * 1e25 if self._call in self._calls else loss


def run_of(folder: Path, name: str, shared: dict[str, Any] | None = None, **hyperparameters: Any) -> Run:
    """Return the single run of one optimizer on the small autoencoder."""
    small = {"name": "autoencoder", "batch_size": 128, "hidden": [32, 8, 32]}
    write(folder, "one", block(optimizer(name, **hyperparameters), workload=small, **(shared or {})))
    return load(folder).job("one", name).runs[0]


def setting(stop: Callable[[], bool] = lambda: False) -> Setting:
    return Setting(torch.device("cpu"), 60, Progress(1, io.StringIO()), stop)


def after(steps: int) -> Callable[[], bool]:
    counter = iter(range(1, 10**9))
    return lambda: next(counter) >= steps


def weights(place: RunFolder, run: Run) -> dict[str, Tensor]:
    return checkpoint.load(place.weights, run.id)


def train_losses(place: RunFolder) -> list[float]:
    return [float(row["value"]) for row in read_metrics(place) if row["split"] == "train"]


METHODS = [
    ("sgd", {}),
    ("lamb", {}),
    ("mkor", {"inverse_update_period": 2}),
    ("mkor", {"inverse_update_period": 2, "update_rule": "released", "base": "lamb"}),
    ("mkor_h", {"inverse_update_period": 2, "warmup_steps": 0}),
    ("kaisa", {"factor_update_period": 1, "inverse_update_period": 3}),
]


@pytest.mark.parametrize(("name", "hyperparameters"), METHODS)
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
        assert one_run.train(run, double, place, setting(), keep_weights=True) == "finished"
    truth = weights(places[whole], whole)
    for key, tensor in weights(places[cut], cut).items():
        torch.testing.assert_close(tensor, truth[key], rtol=1e-9, atol=1e-12, msg=key)
    assert train_losses(places[cut]) == pytest.approx(train_losses(places[whole]), rel=1e-12)
    switches = [read_summary(place)["switch_step"] for place in places.values()]
    assert switches[0] == switches[1]


@pytest.mark.parametrize("shared", [{"micro_batch_size": 32}, {"precision": "bfloat16"}, {"precision": "float16"}])
def test_interrupted_and_resumed_equals_uninterrupted(
    shared: dict[str, Any], folder: Path, workload: Workload, tmp_path: Path
):
    """Truth: the uninterrupted run, bit for bit; with float16, overflows before and after the stop lower the scale."""
    run = run_of(folder, "mkor", {"evaluate_every": 5, **shared}, inverse_update_period=7)
    whole, sliced = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "sliced")
    overflows = shared.get("precision") == "float16"
    one: Any = Amplified(workload, {3, 12} if overflows else set())
    assert one_run.train(run, one, whole, setting(), keep_weights=True) == "finished"
    other: Any = Amplified(workload, {3, 12} if overflows else set())
    assert one_run.train(run, other, sliced, setting(after(9)), keep_weights=True) == "interrupted"
    torch.manual_seed(5)  # as in another process
    assert one_run.train(run, other, sliced, setting(), keep_weights=True) == "finished"
    assert rows(whole.metrics, TIMES) == rows(sliced.metrics, TIMES)
    truth = weights(sliced, run)
    for key, tensor in weights(whole, run).items():
        assert torch.equal(tensor, truth[key]), key
    for place in (whole, sliced):
        assert read_summary(place)["skipped_steps"] == (2 if overflows else 0)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_precision_trains_like_a_bare_loop(precision: str, folder: Path, workload: Workload, tmp_path: Path):
    """Truth: the same training written out with torch's autocast and GradScaler alone."""
    run = run_of(folder, "sgd", {"precision": precision}, momentum=0.9)
    place = RunFolder(tmp_path)
    amplified: Any = Amplified(workload, {4} if precision == "float16" else set())
    assert one_run.train(run, amplified, place, setting(), keep_weights=True) == "finished"
    model = workload.model(0)
    bare = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")
    truth: Any = Amplified(workload, {4} if precision == "float16" else set())
    for _, one in zip(range(20), workload.batches(0), strict=False):
        with torch.autocast("cpu", getattr(torch, precision)):
            loss = truth.loss(model, one)
        bare.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(bare)
        scaler.update()
    plain = run_of(folder, "sgd", momentum=0.9)
    one_run.train(plain, workload, RunFolder(tmp_path / "plain"), setting(), keep_weights=True)
    in_float32 = weights(RunFolder(tmp_path / "plain"), plain)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights(place, run)[key]), key
        assert not torch.equal(tensor, in_float32[key]), key
    with torch.autocast("cpu", getattr(torch, precision)):
        evaluated = workload.evaluate(model)["loss"]
    last = [row for row in read_metrics(place) if row["split"] == "validation"][-1]
    assert float(last["value"]) == evaluated
    assert read_summary(place)["skipped_steps"] == (precision == "float16")


def test_a_first_step_that_overflows_gives_no_warning(
    folder: Path, workload: Workload, tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    """torch warns if the schedule steps before the first update; the rate is a function of the step regardless."""
    run = run_of(folder, "mkor", {"precision": "float16", "schedule": {"name": "linear"}})
    amplified: Any = Amplified(workload, {1})
    assert one_run.train(run, amplified, RunFolder(tmp_path), setting()) == "finished"
    assert not [str(warning.message) for warning in recwarn if "lr_scheduler" in str(warning.message)]
    assert float(read_metrics(RunFolder(tmp_path))[-1]["lr"]) == pytest.approx(0.1 / 20)


def test_an_optimizer_without_loss_scales_is_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    run_of(folder, "singd", {"precision": "float16"})
    assert train.main(["one", "singd", *options(folder)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "precision = float16: singd cannot: " in errors


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


def test_a_tier_has_a_precision_and_a_block_may_have_another(folder: Path):
    tier = folder / "tiers" / "embedded.yaml"
    tier.write_text(tier.read_text() + "precision: bfloat16\n")
    assert run_of(folder, "sgd").precision == "bfloat16"
    assert run_of(folder, "sgd", {"precision": "float32"}).spec.get("precision") is None
    tier.write_text(tier.read_text().replace("bfloat16", "float8"))
    with pytest.raises(ConfigError, match='precision = "float8": must be one of the known values'):
        load(folder)


def test_a_micro_batch_must_divide_the_batch(folder: Path):
    with pytest.raises(ConfigError, match="micro_batch_size = 48: must divide the workload's batch_size, 128"):
        run_of(folder, "sgd", {"micro_batch_size": 48})


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
    write(folder, "one", block(optimizer("mkor"), steps=2, evaluate_every=2))
    (plain,) = load(folder).runs.values()
    tier = folder / "tiers" / "embedded.yaml"
    tier.write_text(tier.read_text() + "deterministic: true\n")
    plan = load(folder)
    (run,) = plan.runs.values()
    assert run.spec == {**plain.spec, "deterministic": True}
    assert run.id != plain.id
    at_start: list[str | None] = []  # CUDA starts when ranks join
    join = ranks.joined

    def joined(place: Place, device: str) -> AbstractContextManager[ranks.Ranks]:
        at_start.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        return join(place, device)

    monkeypatch.setattr(ranks, "joined", joined)
    assert train.main(["one", "mkor", *options(folder)]) == 0
    assert at_start == [":4096:8"]
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert read_summary(RunFolder.of(plan.results, run.id))["spec"]["deterministic"] is True
    tier.write_text(tier.read_text().replace("true", "false"))
    assert train.main(["one", "mkor", *options(folder)]) == 0
    assert not torch.are_deterministic_algorithms_enabled()
    assert "deterministic" not in read_summary(RunFolder.of(plan.results, plain.id))["spec"]


@pytest.mark.parametrize("tier", ["single_gpu", "paper"])
def test_without_a_gpu_a_gpu_tier_can_be_planned_but_not_trained(
    tier: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(provenance, "gpu_names", tuple)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write(folder, "one", block(optimizer("sgd")), tier=tier)
    plan = load(folder, tier=tier, hardware="auto")
    assert plan.hardware == provenance.NO_GPU
    assert plan.notes[-1].startswith(f"tier '{tier}' trains on a GPU, but nvidia-smi lists none")
    assert not plan.results.parents[1].exists()
    assert train.main(["one", "sgd", "--tier", tier, *options(folder)]) == 1
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
