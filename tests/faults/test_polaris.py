"""A whole run on Polaris' profile under everything that a bad week brings, against the same run left alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import experiments
from tests.support.pbs.cluster import ROOT, Cluster

TARGET = "results/test-machine/embedded/it.csv"
STEPS = 3000
KILLS = 3


@pytest.fixture
def cluster(tmp_path):
    made = Cluster.make(tmp_path)
    block = experiments.block(
        experiments.optimizer("mkor", base="sgd", inverse_update_period=7), steps=STEPS, evaluate_every=50
    )
    made.configure(block)
    yield made
    made.close()


def lines_of(cluster: Cluster) -> int:
    """Lines of the run's metrics so far."""
    files = list((cluster.folder / "results/test-machine/embedded/runs").glob("*/metrics.csv"))
    return sum(len(file.read_text().splitlines()) for file in files)


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in two minutes"
        time.sleep(0.05)


def test_a_run_in_slices_is_the_run_left_alone(cluster, capsys):
    """Ended by its time limit KILLS times, its coordinator killed once, its server silent and full at times.

    Truth: the same run in one process without a scheduler; all metrics equal, bit for bit.
    """
    alone = [sys.executable, "-m", "workflow.bench.train", "it", "mkor", "--config-dir", "config"]
    subprocess.run(
        [*alone, "--tier", "embedded", "--results", "alone", "--hardware", "test-machine"],
        cwd=cluster.folder,
        env={**cluster.environment, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    cluster.server.behave(start_seconds=0.5, grace_seconds=60)
    log = (cluster.folder / "coordinator.log").open("w")

    def coordinator() -> subprocess.Popen[bytes]:
        command = cluster.pipeline("--", TARGET)
        return subprocess.Popen(command, cwd=cluster.folder, env=cluster.environment, stdout=log, stderr=log)

    running = coordinator()
    for kill in range(1, KILLS + 1):
        seen = lines_of(cluster)
        cluster.wait("R", number=kill, seconds=120)
        wait_until(lambda seen=seen: lines_of(cluster) > seen + 4, "training")
        if kill == 2:
            running.kill()
            running.wait()
        cluster.server.behave(out_of_time=list(range(1, kill + 1)), silent=7, refuse=[["qsub: would exceed", 38]] * 2)
        cluster.wait("F", number=kill, seconds=120)
        if kill == 2:
            unlock = cluster.pipeline("--unlock", "--", TARGET)
            subprocess.run(unlock, cwd=cluster.folder, env=cluster.environment, check=True, capture_output=True)
            running = coordinator()
    assert running.wait(timeout=240) == 0, Path(log.name).read_text()
    rows, truth = (
        experiments.rows(cluster.folder / results / "test-machine/embedded/it/mkor.csv", without=experiments.TIMES)
        for results in ("results", "alone")
    )
    assert len(truth) > STEPS / 50
    assert rows == truth
    with capsys.disabled():
        lost = sum(row not in rows for row in truth)
        print(f"\n  {KILLS} time limits and 1 killed coordinator, {len(cluster.server.jobs())} jobs: rows lost: {lost}")
