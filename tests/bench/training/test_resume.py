"""Checkpoints whose checksum fits and whose content does not: the one before is used, else the run starts anew."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from baselines import available
from mkor_core.saving.entries import saved_counters, with_counters
from tests.support import tally
from tests.support.experiments import TIMES, block, load, make_folder, optimizer, rows, write
from tests.support.fuzzing import FUZZ, MISPLACED, MOST, changed_bytes, changed_values
from tests.support.hyperparameters import options as fast_options
from tests.support.numbers import within
from tests.support.old_states import in_old_form
from tests.support.records import read_summary
from workflow.bench import workloads
from workflow.bench.plan.runs import Run
from workflow.bench.support.errors import FileWarning
from workflow.bench.training import checkpoint, one_run
from workflow.bench.training.build import Setting
from workflow.bench.training.checkpoint_header import DamagedError, Header, newest_first
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder

Damage = Callable[[dict[str, Any]], object]
WORKLOAD: dict[str, Any] = {"name": "autoencoder", "batch_size": 32, "hidden": [24, 8, 24]}
STEPS, SAVED = 10, (8, 6)
"""Steps of a run, and those of its last checkpoint, when it is interrupted, and of the one before."""


class Case:
    """A run that was interrupted after its second checkpoint, and the same run undisturbed."""

    def __init__(self, path: Path, method: str, **shared: Any) -> None:
        folder = make_folder(path / "config")
        torch.set_num_threads(1)  # fixtures of modules are made before the one that does so
        schedule = {"name": "linear", "warmup": 0.2}
        shared = {"workload": WORKLOAD, "steps": STEPS, "evaluate_every": 5, "schedule": schedule, **shared}
        write(folder, "one", block(optimizer(method, **fast_options(method)), **shared))
        self.run: Run = load(folder).job("one", method).runs[0]
        self.workload = workloads.create(**self.run.spec["workload"])
        self.place, self.truth = RunFolder(path / "run"), RunFolder(path / "truth")
        steps = iter(range(STEPS))
        self.train(self.truth, lambda: False)
        self.train(self.place, lambda: next(steps) == SAVED[0] - 1)
        self.files = {file: file.read_bytes() for file in self.place.path.iterdir()}

    def train(self, place: RunFolder, stop: Callable[[], bool] = lambda: False) -> str:
        progress = Progress(1, io.StringIO())
        setting = Setting(torch.device("cpu"), 60, progress, stop, checkpoint_steps=SAVED[1])
        return one_run.train(self.run, self.workload, place, setting, keep_weights=True)

    @property
    def checkpoints(self) -> list[tuple[Path, int]]:
        """Its checkpoints, the last one first, and their steps."""
        return list(zip(newest_first(self.place.checkpoint), SAVED, strict=True))

    def restore(self) -> None:
        """Put the files of the interrupted run back."""
        for file in self.place.path.iterdir():
            file.unlink()
        for file, content in self.files.items():
            file.write_bytes(content)

    def saved(self, file: Path) -> dict[str, Any]:
        return copy.deepcopy(checkpoint.load(file, self.run.id))

    def resume(self) -> list[str]:
        """Train to the end, and return the warnings about files."""
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            assert self.train(self.place) in ("finished", "diverged")
        said = [str(warning.message) for warning in given if warning.category is FileWarning]
        tally.count("damaged files")
        tally.count("tracebacks", 0)
        return said

    def assert_undisturbed(self) -> None:
        assert read_summary(self.place)["status"] == "finished"
        assert rows(self.place.metrics, TIMES) == rows(self.truth.metrics, TIMES)
        mine, true = (checkpoint.load(place.weights, self.run.id) for place in (self.place, self.truth))
        assert all(torch.equal(mine[name], tensor) for name, tensor in true.items())

    @property
    def slices(self) -> int:
        """In how many slices the run was trained: 1 if it began anew, 2 if it was resumed."""
        return int(read_summary(self.place)["slices"])


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run of MKOR on momentum."""
    return Case(tmp_path_factory.mktemp("resume"), "mkor")


def account(**values: Any) -> Damage:
    return lambda saved: saved["ranks"][0]["account"].update(values)


def without(*path: Any) -> Damage:
    def damage(saved: Any) -> None:
        for key in path[:-1]:
            saved = saved[key]
        del saved[path[-1]]

    return damage


def put(value: Any, *path: Any) -> Damage:
    def damage(saved: Any) -> None:
        for key in path[:-1]:
            saved = saved[key]
        saved[path[-1]] = value

    return damage


def counters(**values: Any) -> Damage:
    """Change what a preconditioner saves beside its tensors."""

    def damage(saved: Any) -> None:
        read = saved_counters(saved["optimizer"])
        assert read is not None
        saved["optimizer"] = with_counters(saved["optimizer"], {**read, **values})

    return damage


