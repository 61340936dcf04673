"""Faults of machines and mistakes of users: one-line messages and no lost results. Longer forms are in tests/faults."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.data.test_damaged_data import LOADERS
from tests.support import tally
from tests.support.experiments import TIMES, block, load, optimizer, options, rows, write
from tests.support.killing import Subject, kill
from tests.support.records import read_metrics, read_summary
from workflow.bench import train
from workflow.bench.training import one_run, summary
from workflow.bench.training.record import RunFolder


@pytest.mark.parametrize(("method", "kills"), [("mkor", 3), ("kaisa", 2)])
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(method: str, kills: int, tmp_path: Path):
    """Truth: the undisturbed run; metrics except times, and weights, bit for bit."""
    subject = Subject.make(tmp_path, method)
    for survived, lost in kill(subject, subject.fork, kills, seed=0):
        assert lost == 0
        tally.count(tally.KILLS.format(method), survived)
        tally.count("bytes lost", lost)


def test_two_processes_on_one_run_leave_one_result(tmp_path: Path):
    subject = Subject.make(tmp_path, "mkor", steps=40)
    both = [subject.fork(), subject.fork()]
    assert [each.wait() for each in both] == [0, 0]
    assert subject.bytes_lost() == 0


def write_small(folder: Path, **shared: Any) -> None:
    """Write an experiment with a small run, and one that starts from its weights."""
    workload = {"name": "autoencoder", "batch_size": 128, "hidden": [32, 8, 32]}
    write(folder, "one", block(optimizer("sgd", momentum=0.9), workload=workload, **shared))
    start = {"experiment": "one", "optimizer": "sgd", "seed": 0}
    write(folder, "after", block(optimizer("sgd"), workload=workload, start_from=start))


PAGE = 4096
FILLER = "filler"


@contextmanager
def small_disk(path: Path, pages: int) -> Iterator[Path]:
    """Mount a file system of the given number of pages at ``path``; skip the test if that is not allowed."""
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE}", "small", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def leave(path: Path, pages: int) -> None:
    """Fill a small disk except for the given number of pages."""
    free(path)
    stat = os.statvfs(path)
    (path / FILLER).write_bytes(b"x" * ((stat.f_bfree - pages) * PAGE))
    assert os.statvfs(path).f_bfree == pages


def free(path: Path) -> None:
    """Delete the file with which `leave` filled it."""
    (path / FILLER).unlink(missing_ok=True)


class Full:
    """A small disk for results, and the metrics (without times) of the same run made on a large disk."""

    def __init__(self, disk: Path, folder: Path, said: pytest.CaptureFixture[str]) -> None:
        self.disk = disk
        self.arguments = ["one", "sgd", f"--config-dir={folder}", f"--results={disk}", "--hardware=test"]
        self._said = said
        assert train.main(["one", "sgd", *options(folder)]) == 0
        plan = load(folder)
        self.run = plan.job("one", "sgd").runs[0]
        self.truth = rows(RunFolder.of(plan.results, self.run.id).metrics, TIMES)
        self.place = RunFolder.of(disk / plan.results.relative_to(folder.parent / "results"), self.run.id)

    def fail(self) -> str | None:
        """Return the file that did not fit, from the command's message; None if all files fit."""
        self._said.readouterr()
        if train.main(self.arguments) == 0:
            return None
        line = self._said.readouterr().err.splitlines()[-1]
        problem, _, file = line.partition(": ")
        assert problem == "[Errno 28] No space left on device"
        self._assert_nothing_torn()
        return Path(file.strip("'")).name

    def go_on(self) -> str:
        """Free the disk, repeat the command, compare the metrics, and return its messages."""
        free(self.disk)
        self._said.readouterr()
        assert train.main(self.arguments) == 0
        said = self._said.readouterr().err
        assert rows(self.place.metrics, TIMES) == self.truth
        assert [path.name for path in self.disk.rglob(".*")] == []
        return said

    def _assert_nothing_torn(self) -> None:
        read_metrics(self.place)
        for file in self.disk.rglob("*.json"):
            json.loads(file.read_text())
        assert [path.name for path in self.disk.rglob(".*")] == []


