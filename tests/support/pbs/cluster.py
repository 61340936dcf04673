"""A tiny cluster for tests: the profile's real scripts before the stand-ins of `standin`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support import experiments
from tests.support.pbs.standin import Server, end_all
from tests.support.records import A_RUN

ROOT = Path(__file__).resolve().parents[3]
PROFILE = ROOT / "profiles" / "polaris"
BIN = Path(__file__).resolve().parent / "bin"


@dataclass
class Cluster:
    """A working directory, and a server beside it."""

    folder: Path
    server: Server
    account: str = "an-account"
    variables: dict[str, str] = field(default_factory=dict)
    """More of the login node's environment."""

    @classmethod
    def make(cls, path: Path) -> Cluster:
        """Make both in ``path``."""
        (path / "work" / ".snakemake").mkdir(parents=True)
        return cls(path / "work", Server(path / "server"))

    @property
    def environment(self) -> dict[str, str]:
        """The login node's: the scheduler's commands and the Python of the tests are on the PATH."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MKOR_", "PBS_"))}
        return {
            **kept,
            "PATH": f"{BIN}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PBS_STANDIN": str(self.server.folder),
            "MKOR_SUBMIT_PAUSE": "0",
            **({"MKOR_ACCOUNT": self.account} if self.account else {}),
            **self.variables,
        }

    def call(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call one of the profile's scripts as Snakemake does."""
        command = [str(PROFILE / script), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )

    def job_script(self, command: str, output: str = "results/it/label.csv", **about: Any) -> Path:
        """Write a script as Snakemake does, of a job that makes ``output`` by ``command``."""
        properties = {
            "type": "single",
            "rule": "train",
            "output": [output],
            "wildcards": {"experiment": "it", "label": Path(output).stem},
            "params": {"runs": [A_RUN.id]},
            "resources": {"nodes": 2, "minutes": 60, "queue": "debug"},
            **about,
        }
        script = self.folder / ".snakemake" / "script.sh"
        text = f"#!/bin/sh\n# properties = {json.dumps(properties)}\ncd {self.folder} && {command}\n"
        script.write_text(text)
        return script

    def submit(self, command: str, output: str = "results/it/label.csv", **about: Any) -> str:
        """Submit a job and return what Snakemake would know it by."""
        called = self.call("submit", str(self.job_script(command, output, **about)))
        assert called.returncode == 0, called.stderr
        assert called.stdout.count("\n") == 1
        return called.stdout.strip()

    def status(self, chain: str) -> tuple[str, str]:
        """Return the status of a chain, and what a user hears."""
        called = self.call("status", chain)
        assert called.returncode == 0, called.stderr
        assert called.stdout in ("running\n", "success\n", "failed\n")
        return called.stdout.strip(), called.stderr

    def end(self, chain: str, seconds: float = 30) -> tuple[str, str]:
        """Ask for a chain's status until it has ended; return that, and all that a user heard."""
        deadline, pause = time.monotonic() + seconds, 0.05
        heard = ""
        while time.monotonic() < deadline:
            word, said = self.status(chain)
            heard += said
            if word != "running":
                return word, heard
            time.sleep(pause)
            pause = min(2 * pause, 0.4)
        raise TimeoutError(f"{chain} still runs; heard: {heard}; jobs: {self.server.jobs()}")

    def run(self, command: str, word: str = "success") -> str:
        """Submit a job, whose chain must end in that word; return all that a user heard."""
        found, heard = self.end(self.submit(command))
        assert found == word, heard
        return heard

    def seen(self, name: str = "seen") -> dict[str, str]:
        """Return the variables that a job wrote to a file by ``env``."""
        lines = (self.folder / name).read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def wait(self, state: str, number: int = 1, seconds: float = 10) -> dict[str, Any]:
        """Wait until the server has a job in a state, and return it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            job = self.server.job(str(number))
            if job is not None and job["state"] == state:
                return job
            time.sleep(0.02)
        raise TimeoutError(f"job {number} is not in state {state}: {self.server.jobs()}")

    def pipeline(self, *arguments: str) -> list[str]:
        """Return the command that runs the pipeline on the configuration in the folder ``config``, on this cluster."""
        return [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "all"),
            *("--profile", str(PROFILE), "--seconds-between-status-checks", "1", "--latency-wait", "20"),
            *("--config", "config_dir=config", "tier=embedded", "hardware=test-machine", f"cluster={self.folder}/tiny"),
            *arguments,
        ]

    def configure(self, *blocks: dict[str, Any]) -> None:
        """Write a configuration of one experiment, ``it``, and of a cluster of one small node."""
        experiments.write(experiments.make_folder(self.folder / "config"), "it", *blocks)
        tiny = {
            "gpus_per_node": 1,
            "cores_per_node": 1,
            "margin_minutes": 1,
            "queues": {"debug": [{"nodes": [1, 2], "minutes": 60}]},
            "training": {"default": {"nodes": 1, "minutes": 60, "queue": "debug", "step_seconds": 0.1}},
            "probes": {"default": {"nodes": 1, "minutes": 60, "queue": "debug"}},
        }
        (self.folder / "tiny").mkdir()
        (self.folder / "tiny" / "cluster.yaml").write_text(yaml.safe_dump(tiny))
        for script in ("launch", "rank", "stage"):
            (self.folder / "tiny" / script).symlink_to(PROFILE / script)

    def close(self) -> None:
        """End what still runs."""
        end_all(self.server)
