"""docs/adding_an_optimizer.md as written: its files and entries go into a copy of the repository, its lines are run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.experiments import rows
from tests.support.fork_server import commands_fork
from workflow.bench.support.config import ROOT

PAGE = (ROOT / "docs" / "adding_an_optimizer.md").read_text()
COPIED = ("Snakefile", "baselines", "config", "environment.yml", "mkor_core", "pyproject.toml", "tests", "workflow")
ADDED = {"sign_sgd", "diagonal_kfac"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def small(block: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment's block with its base optimizer alone, two seeds, and few steps of a small model."""
    kept = [{"name": "sgd", "hyperparameters": {"lr": 0.1}}]
    untuned = {key: value for key, value in block.items() if key != "tuning"}
    workload = {**block["workload"], "hidden": [8, 4, 8]}
    return {**untuned, "workload": workload, "seeds": [0, 1], "steps": 4, "evaluate_every": 2, "optimizers": kept}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with what the page adds to it, its other experiments left out and one made small."""
    folder = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    for file, code in re.findall(r"^`(baselines/\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE):
        (folder / file).write_text(code)
    (experiment,) = re.findall(r"^In `(config/experiments/\w+\.yaml)`", PAGE, re.MULTILINE)
    content = yaml.safe_load((folder / experiment).read_text())
    block = small(content["tiers"]["embedded"][0])
    block["optimizers"] += yaml.safe_load(blocks("yaml")[0])
    for file in (folder / "config" / "experiments").iterdir():
        file.unlink()
    (folder / experiment).write_text(yaml.safe_dump({**content, "tiers": {"embedded": [block]}}))
    return folder


def run(folder: Path, command: str) -> str:
    called = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **commands_fork(), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "".join(log.read_text() for log in folder.glob("results/*/*/logs/**/*.log"))
    assert called.returncode == 0, f"{command}\n{called.stdout[-3000:]}{called.stderr[-3000:]}{logs[-3000:]}"
    return called.stdout


def test_the_page_adds_one_file_and_one_entry_for_each():
    assert set(re.findall(r"^`baselines/(\w+)\.py`:$", PAGE, re.MULTILINE)) == ADDED
    assert [entry["name"] for entry in yaml.safe_load(blocks("yaml")[0])] == ["sign_sgd", "diagonal_kfac"]


def test_they_are_planned_trained_and_drawn(copy):
    plan, train, draw = blocks("sh")[0].splitlines()
    planned = run(copy, plan)
    assert all(f"update_rules/{name}: 2 runs" in planned for name in ADDED)
    run(copy, train)
    (results,) = copy.glob("results/*/embedded")
    assert {row["status"] for row in rows(results / "update_rules" / "sign_sgd.csv")} == {"finished"}
    run(copy, draw)
    assert (copy / "figures" / "fig13_update_rules.pdf").stat().st_size > 1000
    found = rows(results / "update_rules.csv")
    assert {row["optimizer"] for row in found} == {"sgd", *ADDED}
    losses = {
        name: [float(r["value"]) for r in found if r["optimizer"] == name and r["metric"] == "loss"] for name in ADDED
    }
    assert all(len(values) >= 4 for values in losses.values())
    assert {row["status"] for row in found} == {"finished"}


def test_they_meet_the_contract(copy):
    summary = run(copy, blocks("sh")[1])
    assert all(re.search(rf"^{name}: .*resumed training equals", summary, re.MULTILINE) for name in ADDED)
    assert "failed" not in summary
