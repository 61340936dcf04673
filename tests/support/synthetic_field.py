"""Synthetic results of the field tier, from laws that tests can recompute."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_probes import write_probe
from workflow.bench.plan.targets import Target

FIELD = {
    "field_autoencoder": {"sgd": 2, "mkor": 4, "muon": 5, "mkor_muon": 5, "soap": 8},
    "field_autoencoder_lamb": {"lamb": 2, "mkor": 3},
    "field_alexnet": {"sgd": 2, "mkor": 3, "muon": 6, "mkor_muon": 6, "soap": 4},
    "field_language_model": {"adamw": 2, "mkor": 2, "muon": 8, "mkor_muon": 8, "soap": 4, "sgd": 0},
    "krona": {"adamw": 2, "mkor": 4, "muon": 5},
    "kronecker_rnn": {"adamw": 2, "mkor": 2, "muon": 5},
}
"""The loss that a label loses in a step, in thousandths; one that loses nothing misses every target."""
BASES = {
    "field_autoencoder": "sgd",
    "field_autoencoder_lamb": "lamb",
    "field_alexnet": "sgd",
    "field_language_model": "adamw",
    "krona": "adamw",
    "kronecker_rnn": "adamw",
}
STEPS, START = 100, 1.0


def loss(experiment: str, label: str, step: int) -> float:
    """Return the loss of all runs of a label at a step: a straight line from `START`."""
    return START - FIELD[experiment][label] / 1000 * step


def _rows(experiment: str, label: str, seeds: Iterable[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    workload = experiment.removeprefix("field_").removesuffix("_lamb")
    metrics, runs = run_rows(experiment, workload, label, seeds, steps=STEPS, every=5)
    base = {"mkor": BASES[experiment], "mkor_muon": "muon"}.get(label)
    goal = Target("validation", "loss", "below", 0.85)
    for row in metrics:
        row["value"] = loss(experiment, label, row["step"])
    for run in runs:
        slope = FIELD[experiment][label] / 1000
        crossing = (START - goal.limit) / slope if slope else None
        run |= {
            "method": label,
            "target": goal,
            "steps": STEPS,
            "crossing_step": crossing,
            "crossing_seconds": crossing,
        }
        run["hyperparameters"] = {"lr": 0.1, **({"base": base} if base else {})}
    return metrics, runs


def write_field(root: Path, seeds: Iterable[int] = range(3)) -> Path:
    """Write the experiments of the field and its probe; return the folder."""
    listed = list(seeds)
    for experiment, labels in FIELD.items():
        write_experiment(root, experiment, [_rows(experiment, label, listed) for label in labels])
    rows = [
        {
            "experiment": experiment,
            "workload": experiment.removeprefix("field_"),
            "optimizer": label,
            "parameter_bytes": 1000,
            "state_bytes": 1000 * (number + 1),
            "operations": 1e6,
            "kernels": 12.0,
            "moved_bytes": 2e6,
            "sent_bytes": None if label == "soap" else 500.0,
            "cosine": 1.0 if label == "sgd" else 0.5,
            "least_cosine": 0.25,
            "norm": 1.0 if label == "sgd" else 30.0,
            "norm_spread": 2.0,
        }
        for experiment, labels in FIELD.items()
        for number, label in enumerate(labels)
    ]
    write_probe(root, "field_steps", pd.DataFrame(rows))
    return root