WEIGHT, GROUP = "0.weight", ("optimizer", "param_groups", 0)
CONTENTS: dict[str, tuple[Damage, str]] = {
    "no ranks": (without("ranks"), "no list of ranks"),
    "no rank": (put([], "ranks"), "no list of ranks"),
    "a rank that is a number": (put([3], "ranks"), "rank 0 has not the entries"),
    "no account": (without("ranks", 0, "account"), "rank 0 has not the entries"),
    "no steps_done": (without("ranks", 0, "account", "steps_done"), "'steps_done' is missing"),
    "steps_done = 1e9": (account(steps_done=10**9), "rank 0 has done 1000000000 of 10 steps"),
    "steps_done = all": (account(steps_done=STEPS), "rank 0 has done 10 of 10 steps"),
    "steps_done = 0": (account(steps_done=0), "rank 0 has done 0 of 10 steps"),
    "steps_done = NaN": (account(steps_done=float("nan")), "steps_done = NaN: must be an integer"),
    "steps_done = 3": (account(steps_done=3), "another step than its content"),
    "a negative count": (account(slices=-1), "slices = -1: must be at least 0"),
    "an unknown entry of the account": (account(mood=1), "mood = 1: unknown key"),
    "no time of a phase": (without("ranks", 0, "account", "nanoseconds", "update"), "'update' is missing"),
    "losses of other steps": (put(torch.zeros(2), "ranks", 0, "losses"), "losses of the last 3 steps"),
    "a random state of another size": (put(torch.zeros(3, dtype=torch.uint8), "ranks", 0, "rng"), "no random state"),
    "no random state": (put(None, "ranks", 0, "rng"), "no random state"),
    "no digest of metrics.csv": (put((1, None), "metrics"), "size and digest of metrics.csv"),
    "a negative size": (put((-1, "0"), "metrics"), "size and digest of metrics.csv"),
    "rows that metrics.csv lacks": (put((10**6, "0" * 64), "metrics"), "differs from the file at the time"),
    "no model": (without("model"), "has no model"),
    "no weight": (without("model", WEIGHT), "model lacks or has in addition: 0.weight"),
    "a weight of another shape": (put(torch.zeros(2, 2), "model", WEIGHT), r"model['0.weight'] is not a tensor"),
    "a weight of another type": (put(3.0, "model", WEIGHT), r"model['0.weight'] is not a tensor"),
    "no optimizer": (put(None, "optimizer"), "optimizer's state has not the entries"),
    "no preconditioner": (without(*GROUP, "preconditioner"), "preconditioner's state is not of one of the first 8"),
    "a preconditioner that is a number": (put(3, *GROUP, "preconditioner"), "is not the text that a Preconditioner"),
    "a preconditioner of a later format": (counters(format=2), "has the format 2: a later version has saved it"),
    "a preconditioner of later steps": (counters(step=10**9), "first 8 steps"),
    "a preconditioner that switched": (counters(switch_step=2), "another switch_step"),
    "factors of another shape": (
        put(torch.eye(2), "optimizer", "state", 0, "preconditioner_left"),
        "has shape (2, 2)",
    ),
    "a factor of another parameter": (
        put(torch.eye(2), "optimizer", "state", 1, "preconditioner_left"),
        "has tensors of parameter '1', which is no weight of a layer",
    ),
    "no learning rate": (without(*GROUP, "lr"), "parameter group 0 lacks an entry"),
    "a learning rate that is no number": (put("fast", *GROUP, "lr"), "parameter group 0['lr'] is of type str"),
    "a learning rate of NaN": (put(float("nan"), *GROUP, "lr"), "parameter group 0['lr'] is nan"),
    "other parameters": (put([7], *GROUP, "params"), "parameter group 0['params'] has 1 entries"),
    "a momentum of another shape": (
        put(torch.zeros(3), "optimizer", "state", 0, "momentum_buffer"),
        "momentum_buffer of parameter 0 in parameter group 0 has shape (3,)",
    ),
    "no momentum of one parameter": (without("optimizer", "state", 0, "momentum_buffer"), "have different entries"),
    "a momentum that is no tensor": (
        put(True, "optimizer", "state", 0, "momentum_buffer"),
        "have different entries",
    ),
    "momentum of an unknown parameter": (put({}, "optimizer", "state", 99), "an unknown parameter 99"),
    "no schedule": (put(None, "scheduler"), "scheduler is of type NoneType"),
    "a schedule of NaN steps": (put(float("nan"), "scheduler", "last_epoch"), "scheduler['last_epoch'] is of type"),
    "a scaler": (put({}, "scaler"), "scaler is of type dict"),
}


