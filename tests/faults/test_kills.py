"""Kill -9 at random moments: of the command, of what it does forked many times over, and of one rank of two."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.killing import METHODS, Command, Subject, kill
from tests.support.tally import count
from tests.support.train_ranks import free_port

MOMENTS = 20
FORKED_MOMENTS = 60
RANK_KILLS = 4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("target", "steps", "moments", "seed"), [("command", 150, MOMENTS, 1), ("fork", 400, FORKED_MOMENTS, 2)]
)
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(
    method: str, target: str, steps: int, moments: int, seed: int, tmp_path: Path
):
    """Truth: the run left alone; metrics but for the clocks, and weights, bit for bit."""
    subject = Subject.make(tmp_path, method, steps=steps)
    for survived, lost in kill(subject, getattr(subject, target), moments, seed=seed):
        count(f"{method}: kill -9 of a {target}, moments tried", survived)
        count("bytes lost", lost)
        assert lost == 0


def _workers(launcher: Command) -> list[int]:
    """Return the ids of the processes that torchrun started."""
    pid = launcher.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_rank_ends_the_job_within_a_minute_and_the_next_one_goes_on(tmp_path: Path):
    """One of torchrun's two, at a random moment. Truth: two ranks left alone."""
    subject = Subject.make(tmp_path, "kaisa", steps=400)
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
