"""Synthetic results of the ladder, of batch sizes and of widths, whose ratios of iterations are set by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.synthetic import reaching, run_rows, write_experiment
from workflow.bench.plan.targets import Target

STEPS, START, FALL = 100, 1.0, 0.25
"""A run's steps, its first loss, and what a base optimizer's loss falls in them."""
Rows = tuple[list[dict[str, Any]], list[dict[str, Any]]]
LADDER: Mapping[tuple[str, str, bool], Mapping[str, float]] = {
    ("autoencoder", "sgd", False): {
        "mac": 2.0,
        "one_vector": 2.5,
        "one_side": 2.6,
        "mkor": 2.6,
        "both_sides": 3.0,
        "foof": 3.6,
        "kfac": 4.0,
    },
    ("autoencoder", "sgd", True): {"mkor": 1.0, "both_sides": 1.5, "kfac": 2.0},
    ("alexnet", "sgd", False): {"one_vector": 1.5, "one_side": 1.5, "mkor": 1.8, "foof": 1.8, "kfac": 2.0},
    ("alexnet", "sgd", True): {"mkor": 1.7, "both_sides": 1.5, "kfac": 2.0},
    ("alexnet", "adamw", False): {"mac": 1.2, "one_side": 1.0, "mkor": 1.3, "foof": 1.1, "kfac": 1.0},
    ("alexnet", "adamw", True): {"mkor": 1.0},
}
"""How much faster a rung's loss falls than the base's; by workload, base, and whether inputs are centred."""
CENTRED = 1.3
"""How much faster any loss falls with centred inputs."""
SPREAD = 0.04
"""The logarithms of the factors differ by as much from study to study."""


def deviation(label: str, study: int, place: int = 0) -> float:
    """Return by how much the logarithm of a label's speed deviates in a study; the mean of three studies is 0.

    place: the number of the workload's size, if it has several.
    """
    if label in ("sgd", "adamw"):
        return 0.0
    # Another order for each label and size, so that their studies do not rise and fall together.
    return SPREAD * ((study + len(label) + place * place) % 3 - 1)


def line(
    experiment: str,
    workload: str,
    label: str,
    seeds: Iterable[int],
    speed: float,
    studies: int,
    place: int = 0,
    **columns: Any,
) -> Rows:
    """Return the runs of a label whose losses are straight lines, ``speed`` times as steep as `FALL` in `STEPS`."""
    metrics, runs = run_rows(experiment, workload, label, seeds, steps=STEPS, every=5)
    kind = "-".join(map(str, columns.get("workload_parameters", {}).values()))
    for row in (*metrics, *runs):
        row["run"] = f"{experiment}-{workload}-{label}-{kind}-{row['seed']}"
    for row in metrics:
        slope = speed * math.exp(deviation(label, row["seed"] % studies, place))
        row["value"] = START - FALL * slope * row["step"] / STEPS
    for run in runs:
        run |= {"target": Target("validation", "loss", "below", 0.8), "study": run["seed"] % studies, **columns}
    return metrics, runs


def write_ladder(root: Path, seeds: Iterable[int] = range(3), studies: int = 3) -> Path:
    """Write the experiment of `LADDER`; return the folder."""
    parts, listed = [], list(seeds)
    for (workload, base, centred), speeds in LADDER.items():
        suffix = "_adamw" if base == "adamw" else ""
        given = {"batch_size": 128, **({"centred_inputs": True} if centred else {})}
        labels = {base: 1.0} | {f"{rung}{suffix}": speed for rung, speed in speeds.items()}
        for label, speed in labels.items():
            speed *= CENTRED if centred else 1
            rows = line("ladder", workload, label, listed, speed, studies, workload_parameters=given)
            rule = "sherman_morrison" if label.startswith("mkor") else None
            for run in rows[1]:
                run["update_rule"] = rule
                run["model"] += ", centred inputs" if centred else ""
            parts.append(rows)
    write_experiment(root, "ladder", parts)
    return root


ITERATIONS: Mapping[str, Mapping[str, float]] = {
    "autoencoder": {"sgd": 0.0, "mkor": 0.5, "nadamw": 0.25, "kaisa": 0.25, "muon": 0.1},
    "language_model": {"adamw": 0.2, "mkor": 0.45, "kaisa": 0.0, "nadamw": 0.1, "soap": 0.3},
}
"""By workload and label, the power of the batch size by which the iterations to the target fall; 0: never reached."""
SIZES = (32, 128, 512, 2048)


def iterations(power: float, size: int) -> float:
    """Return the iterations to the target at a batch size: 90 at the smallest one."""
    return 90 * (size / SIZES[0]) ** -power


def write_batch_sizes(root: Path, seeds: Iterable[int] = range(3), studies: int = 3) -> Path:
    """Write the experiment of `ITERATIONS`; return the folder."""
    parts, listed = [], list(seeds)
    for workload, powers in ITERATIONS.items():
        base = next(iter(powers))
        for label, power in powers.items():
            for place, size in enumerate(SIZES):
                given = {"batch_size": size}
                metrics, runs = line("batch_size", workload, label, listed, 1.0, studies, workload_parameters=given)
                for run in runs:
                    took = iterations(power, size) * math.exp(deviation(label, run["study"], place)) if power else None
                    run |= reaching(took, 0.01)
                    run |= {"hyperparameters": {"lr": 0.1, **({"base": base} if label in ("mkor", "kaisa") else {})}}
                parts.append((metrics, runs))
    write_experiment(root, "batch_size", parts)
    return root


SPEEDUPS: Mapping[str, tuple[float, float, float]] = {
    "mkor": (1.2, 1.2, 1.2),
    "mkor_normalized": (1.3, 1.4, 1.5),
    "kaisa": (1.5, 1.8, 1.2),
    "muon": (2.0, 2.5, 3.1),
    "soap": (2.4, 2.2, 2.0),
}
"""The speedups over AdamW of each label at the `WIDTHS`."""
WIDTHS = (64, 128, 256)


def write_widths(root: Path, seeds: Iterable[int] = range(3), studies: int = 3) -> Path:
    """Write the experiment of `SPEEDUPS`; return the folder."""
    parts, listed = [], list(seeds)
    for index, width in enumerate(WIDTHS):
        for label, speed in {"adamw": 1.0, **{label: of_label[index] for label, of_label in SPEEDUPS.items()}}.items():
            given: dict[str, Any] = {"workload_parameters": {"batch_size": 16, "hidden_size": width}}
            if label.startswith("mkor"):
                given["hyperparameters"] = {"lr": 0.1, "base": "adamw"}
            parts.append(line("width", "language_model", label, listed, speed, studies, index, **given))
    write_experiment(root, "width", parts)
    return root