@pytest.mark.parametrize("what", CONTENTS)
def test_content_that_does_not_fit_leads_to_the_checkpoint_before_it_and_then_to_the_start(what: str, case: Case):
    """Truth: the undisturbed run, bit for bit."""
    damage, message = CONTENTS[what]
    for damaged, slices in ((1, 2), (2, 1)):
        case.restore()
        for file, step in case.checkpoints[:damaged]:
            saved = case.saved(file)
            damage(saved)
            checkpoint.save(file, case.run.id, step, saved, keep_previous=False)
        said = case.resume()
        assert len(said) == damaged
        assert all("\n" not in line and line.endswith("or to the start") for line in said)
        assert message in said[0]
        assert case.slices == slices
        case.assert_undisturbed()


def test_a_checkpoint_of_an_earlier_version_is_resumed(case: Case):
    """Its optimizer's state has a third entry, with the layers by name. Truth: the undisturbed run, bit for bit."""
    case.restore()
    for file, step in case.checkpoints:
        saved = case.saved(file)
        saved["optimizer"] = in_old_form(saved["optimizer"], {0: "0", 2: "2", 4: "4", 6: "6"})
        checkpoint.save(file, case.run.id, step, saved, keep_previous=False)
    assert case.resume() == []
    assert case.slices == 2
    case.assert_undisturbed()


HEADERS: dict[str, Callable[[str], bytes]] = {
    "nested": lambda _: b"[" * 100_000,
    "nested, a line": lambda _: b"[" * 1000 + b"\n",
    "no line": lambda _: b"",
    "a number": lambda _: b"3\n",
    "no run": lambda run: Header(run, 8, 3, "0" * 64).line().replace('"run"', '"ran"').encode() + b"abc",
    "a step of NaN": lambda run: json.dumps({**vars(Header(run, 8, 3, "0" * 64)), "step": float("nan")}).encode(),
    "a step of 5,000 digits": lambda run: Header(run, 8, 3, "").line().replace("8", "9" * 5000, 1).encode(),
    "another run's": lambda _: Header("0" * 16, 8, 3, "0" * 64).line().encode() + b"abc",
    "no UTF-8": lambda _: b"\xff\xfe\n",
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_first_line_that_is_none_leads_to_the_checkpoint_before_it(what: str, case: Case):
    case.restore()
    case.place.checkpoint.write_bytes(HEADERS[what](case.run.id))
    assert len(case.resume()) == 1
    assert case.slices == 2
    case.assert_undisturbed()


@pytest.mark.parametrize("words", MISPLACED)
def test_what_is_no_file_leads_to_the_checkpoint_before_it(words: str, case: Case, monkeypatch: pytest.MonkeyPatch):
    """Commands refuse to train beside it; this is what the checkpoint's reader does with it. It waits for nothing."""
    case.restore()
    MISPLACED[words](case.place.checkpoint, monkeypatch)
    with within(10), pytest.raises(DamagedError, match=f"cannot be read: .*{words}"):
        checkpoint.load(case.place.checkpoint, case.run.id)
    monkeypatch.undo()
    if case.place.checkpoint.is_dir():
        case.place.checkpoint.rmdir()
    else:
        case.place.checkpoint.unlink()


@given(data=st.data())
@settings(FUZZ, max_examples=MOST // 4)
def test_no_payload_whatever_ends_in_a_traceback(data: st.DataObject, case: Case):
    """A payload whose checksum fits: a changed pickle, or a valid one with other content.

    Changed numbers in tensors fit, and may let the run diverge.
    """
    case.restore()
    file, step = data.draw(st.sampled_from(case.checkpoints))
    if data.draw(st.booleans()):
        saved = data.draw(changed_values(case.saved(file)))
        # That of more ranks is refused in one line: it may be a good one.
        assume(not isinstance(saved, dict) or not isinstance(saved.get("ranks"), list) or len(saved["ranks"]) < 2)
        checkpoint.save(file, case.run.id, step, saved, keep_previous=False)
    else:
        whole = file.read_bytes().partition(b"\n")[2]
        payload = data.draw(changed_bytes(whole))
        digest = hashlib.sha256(payload).hexdigest()
        file.write_bytes(Header(case.run.id, step, len(payload), digest).line().encode() + payload)
    said = case.resume()
    event("does not fit" if said else "fits, or is not needed")
    assert all("\n" not in line for line in said)
    if said:
        case.assert_undisturbed()


@pytest.mark.parametrize("method", available())
def test_the_own_checkpoint_of_every_method_fits(method: str, tmp_path: Path):
    case = Case(tmp_path, method)
    assert case.resume() == []
    assert case.slices == 2
    case.assert_undisturbed()
