"""The pages on adding an optimizer, a workload and a figure: their files go into a copy, their lines are run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.experiments import rows
from tests.support.fork_server import commands_fork
from workflow.bench.analysis.captions import from_rst
from workflow.bench.support.config import ROOT

OPTIMIZER, WORKLOAD, FIGURE = (
    (ROOT / "docs" / f"adding_a{what}.md").read_text() for what in ("n_optimizer", "_workload", "_figure")
)
COPIED = ("Snakefile", "baselines", "config", "mkor_core", "workflow")
FOR_TESTS = ("environment.yml", "pyproject.toml", "tests")
ADDED = {"sign_sgd", "diagonal_kfac"}
NAME = "fig90_small_classifier"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def copy_with(folder: Path, pages: str, names: Sequence[str] = COPIED) -> Path:
    """Copy the repository without its experiments, and add the files that pages give whole."""
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    for file in (folder / "config" / "experiments").iterdir():
        file.unlink()
    for file, text in re.findall(r"^`([\w/.]+)`[^`]*:\n\n```\w+\n(.*?)```", pages, re.DOTALL | re.MULTILINE):
        (folder / file).write_text(text)
    return folder


def run(folder: Path, command: str) -> str:
    environment = {**os.environ, **commands_fork(), "PYTHONPATH": ""}
    shell = ["bash", "-c", command]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    logs = "".join(log.read_text() for log in folder.glob("results/*/*/logs/**/*.log"))
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}{logs[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with both optimizers, and the experiment that they enter: small, with its base optimizer alone beside."""
    folder = copy_with(tmp_path_factory.mktemp("copy"), OPTIMIZER, (*COPIED, *FOR_TESTS))
    (experiment,) = re.findall(r"^In `(config/experiments/\w+\.yaml)`", OPTIMIZER, re.MULTILINE)
    content = yaml.safe_load((ROOT / experiment).read_text())
    block: dict[str, Any] = content["tiers"]["embedded"][0]
    del block["tuning"]
    block["workload"]["hidden"] = [8, 4, 8]
    block |= {"seeds": [0, 1], "steps": 4, "evaluate_every": 2}
    block["optimizers"] = [
        {"name": "sgd", "hyperparameters": {"lr": 0.1}},
        *yaml.safe_load(blocks(OPTIMIZER, "yaml")[0]),
    ]
    (folder / experiment).write_text(yaml.safe_dump({**content, "tiers": {"embedded": [block]}}))
    return folder


def test_the_page_adds_one_file_and_one_entry_for_each_optimizer():
    assert set(re.findall(r"^`baselines/(\w+)\.py`:$", OPTIMIZER, re.MULTILINE)) == ADDED
    assert [entry["name"] for entry in yaml.safe_load(blocks(OPTIMIZER, "yaml")[0])] == ["sign_sgd", "diagonal_kfac"]


def test_added_optimizers_are_planned_trained_and_drawn(copy):
    plan, train, draw = blocks(OPTIMIZER, "sh")[0].splitlines()
    planned = run(copy, plan)
    assert all(f"update_rules/{name}: 2 runs" in planned for name in ADDED)
    run(copy, train)
    (results,) = copy.glob("results/*/embedded")
    assert {row["status"] for row in rows(results / "update_rules" / "sign_sgd.csv")} == {"finished"}
    run(copy, draw)
    assert (copy / "figures" / "fig13_update_rules.pdf").stat().st_size > 1000
    found = rows(results / "update_rules.csv")
    assert {row["optimizer"] for row in found} == {"sgd", *ADDED}
    assert {row["status"] for row in found} == {"finished"}
    for name in ADDED:
        assert len([row for row in found if (row["optimizer"], row["metric"]) == (name, "loss")]) >= 4


def test_added_optimizers_meet_the_contract(copy):
    summary = run(copy, blocks(OPTIMIZER, "sh")[1])
    assert all(re.search(rf"^{name}: .*resumed training equals", summary, re.MULTILINE) for name in ADDED)
    assert "failed" not in summary


def test_the_pages_add_a_workload_an_experiment_and_a_figure(tmp_path):
    folder = copy_with(tmp_path, WORKLOAD + FIGURE)
    plan, train = "".join(blocks(WORKLOAD, "sh")).splitlines()
    (draw,) = "".join(blocks(FIGURE, "sh")).splitlines()
    assert "small_classifier/mkor: 3 runs" in run(folder, plan)
    run(folder, draw)  # the command that trains is a part of it
    assert train.split(" -- ")[0] == draw.split(" -- ")[0]
    results = folder / "results" / "mine" / "embedded"
    assert (folder / "figures" / f"{NAME}.pdf").stat().st_size > 1000
    assert "seeds 0-2" in from_rst((results / "figures" / f"{NAME}.rst").read_text())
    runs = rows(results / "small_classifier.runs.csv")
    assert {(row["optimizer"], row["status"]) for row in runs} == {(o, "finished") for o in ("sgd", "adamw", "mkor")}
    found = rows(results / "small_classifier.csv")
    last = [float(row["value"]) for row in found if (row["step"], row["metric"]) == ("60", "accuracy")]
    assert min(last) > 0.5
