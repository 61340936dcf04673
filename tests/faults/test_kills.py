"""Kill -9 at random moments: of training by every optimizer in every setting, of the command, of one rank of two."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from baselines import available, limits, method_class
from mkor_core.method import FollowsLoss
from tests.support.hyperparameters import options, variations
from tests.support.killing import SMALL, STEPS, Command, Fork, Subject, kill
from tests.support.records import read_summary
from tests.support.tally import KILLS, LEAST_KILLS, count
from tests.support.train_ranks import free_port
from workflow.bench import train

COMMAND_MOMENTS = 20
LEARNING_RATE = 0.01
"""No optimizer diverges in any setting."""
RANK_KILLS = 4


def _settings() -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return (optimizer, hyperparameters, keys of the block) by description, for every optimizer that is found."""
    found: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {}
    for name in available():
        method = method_class(name)
        # A method that switches itself off does so in the middle of the run.
        switch = {"knee_beta": 1e6, "warmup_steps": STEPS // 2} if method and issubclass(method, FollowsLoss) else {}
        changes = {"lr": LEARNING_RATE, **switch}
        for label, hyperparameters in variations(name, **changes).items():
            found[label] = (name, hyperparameters, {})
        halves = {} if "micro_batches" in limits(name) else {"micro_batch_size": SMALL["batch_size"] // 2}
        plain = options(name, **changes)
        found[f"{name} in bfloat16"] = (name, plain, {"precision": "bfloat16", **halves})
        if "grad_scaler" not in limits(name):
            found[f"{name} in float16"] = (name, plain, {"precision": "float16"})
    return found


SETTINGS = _settings()


@pytest.mark.parametrize("label", SETTINGS)
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(label: str, tmp_path: Path):
    """Truth: the run left alone; metrics but for the clocks, and weights, bit for bit."""
    method, hyperparameters, shared = SETTINGS[label]
    subject = Subject.make(tmp_path, method, hyperparameters, **shared)
    if label == "mkor_h":
        assert STEPS // 2 <= read_summary(subject.truth)["switch_step"] < STEPS
    count(f"kill -9, settings: {method}")
    _count_kills(subject, subject.fork, KILLS.format(method), LEAST_KILLS, label)


def test_a_language_model_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path):
    """Its head shares the embedding's weight."""
    sizes = {"layers": 1, "hidden_size": 16, "sequence_length": 16, "vocabulary_size": 256}
    workload = {"name": "language_model", **sizes, "batch_size": 8, "validation_windows": 16}
    subject = Subject.make(tmp_path, "mkor", workload=workload)
    _count_kills(subject, subject.fork, "kill -9 of a language model, moments tried", 5, "language model")


@pytest.mark.parametrize("hook", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_inside_an_optimizer_s_step_loses_nothing(presses: int, hook: Callable[..., Any], tmp_path: Path):
    """The first lets the step end, the second interrupts it, before or after its update. Truth: the run left alone."""
    subject = Subject.make(tmp_path, "mkor", steps=12)
    steps = itertools.count(1)

    def press(*arguments: object) -> None:
        if next(steps) == 8:
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)

    handle = hook(press)
    try:
        with suppress(KeyboardInterrupt):
            assert train.main(subject.arguments) != 0
    finally:
        handle.remove()
    assert train.main(subject.arguments) == 0
    lost = subject.bytes_lost()
    count("Ctrl-C inside a step, runs resumed")
    count("bytes lost", lost)
    assert lost == 0


def test_a_command_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path):
    subject = Subject.make(tmp_path, "mkor")
    _count_kills(subject, subject.command, "kill -9 of the command, moments tried", COMMAND_MOMENTS, "command")


def test_a_run_killed_before_any_of_its_operations_on_files_ends_as_if_it_had_not_been(tmp_path: Path):
    """Each in turn: rows, two checkpoints, weights, record, removal of the checkpoints, published rows."""
    subject = Subject.make(tmp_path, "mkor", steps=7)
    for operation in itertools.count(1):
        if subject.fork(dies_before=operation).wait() == 0:
            break
        assert subject.fork().wait() == 0
        lost = subject.bytes_lost()
        count("kill -9 before an operation on a file, operations tried")
        count("bytes lost", lost)
        assert lost == 0
        subject.remove()
    assert operation > 30, "the operations were not seen"


def _count_kills(subject: Subject, start: Callable[[], Command | Fork], what: str, kills: int, seed: str) -> None:
    for survived, lost in kill(subject, start, kills, seed):
        count(what, survived)
        count("bytes lost", lost)
        assert lost == 0


def _workers(launcher: Command) -> list[int]:
    """Return the ids of the processes that torchrun started."""
    pid = launcher.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_rank_ends_the_job_within_a_minute_and_the_next_one_goes_on(tmp_path: Path):
    """One of torchrun's two, at a random moment. Truth: two ranks left alone."""
    subject = Subject.make(tmp_path, "kaisa", {**options("kaisa"), "grad_worker_fraction": 0.5}, steps=1000)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]

    def start() -> Command:
        return subject.command(*torchrun, f"--master-port={free_port()}")

    whole = start()
    assert whole.wait() == 0, whole.said
    subject.keep_as_truth()
    rng = random.Random(3)
    for _ in range(RANK_KILLS):
        job = start()
        subject.wait_for_life(job)
        time.sleep(rng.uniform(0, 0.3))
        victim = rng.choice(_workers(job))
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        code = job.wait()
        assert time.monotonic() - killed < 60
        assert code != 0, "the run is too short to be killed"
        assert "killed" in job.said or "SIGKILL" in job.said or "Signal 9" in job.said
        count("kill -9 of one rank of two, jobs ended within a minute")
    last = start()
    assert last.wait() == 0, last.said
    lost = subject.bytes_lost()
    count("bytes lost", lost)
    assert lost == 0
