"""docs/adding_a_workload.md and docs/adding_a_figure.md as written: their files go into a copy, their lines are run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.experiments import rows
from tests.support.fork_server import commands_fork
from workflow.bench.analysis.captions import from_rst
from workflow.bench.support.config import ROOT

WORKLOAD, FIGURE = ((ROOT / "docs" / f"adding_a_{what}.md").read_text() for what in ("workload", "figure"))
COPIED = ("Snakefile", "baselines", "config", "mkor_core", "workflow")
NAME = "fig90_small_classifier"


def commands(page: str) -> list[str]:
    return [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the files of both pages, and without the other experiments."""
    folder = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    for file in (folder / "config" / "experiments").iterdir():
        file.unlink()
    for file, text in re.findall(
        r"^`([\w/.]+)`[^`]*:\n\n```\w+\n(.*?)```", WORKLOAD + FIGURE, re.DOTALL | re.MULTILINE
    ):
        (folder / file).write_text(text)
    return folder


def run(folder: Path, command: str) -> str:
    environment = {**os.environ, **commands_fork(), "PYTHONPATH": ""}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    logs = "".join(log.read_text() for log in folder.glob("results/*/*/logs/**/*.log"))
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}{logs[-3000:]}"
    return done.stdout


def test_the_pages_add_a_workload_an_experiment_and_a_figure(copy):
    plan, train = commands(WORKLOAD)
    (draw,) = commands(FIGURE)
    assert "small_classifier/mkor: 3 runs" in run(copy, plan)
    run(copy, draw)  # the command that trains is a part of it
    assert train.split(" -- ")[0] == draw.split(" -- ")[0]
    results = copy / "results" / "mine" / "embedded"
    assert (copy / "figures" / f"{NAME}.pdf").stat().st_size > 1000
    assert "seeds 0-2" in from_rst((results / "figures" / f"{NAME}.rst").read_text())
    runs = rows(results / "small_classifier.runs.csv")
    assert {(row["optimizer"], row["status"]) for row in runs} == {(o, "finished") for o in ("sgd", "adamw", "mkor")}
    last = [
        row for row in rows(results / "small_classifier.csv") if row["step"] == "60" and row["metric"] == "accuracy"
    ]
    assert min(float(row["value"]) for row in last) > 0.5
