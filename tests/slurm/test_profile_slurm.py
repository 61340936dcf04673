"""The Slurm profile before a real Slurm: slices of one job, several ranks, a killed and a cancelled job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import experiments
from tests.support.slurm_cluster import cluster, missing
from workflow.bench import train
from workflow.bench.support.config import ROOT

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no Slurm can be started here: {missing()}")


PROFILE = ROOT / "profiles" / "slurm"
R = Path("results/test/embedded")
CLOCKS = ("train_seconds", "wall_seconds")
#: Steps of a run, enough for several slices of a few seconds.
STEPS = 20000


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The variables that point to a cluster of one node."""
    with cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@dataclass
class Site:
    """A working directory of a user of the cluster, with a plan and the profile."""

    folder: Path
    environment: Mapping[str, str]

    def start(self, *targets: str) -> subprocess.Popen[str]:
        """Start Snakemake with the profile; what is said of a cluster without accounting is all that differs."""
        options = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "1"]
        quick = ["--seconds-between-status-checks", "1", "--latency-wait", "5"]
        settings = [
            f"config_dir={self.folder}/config",
            "tier=embedded",
            "hardware=test",
            f"cluster={self.folder}/slurm",
        ]
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "all"]
        return subprocess.Popen(
            [*command, "--profile", str(PROFILE), *options, *quick, "--config", *settings, "--", *targets],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands says."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def record(self, label: str) -> dict[str, Any]:
        """The run.json of the only run of an optimizer."""
        (run,) = {row["run"] for row in experiments.rows(self.folder / R / "trial" / f"{label}.csv")}
        found: dict[str, Any] = json.loads((self.folder / R / "runs" / run / "run.json").read_text())
        return found

    def metrics(self, label: str) -> list[dict[str, str]]:
        """The published rows of an optimizer, without its clocks."""
        return experiments.rows(self.folder / R / "trial" / f"{label}.csv", without=CLOCKS)


@pytest.fixture
def site(slurm: Mapping[str, str], tmp_path: Path) -> Iterator[Site]:
    """A plan of two runs, and the profile's cluster file for a node of two cores."""
    config = experiments.make_folder(tmp_path / "config")
    entries = [experiments.optimizer("sgd"), experiments.optimizer("mkor", base="sgd")]
    experiments.write(config, "trial", experiments.block(*entries, steps=STEPS, evaluate_every=5000))
    shutil.copytree(PROFILE, tmp_path / "slurm")
    _ask_for(tmp_path, ranks=1, minutes=10, margin=1)
    made = Site(tmp_path, slurm)
    yield made
    made.ask("scancel", "--state=PENDING,RUNNING", "--user=root")


def _ask_for(folder: Path, *, ranks: int, minutes: int, margin: float) -> None:
    """Write the cluster file."""
    file = folder / "slurm" / "cluster.yaml"
    content = yaml.safe_load(file.read_text())
    content |= {"gpus_per_node": ranks, "cores_per_node": 2, "margin_minutes": margin}
    content["queues"] = {"test": [{"nodes": [1, 1], "minutes": 60}]}
    content["training"] = {"default": {"nodes": 1, "minutes": minutes, "queue": "test", "step_seconds": 0.001}}
    content["probes"] = {"default": {"nodes": 1, "minutes": 10, "queue": "test"}}
    file.write_text(yaml.safe_dump(content))


def _wait_for(ready: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.2)


def _end(process: subprocess.Popen[str], seconds: float = 240) -> str:
    """What Snakemake said, once it has ended well."""
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said
    return said


def _by_itself(folder: Path) -> Path:
    """The same plan, trained without a cluster."""
    options = [f"--config-dir={folder}/config", f"--results={folder}/alone", "--hardware=test"]
    for label in ("sgd", "mkor"):
        assert train.main(["trial", label, *options]) == 0
    return folder / "alone" / "test" / "embedded" / "trial"


def test_a_run_longer_than_its_slices_goes_on_until_its_end_with_the_same_numbers(site: Site):
    """Truth: the same run, trained at once on this machine."""
    _ask_for(site.folder, ranks=1, minutes=1, margin=0.75)  # some 10 seconds of training a slice
    done = threading.Event()

    def hasten() -> None:
        """Slurm lets a job that was put back wait for two minutes; this test only until its old credential is gone."""
        waiting: list[str] = []
        while not done.wait(8):
            before, waiting = waiting, site.ask("squeue", "--noheader", "--state=PENDING", "--format=%i").split()
            for job in {*before} & {*waiting}:
                site.ask("scontrol", "update", f"JobId={job}", "StartTime=now")

    helper = threading.Thread(target=hasten)
    helper.start()
    try:
        _end(site.start(str(R / "trial" / "mkor.csv")))
    finally:
        done.set()
        helper.join()
    assert site.record("mkor")["slices"] > 1
    assert site.metrics("mkor") == experiments.rows(_by_itself(site.folder) / "mkor.csv", without=CLOCKS)


def test_ranks_of_one_job_train_together(site: Site):
    """Truth: one process; two ranks add in another order, so the last digits may differ."""
    _ask_for(site.folder, ranks=2, minutes=10, margin=1)
    few = experiments.block(experiments.optimizer("sgd"), experiments.optimizer("mkor", base="sgd"))
    experiments.write(site.folder / "config", "trial", few)
    _end(site.start(str(R / "trial" / "sgd.csv")))
    assert site.record("sgd")["world_size"] == 2
    truth = experiments.rows(_by_itself(site.folder) / "sgd.csv", without=CLOCKS)
    for row, expected in zip(site.metrics("sgd"), truth, strict=True):
        assert row["step"] == expected["step"]
        assert float(row["value"]) == pytest.approx(float(expected["value"]), rel=1e-4)


def test_a_job_that_dies_is_noticed_and_tried_again(site: Site):
    process = site.start(str(R / "trial" / "sgd.csv"))
    _wait_for(lambda: list((site.folder / R / "runs").glob("*/metrics.csv")))
    (job,) = site.ask("squeue", "--noheader", "--state=RUNNING", "--format=%i").split()
    site.ask("scancel", job)
    said = _end(process)
    assert f"'{job}' failed" in said
    assert site.record("sgd")["status"] == "finished"


def test_ending_snakemake_cancels_its_jobs(site: Site):
    process = site.start(str(R / "trial" / "sgd.csv"))
    _wait_for(lambda: site.ask("squeue", "--noheader", "--state=RUNNING", "--format=%i"))
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    _wait_for(lambda: not site.ask("squeue", "--noheader", "--state=RUNNING,PENDING", "--format=%i"))
