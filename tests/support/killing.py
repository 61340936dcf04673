"""Training commands that are killed again and again, and the comparison of their results with an undisturbed run."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from tests.support.hyperparameters import options as fast_options
from tests.support.rank_processes import forks
from tests.support.records import read_summary
from workflow.bench import train
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ROOT
from workflow.bench.training import checkpoint
from workflow.bench.training.record import RunFolder

SMALL: dict[str, Any] = {"name": "autoencoder", "batch_size": 32, "hidden": [24, 8, 24]}
STEPS = 60
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

    def wait(self) -> int:
        """Wait for its end, and return its exit code; its error output is then in ``said``."""
        _, self.said = self.process.communicate(timeout=_TIMEOUT_SECONDS)
        return self.process.returncode


class Fork:
    """The same in a process forked from a server that has imported the modules it needs.

    dies_before: the number, from 1, of the operation on a file of the results before which the process kills itself.
    """

    def __init__(self, subject: Subject, dies_before: int | None = None) -> None:
        self.process = forks().Process(target=_train, args=(subject.arguments, subject.results, dies_before))
        self.process.start()
        self.is_alive = self.process.is_alive

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        self.process.join(_TIMEOUT_SECONDS)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode


def _train(arguments: list[str], results: Path, dies_before: int | None) -> None:
    """Run the command in this process, without output."""
    torch.set_num_threads(1)
    if dies_before is not None:
        _die_before(dies_before, results)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        code = train.main(arguments)
    sys.exit(code)


def _die_before(number: int, folder: Path) -> None:
    """Have the kernel kill this process just before its n-th operation on a path in ``folder``."""
    operations = itertools.count(1)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" or event.startswith("os."):
            paths = [str(part) for part in arguments if isinstance(part, str | Path)]
            if any(path.startswith(str(folder)) for path in paths) and next(operations) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


@dataclass
class Subject:
    """A configuration with one run that keeps its weights, and the result of training it undisturbed."""

    folder: Path
    method: str
    run: Run = field(init=False)
    results: Path = field(init=False)
    """The folder of all results, in which runs are killed."""
    place: RunFolder = field(init=False)
    """The folder of the run that is killed."""
    published: Path = field(init=False)
    """The CSV that the command writes at its end."""
    truth: RunFolder = field(init=False)

    def __post_init__(self) -> None:
        plan = load(self.folder)
        job = plan.job("killed", self.method)
        self.run, self.results = job.runs[0], plan.results
        self.place, self.published = RunFolder.of(plan.results, self.run.id), plan.csv_of(job)
        assert train.main(self.arguments) == 0
        self.keep_as_truth()

    @classmethod
    def make(cls, path: Path, method: str, hyperparameters: Mapping[str, Any] | None = None, **shared: Any) -> Subject:
        """Write the configuration, and train its run once without a fault.

        hyperparameters: `tests.support.hyperparameters.options` of the method if None.
        shared: keys of the run's block other than the defaults.
        """
        folder = make_folder(path / "config")
        with (folder / "tiers" / "embedded.yaml").open("a") as file:
            file.write("checkpoint_steps: 3\n")
        chosen = fast_options(method) if hyperparameters is None else hyperparameters
        defaults = {
            "workload": SMALL,
            "steps": STEPS,
            "evaluate_every": 2,
            "schedule": {"name": "linear", "warmup": 0.2},
        }
        write(folder, "killed", block(optimizer(method, **chosen), **{**defaults, **shared}))
        start = {"experiment": "killed", "optimizer": method, "seed": 0}
        after = {"workload": shared.get("workload", SMALL), "steps": 1, "evaluate_every": 1, "start_from": start}
        write(folder, "after", block(optimizer("sgd"), **after))
        return cls(folder, method)

    def keep_as_truth(self) -> None:
        """Make the present results the ones to compare with."""
        shutil.rmtree(self._whole, ignore_errors=True)
        self.truth = RunFolder.of(self.results.rename(self._whole), self.run.id)
        assert read_summary(self.truth)["status"] == "finished"

    @property
    def _whole(self) -> Path:
        return self.results.with_name("whole")

    @property
    def arguments(self) -> list[str]:
        """The command's arguments."""
        return ["killed", self.method, *options(self.folder)]

    def command(self, *before: str) -> Command:
        """Start the command; before: what launches it."""
        return Command(self, *before)

    def fork(self, dies_before: int | None = None) -> Fork:
        """Start the command in a process that need not import torch first; see `Fork`."""
        return Fork(self, dies_before)

    def wait_for_life(self, process: Command | Fork) -> None:
        """Wait until a process has written to metrics.csv or a checkpoint, or has ended."""
        limit, before = time.monotonic() + _TIMEOUT_SECONDS, self._stamps()
        while process.is_alive() and self._stamps() == before:
            assert time.monotonic() < limit, "it does not train"
            time.sleep(0.001)

    def _stamps(self) -> list[int]:
        stamps = [0, 0]
        for index, file in enumerate((self.place.metrics, self.place.checkpoint)):
            with suppress(FileNotFoundError):
                stamps[index] = file.stat().st_mtime_ns
        return stamps

    def bytes_lost(self) -> int:
        """Return how many bytes of metrics, published metrics (without times) and weights differ from the truth."""
        assert read_summary(self.place)["status"] == "finished"
        kept = {self.place.metrics, self.place.summary, self.place.weights, self.place.lock}
        assert {*self.place.path.iterdir()} <= kept, "a finished run leaves nothing else behind"
        lost = 0
        for file in (self.place.metrics, self.published):
            undisturbed = self._whole / file.relative_to(self.results)
            one, other = (repr(rows(each, TIMES)).encode() for each in (file, undisturbed))
            lost += sum(mine != true for mine, true in zip_longest(one, other))
        found, true = (checkpoint.load(place.weights, self.run.id) for place in (self.place, self.truth))
        assert found.keys() == true.keys()
        for name, tensor in true.items():
            lost += int((found[name].view(torch.uint8) != tensor.view(torch.uint8)).sum())
        return lost

    def remove(self) -> None:
        """Remove the results, so that the next start begins anew."""
        shutil.rmtree(self.results)


def kill(
    subject: Subject, start: Callable[[], Command | Fork], kills: int, seed: int | str
) -> Iterator[tuple[int, int]]:
    """Kill -9 processes from ``start`` at ``kills`` random moments; yield (kills, bytes lost) for each completed run.

    One process in five is killed at a random moment from its start on, the others at one after they first write
    something; the next process resumes. A run that ends before it is killed is compared, removed, and begun anew.
    """
    rng = random.Random(seed)
    whole = read_summary(subject.truth)["wall_seconds"]
    done = of_run = 0
    while done < kills:
        process = start()
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0, whole))
        else:
            subject.wait_for_life(process)
            time.sleep(rng.uniform(0, whole / 5))
        process.process.kill()
        if process.wait() == 0:
            yield of_run, subject.bytes_lost()
            subject.remove()
            of_run = 0
        else:
            done, of_run = done + 1, of_run + 1
    assert start().wait() == 0
    yield of_run, subject.bytes_lost()
