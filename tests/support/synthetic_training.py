"""Synthetic runs with accuracies from a formula that tests can evaluate, for figures 6, 11 and 12."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.synthetic import RULES, reaching, run_rows, write_experiment
from workflow.bench.plan.targets import Target

RATES = {"sgd": 0.03, "kaisa": 0.06, "eva": 0.04, "hylo": 0.02, "mkor": 0.08, "mkor_released": 0.07}
SECONDS = {"sgd": 0.01, "kaisa": 0.05, "eva": 0.015, "hylo": 0.04, "mkor": 0.02, "mkor_released": 0.02}
"""Each label's rate of convergence per step, and the seconds that its steps take."""
EXPERIMENTS = {"alexnet_cifar100": "alexnet", "bert_imdb": "bert_classification", "bert_base_squad": "bert_span"}


def accuracy(label: str, seed: int, step: int) -> float:
    """Return the accuracy of a run at a step: from 0.1 up to 0.99, for each seed a little slower than for the last."""
    return 0.99 - 0.89 * math.exp(-RATES[label] * (1 - 0.05 * seed) * step)


def accuracy_rows(
    experiment: str,
    workload: str,
    label: str,
    seeds: Iterable[int] = range(3),
    *,
    steps: int = 100,
    every: int = 10,
    target: Target | None = None,
    status: str = "finished",
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of ``<experiment>.csv`` and ``<experiment>.runs.csv`` with losses and accuracies of both splits.

    All runs have the same ``status``; missing ones have no values.
    """
    metrics: list[dict[str, Any]] = []
    _, runs = run_rows(experiment, workload, label, seeds, period=5, steps=steps)
    for run in runs:
        identity = {key: run[key] for key in ("experiment", "optimizer", "method", "update_rule", "run", "workload")}
        identity |= {"inverse_update_period": run["inverse_update_period"], "seed": run["seed"], "status": status}
        run |= {
            **reaching(None, SECONDS[label]),
            "status": status,
            "target": target,
            "dataset": f"{workload} data",
        }
        if status == "missing":
            metrics.append(identity | dict.fromkeys(("step", "epoch", "split", "metric", "value", "train_seconds")))
            run["reason"] = "not trained yet"
            continue
        for step in range(0, steps + 1, every):
            value = accuracy(label, run["seed"], step)
            about = identity | {"step": step, "epoch": step / 20, "train_seconds": step * SECONDS[label]}
            values = {("train", "accuracy"): value, ("validation", "accuracy"): value, ("train", "loss"): 1.05 - value}
            metrics += [
                about | {"split": split, "metric": metric, "value": number}
                for (split, metric), number in values.items()
            ]
            if target and run["steps_to_target"] is None and value >= target.limit:
                run |= reaching(step, SECONDS[label])
    return metrics, runs


def training_parts(experiment: str, **options: Any) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return the rows of all labels in an experiment of figures 11 and 12."""
    return [accuracy_rows(experiment, EXPERIMENTS[experiment], label, **options) for label in RATES if label != "eva"]


def write_training(root: Path) -> Path:
    """Write the experiments of figures 6, 11 and 12; only AlexNet's target is on its training accuracy."""
    goal = Target("validation", "accuracy", "above", 0.9)
    labels = [label for label in RATES if label not in RULES or label == "mkor"]
    parts = [accuracy_rows("resnet50_imagenet", "resnet20", label, target=goal) for label in labels]
    write_experiment(root, "resnet50_imagenet", parts)
    for experiment in EXPERIMENTS:
        split = "train" if experiment == "alexnet_cifar100" else "validation"
        write_experiment(root, experiment, training_parts(experiment, target=replace(goal, split=split)))
    return root