def test_a_full_disk_is_named_and_the_run_goes_on_where_there_is_room_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """With one more free page each time, spec, metrics, weights, record and published rows fail in turn."""
    write_small(folder, evaluate_every=1)
    stages = []
    for pages in range(20):
        with small_disk(tmp_path / f"disk{pages}", 256) as disk:
            full = Full(disk, folder, capsys)
            leave(disk, pages)
            stages.append(full.fail())
            if stages[-1] is None:
                break
            full.go_on()
            tally.count("disk full, moments survived")
    files = [f"{full.run.id}.json", "metrics.csv", "weights.pt", "run.json", "sgd.csv", None]
    assert list(dict.fromkeys(stages)) == files


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Checkpoints every 6 of 20 steps and increasing room: the first, then the second, then the third fails."""
    with (folder / "tiers" / "embedded.yaml").open("a") as file:
        file.write("checkpoint_steps: 6\n")
    write_small(folder)
    found = []
    for pages in range(2, 82, 4):
        with small_disk(tmp_path / f"disk{pages}", 256) as disk:
            full = Full(disk, folder, capsys)
            leave(disk, pages)
            if (stage := full.fail()) is None:
                break
            assert stage == "checkpoint.pt"
            _, _, step = full.go_on().partition("resuming from step ")
            found.append(int(step.partition("\n")[0] or 0))
            tally.count("disk full, moments survived")
    assert list(dict.fromkeys(found)) == [0, 6, 12]


def test_a_folder_that_cannot_be_written_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd")))
    with small_disk(tmp_path / "disk", 64) as disk:
        # Read-only also for root, which ignores file modes.
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        capsys.readouterr()
        arguments = ["one", "sgd", f"--config-dir={folder}", f"--results={disk}", "--hardware=test"]
        assert train.main(arguments) == 1
        said = capsys.readouterr().err
    assert said == f'results = "{disk}/test/embedded/one/sgd.csv": cannot be written: Read-only file system\n'


class Backwards(datetime):
    """A clock that goes back one hour at each reading."""

    looks = count()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Backwards:
        return super().now(tz) - timedelta(hours=next(cls.looks))


def test_a_clock_that_goes_backwards_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A time server may set a machine's clock back. Truth: the run with a normal clock."""
    subject = Subject.make(tmp_path, "mkor", steps=20)
    monkeypatch.setattr(one_run, "datetime", Backwards)
    monkeypatch.setattr(summary, "datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: Backwards.now().timestamp())
    assert train.main(subject.arguments) == 0
    assert subject.bytes_lost() == 0
    record = read_summary(subject.place)
    assert record["ended"] < record["started"], "the clock did not go back"
    assert 0 < record["train_seconds"] <= record["wall_seconds"]
    seconds = [float(row["wall_seconds"]) for row in read_metrics(subject.place)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 17.0])
def test_a_pixel_that_is_no_number_is_told_by_data_set_and_example(
    value: float, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It is not recorded as divergence of the optimizer."""
    from sklearn import datasets

    found = datasets.load_digits()
    found.images[5, 3, 2] = value
    monkeypatch.setattr(datasets, "load_digits", lambda: found)
    write(folder, "one", block(optimizer("sgd")))
    capsys.readouterr()
    assert train.main(["one", "sgd", *options(folder)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "scikit-learn's digits" in line
    assert "image 5 has pixels that are not from 0 to 16" in line


def test_a_file_that_turns_out_damaged_in_training_is_named_and_the_run_goes_on_with_a_whole_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Truth: the run without the damage."""
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    LOADERS["imagenet"].write(tmp_path / "data", monkeypatch)
    with (folder / "tiers" / "embedded.yaml").open("a") as file:
        file.write("checkpoint_steps: 1\n")
    workload = {"name": "resnet50", **LOADERS["imagenet"].parameters}
    write(folder, "one", block(optimizer("sgd", lr=1e-3), workload=workload, steps=3, evaluate_every=3))
    arguments = ["one", "sgd", *options(folder)]
    assert train.main(arguments) == 0
    plan = load(folder)
    run = plan.job("one", "sgd").runs[0]
    place = RunFolder.of(plan.results, run.id)
    truth = rows(place.metrics, TIMES)
    plan.results.rename(plan.results.with_name("whole"))

    image = sorted((tmp_path / "data/imagenet/train").rglob("*.JPEG"))[4]
    whole = image.read_bytes()
    for readers in ({0}, {0, 1}):  # read in this process, then also in a second one
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, readers=readers: readers)
        image.write_bytes(whole[:300])
        capsys.readouterr()
        assert train.main(arguments) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"ImageNet: {image} is damaged: ")
    image.write_bytes(whole)
    assert train.main(arguments) == 0
    assert rows(place.metrics, TIMES) == truth


def test_weights_of_another_model_are_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    write_small(folder)
    start = {"experiment": "one", "optimizer": "sgd", "seed": 0}
    write(folder, "after", block(optimizer("sgd"), start_from=start))
    assert train.main(["after", "sgd", *options(folder)]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "cannot start from the weights of run " in line
    assert "size mismatch for 0.weight" in line
