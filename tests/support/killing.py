"""Training commands that are killed again and again, and the comparison of their results with an undisturbed run."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from workflow.bench import train
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ROOT
from workflow.bench.training import checkpoint, launcher
from workflow.bench.training.record import RunFolder, read_summary

METHODS: dict[str, dict[str, Any]] = {
    "mkor": {"lr": 0.01, "inverse_update_period": 7, "base": "sgd", "momentum": 0.9},
    "kaisa": {"lr": 0.01, "factor_update_period": 3, "inverse_update_period": 7},
}
"""Optimizers with state: momentum, and factors that are updated only every few steps."""

_LATE_IMPORTS = (
    "workflow.bench.training.runner",
    "workflow.bench.workloads.autoencoder",
    "sklearn.datasets",
    *(f"baselines.{method}" for method in METHODS),
)
_TIMEOUT_SECONDS = 120.0


class Command:
    """A running ``python -m workflow.bench.train``."""

    def __init__(self, subject: Subject, *before: str) -> None:
        launcher = before or (sys.executable,)
        self.process = subprocess.Popen(
            [*launcher, "-m", "workflow.bench.train", *subject.arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""

    def is_alive(self) -> bool:
        """Return whether it is running."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    def wait(self) -> int:
        """Wait for its end, and return its exit code; its error output is then in ``said``."""
        _, self.said = self.process.communicate(timeout=_TIMEOUT_SECONDS)
        return self.process.returncode


class Fork:
    """The same in a process forked from a server that has imported the modules it needs."""

    def __init__(self, subject: Subject) -> None:
        context = multiprocessing.get_context("forkserver")
        # Tests in this process that start ranks share the server, and need this variable set before torch is imported.
        launcher.prepare(launcher.Place(size=2))
        context.set_forkserver_preload(
            [
                "tests.support.killing",
                "workflow.bench.training.runner",
                "workflow.bench.workloads.autoencoder",
                *_LATE_IMPORTS,
            ]
        )
        self.process = context.Process(target=_train, args=(subject.arguments,))
        self.process.start()

    def is_alive(self) -> bool:
        """Return whether it is running."""
        return self.process.is_alive()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        self.process.join(_TIMEOUT_SECONDS)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode


def _train(arguments: list[str]) -> None:
    """Run the command in this process, without output."""
    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        code = train.main(arguments)
    sys.exit(code)


@dataclass
class Subject:
    """A configuration with one run that keeps its weights, and the result of training it undisturbed."""

    folder: Path
    method: str
    run: Run = field(init=False)
    truth: RunFolder = field(init=False)

    def __post_init__(self) -> None:
        self.run = load(self.folder).job("killed", self.method).runs[0]
        assert train.main(self.arguments) == 0
        self.keep_as_truth()

    @classmethod
    def make(cls, path: Path, method: str, steps: int) -> Subject:
        """Write the configuration, and train its run once without a fault."""
        folder = make_folder(path / "config")
        with (folder / "tiers" / "embedded.yaml").open("a") as file:
            file.write("checkpoint_steps: 3\n")
        shared: dict[str, Any] = {"steps": steps, "evaluate_every": 2, "schedule": {"name": "linear", "warmup": 0.2}}
        write(folder, "killed", block(optimizer(method, **METHODS[method]), **shared))
        start = {"experiment": "killed", "optimizer": method, "seed": 0}
        write(folder, "after", block(optimizer("sgd"), steps=1, evaluate_every=1, start_from=start))
        return cls(folder, method)

    def keep_as_truth(self) -> None:
        """Make the present results the ones to compare with."""
        results = load(self.folder).results
        whole = results.with_name("whole")
        shutil.rmtree(whole, ignore_errors=True)
        self.truth = RunFolder.of(results.rename(whole), self.run.id)

    @property
    def arguments(self) -> list[str]:
        """The command's arguments."""
        return ["killed", self.method, *options(self.folder)]

    @property
    def place(self) -> RunFolder:
        """The folder of the run that is killed."""
        return RunFolder.of(load(self.folder).results, self.run.id)

    def command(self, *before: str) -> Command:
        """Start the command; before: what launches it."""
        return Command(self, *before)

    def fork(self) -> Fork:
        """Start the command in a process that need not import torch first."""
        return Fork(self)

    def wait_for_life(self, process: Command | Fork) -> None:
        """Wait until a process has written to metrics.csv or a checkpoint, or has ended."""
        limit, before = time.monotonic() + _TIMEOUT_SECONDS, self._stamps()
        while process.is_alive() and self._stamps() == before:
            assert time.monotonic() < limit, "it does not train"
            time.sleep(0.001)

    def _stamps(self) -> list[int]:
        found = []
        for path in (self.place.metrics, self.place.checkpoint):
            try:
                found.append(path.stat().st_mtime_ns)
            except FileNotFoundError:
                found.append(0)
        return found

    def bytes_lost(self) -> int:
        """Return the number of bytes of metrics (without times) and weights that differ from the undisturbed run."""
        assert (read_summary(self.place) or {})["status"] == "finished"
        assert self.leftovers() == []
        mine, clean = (repr(rows(place.metrics, TIMES)) for place in (self.place, self.truth))
        lost = _differences(mine.encode(), clean.encode())
        found, true = (checkpoint.load(place.weights, self.run.id) for place in (self.place, self.truth))
        assert found.keys() == true.keys()
        for name, tensor in true.items():
            lost += int((found[name].view(torch.uint8) != tensor.view(torch.uint8)).sum())
        return lost

    def leftovers(self) -> list[str]:
        """Return the names of files that a finished run should not have kept."""
        kept = {self.place.metrics, self.place.summary, self.place.weights, self.place.lock}
        return sorted(path.name for path in self.place.path.iterdir() if path not in kept)

    def remove(self) -> None:
        """Remove the run's files, so that the next start begins anew."""
        for path in self.place.path.iterdir():
            path.unlink()


def _differences(one: bytes, other: bytes) -> int:
    return sum(mine != theirs for mine, theirs in zip_longest(one, other))


def kill(subject: Subject, start: Callable[[], Command | Fork], kills: int, seed: int) -> Iterator[tuple[int, int]]:
    """Kill -9 processes from ``start`` at ``kills`` random moments; yield (kills, bytes lost) for each completed run.

    One process in five is killed at a random moment from its start on, the others at one after they first write
    something; the next process resumes. A run that ends before it is killed is compared, removed, and begun anew.
    """
    rng = random.Random(seed)
    span = (read_summary(subject.truth) or {})["wall_seconds"] / 5
    done = of_run = 0
    while done < kills:
        process = start()
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0, span))
        else:
            subject.wait_for_life(process)
            time.sleep(rng.uniform(0, span))
        process.kill()
        if process.wait() == 0:
            yield of_run, subject.bytes_lost()
            subject.remove()
            of_run = 0
        else:
            done, of_run = done + 1, of_run + 1
    assert start().wait() == 0
    yield of_run, subject.bytes_lost()
