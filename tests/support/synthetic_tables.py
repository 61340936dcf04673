"""Synthetic results of experiments that only tables show: fine-tuning, learning rates, memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_probes import ORIGIN, communication, cost_scaling, write_probe
from workflow.bench.plan.targets import Target

LABELS = ("lamb", "kaisa", "mkor", "mkor_released")
TASKS = {"GLUE MNLI": "accuracy", "GLUE QQP": "f1"}
STEPS = (0, 50, 100)
RATES = (10.0, 1.0, 0.1, 0.01)
Rows = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def final_score(label: str, task: str, seed: int) -> float:
    """Return the last score of a run of `fine_tuned`."""
    return 0.7 + 0.01 * LABELS.index(label) + (0.1 if task == "GLUE QQP" else 0.0) + 0.002 * seed


def fine_tuned(experiment: str, label: str, task: str, metric: str, starts: Mapping[int, str], **changed: Any) -> Rows:
    """Return one label's runs on one task, with three metrics, that start from the pre-training runs ``{seed: id}``."""
    metrics, runs = run_rows(experiment, "bert", label, starts, steps=STEPS[-1], every=50)
    kept = [row for row in metrics if row["metric"] == "loss"]
    for run in runs:
        run |= {"method": "adamw", "update_rule": None, "dataset": task, "start_from": starts[run["seed"]], **changed}
        run["run"] = f"{experiment}-{label}-{task.split()[-1]}-{run['seed']}"
        run["hyperparameters"] = {"lr": 0.001}
    evaluations = []
    for row in kept:
        share = row["step"] / STEPS[-1]
        value = final_score(label, task, row["seed"]) * (0.5 + 0.5 * share)
        for name, shown in ((metric, value), ("score", value), ("exact_match", value / 2)):
            evaluations.append(
                row
                | {"method": "adamw", "update_rule": None, "metric": name, "value": shown}
                | {"run": f"{experiment}-{label}-{task.split()[-1]}-{row['seed']}", "status": runs[0]["status"]}
            )
    return evaluations, runs


def pretraining(root: Path) -> dict[str, dict[int, str]]:
    """Return the pre-training runs in ``root``: ``{label: {seed: id}}``."""
    runs = pd.read_csv(root / "bert_pretraining.runs.csv")
    return {
        label: {int(seed): str(run) for seed, run in zip(rows["seed"], rows["run"], strict=True)}
        for label, rows in runs.groupby("optimizer")
    }


def write_fine_tuning(root: Path, labels: tuple[str, ...] = LABELS) -> None:
    """Write bert_squad and bert_glue, which start from the pre-training in ``root``."""
    starts = pretraining(root)
    write_experiment(
        root, "bert_squad", [fine_tuned("bert_squad", label, "SQuAD v1.1", "f1", starts[label]) for label in labels]
    )
    write_experiment(
        root,
        "bert_glue",
        [
            fine_tuned("bert_glue", label, task, metric, starts[label])
            for label in labels
            for task, metric in TASKS.items()
        ],
    )


def write_learning_rates(root: Path) -> None:
    """Write resnet_cifar10_lr: MKOR converges at every rate, the others at one rate only."""
    target = Target("validation", "accuracy", "above", 0.9)
    ends = {10.0: "diverged", 1.0: "short", 0.1: "there", 0.01: "short"}
    parts = []
    for label in ("sgd", "mkor", "kaisa", "kaisa_no_clip", "hylo"):
        for rate in RATES:
            end = "there" if label == "mkor" else ends[rate]
            metrics, runs = run_rows("resnet_cifar10_lr", "resnet20", label, range(3), steps=100, every=50)
            for row in metrics:
                row |= {"run": f"{label}-{rate}-{row['seed']}", "metric": "accuracy"}
                row["value"] = {0: 0.1, 50: 0.92 if end == "there" else 0.6, 100: 0.95 if end == "there" else 0.5}[
                    row["step"]
                ]
                row["status"] = "diverged" if end == "diverged" else "finished"
            for run in runs:
                run |= {"run": f"{label}-{rate}-{run['seed']}", "target": target}
                run |= {"hyperparameters": {"lr": rate}, "status": metrics[0]["status"]}
                run |= {"steps_to_target": 50.0 if end == "there" else None}
            parts.append((metrics, runs))
    write_experiment(root, "resnet_cifar10_lr", parts)


def memory() -> pd.DataFrame:
    """Return rows of probes/memory.csv: 1 MB of parameters; overheads of 2 MB for MKOR and 4 MB for KAISA."""
    rows = []
    for workload, base in (("bert", "lamb"), ("resnet", "sgd")):
        for optimizer, overhead in ((base, 0), ("mkor", 2_000_000), ("kaisa", 4_000_000)):
            sizes = [
                ("peak_over_start", None, 10_000_000 + overhead, None),
                ("parameters", None, 1_000_000, 1_000_000),
                ("first_order_state", "momentum", 1_000_000, 1_000_000),
                *([("preconditioner_state", "left", overhead, overhead)] if overhead else []),
            ]
            rows += [
                {
                    "workload": workload,
                    "optimizer": optimizer,
                    "update_rule": "sherman_morrison" if optimizer == "mkor" else None,
                    "quantity": quantity,
                    "tensor": tensor,
                    "bytes": measured,
                    "computed_bytes": computed,
                    **ORIGIN,
                }
                for quantity, tensor, measured, computed in sizes
            ]
    return pd.DataFrame(rows)


def write_tables(root: Path) -> Path:
    """Write all of these and the probes of table 1 to results that have pre-training runs (`write_results`)."""
    write_fine_tuning(root)
    write_learning_rates(root)
    for name, table in (("memory", memory()), ("cost_scaling", cost_scaling()), ("communication", communication())):
        write_probe(root, name, table)
    return root
