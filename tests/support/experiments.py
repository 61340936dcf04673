"""Small configuration folders for tests, with the tiers and settings of the repository."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import yaml

from workflow.bench.plan import Plan
from workflow.bench.support.config import CONFIG

TIMES = ("train_seconds", "wall_seconds")


def make_folder(path: Path) -> Path:
    """Make a configuration folder without experiments."""
    (path / "experiments").mkdir(parents=True)
    shutil.copytree(CONFIG / "tiers", path / "tiers")
    shutil.copy(CONFIG / "config.yaml", path / "config.yaml")
    return path


def with_looks(folder: Path, looks: int) -> Path:
    """Give the tier evidence of a configuration folder a number of looks, and return the folder."""
    file = folder / "tiers" / "evidence.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "looks": looks}))
    return folder


def write(folder: Path, name: str, *blocks: dict[str, Any], tier: str = "embedded") -> None:
    """Write an experiment of one tier."""
    content = {"title": "A test", "paper": "none", "tiers": {tier: list(blocks)}}
    (folder / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(content))


def block(*optimizers: dict[str, Any], **shared: Any) -> dict[str, Any]:
    """Return a block of 20 steps of the autoencoder on the digits, evaluated every 10."""
    return {
        "workload": {"name": "autoencoder", "batch_size": 128},
        "steps": 20,
        "evaluate_every": 10,
        "seeds": [0],
        **shared,
        "optimizers": list(optimizers),
    }


def optimizer(name: str, label: str | None = None, **hyperparameters: Any) -> dict[str, Any]:
    """Return an optimizer entry."""
    return {
        "name": name,
        **({"label": label} if label else {}),
        "hyperparameters": {"lr": 0.1, **hyperparameters},
    }


def load(folder: Path, **settings: Any) -> Plan:
    """Return the plan of a configuration folder, with results in the folder next to it."""
    return Plan.load(folder, **{"results": str(folder.parent / "results"), "hardware": "test", **settings})


def options(folder: Path) -> list[str]:
    """Return the command-line options that choose the same plan as `load`."""
    return [
        f"--config-dir={folder}",
        f"--results={folder.parent / 'results'}",
        "--hardware=test",
    ]


def rows(file: Path, without: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Return a CSV's rows without some columns."""
    with file.open(newline="") as opened:
        return [{key: value for key, value in row.items() if key not in without} for row in csv.DictReader(opened)]
