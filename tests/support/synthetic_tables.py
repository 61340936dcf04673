"""Synthetic results of experiments that only tables show: fine-tuning, learning rates, memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_probes import communication, cost_scaling, write_probe
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
    for row in (*metrics, *runs):
        row |= {"method": "adamw", "update_rule": None}
        row["run"] = f"{experiment}-{label}-{task.split()[-1]}-{row['seed']}"
    for run in runs:
        run |= {"dataset": task, "start_from": starts[run["seed"]], "hyperparameters": {"lr": 0.001}, **changed}
    evaluations = []
    for row in metrics:
        value = final_score(label, task, row["seed"]) * (0.5 + 0.5 * row["step"] / STEPS[-1])
        for name, shown in ((metric, value), ("score", value), ("exact_match", value / 2)):
            evaluations.append(row | {"metric": name, "value": shown, "status": runs[0]["status"]})
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
    for experiment, tasks in (("bert_squad", {"SQuAD v1.1": "f1"}), ("bert_glue", TASKS)):
        every = product(labels, tasks.items())
        parts = [fine_tuned(experiment, label, *task, starts[label]) for label, task in every]
        write_experiment(root, experiment, parts)


def write_learning_rates(root: Path) -> None:
    """Write resnet_cifar10_lr: MKOR converges at every rate, the others at one rate only."""
    target = Target("validation", "accuracy", "above", 0.9)
    ends = {10.0: "diverged", 1.0: "short", 0.1: "there", 0.01: "short"}
    accuracies = {"there": {0: 0.1, 50: 0.92, 100: 0.95}, "short": {0: 0.1, 50: 0.6, 100: 0.5}}
    parts = []
    for label, rate in product(("sgd", "mkor", "kaisa", "kaisa_no_clip", "hylo"), RATES):
        end = "there" if label == "mkor" else ends[rate]
        metrics, runs = run_rows("resnet_cifar10_lr", "resnet20", label, range(3), steps=100, every=50)
        for row in (*metrics, *runs):
            row |= {"run": f"{label}-{rate}-{row['seed']}", "status": "diverged" if end == "diverged" else "finished"}
        for row in metrics:
            row |= {"metric": "accuracy", "value": accuracies.get(end, accuracies["short"])[row["step"]]}
        for run in runs:
            base = {} if label == "sgd" else {"base": "sgd"}
            run |= {"target": target, "hyperparameters": {"lr": rate, **base}}
            run |= {"steps_to_target": 50.0 if end == "there" else None}
        parts.append((metrics, runs))
    write_experiment(root, "resnet_cifar10_lr", parts)


def memory() -> pd.DataFrame:
    """Return rows of probes/memory.csv: 1 MB of parameters; overheads of 2 MB for MKOR and 4 MB for KAISA."""
    rows = []
    for workload, base in (("bert", "lamb"), ("resnet", "sgd")):
        for optimizer, overhead in ((base, 0), ("mkor", 2_000_000), ("kaisa", 4_000_000)):
            rule = "sherman_morrison" if optimizer == "mkor" else None
            about = {"workload": workload, "optimizer": optimizer, "update_rule": rule}
            rows.append(about | {"quantity": "peak_over_start", "bytes": 10_000_000 + overhead})
            rows.append(about | {"quantity": "parameters", "bytes": 1_000_000, "computed_bytes": 1_000_000})
            state = {"quantity": "first_order_state", "tensor": "momentum"}
            rows.append(about | state | {"bytes": 1_000_000, "computed_bytes": 1_000_000})
            if overhead:
                state = {"quantity": "preconditioner_state", "tensor": "left"}
                rows.append(about | state | {"bytes": overhead, "computed_bytes": overhead})
    return pd.DataFrame(rows)


def write_tables(root: Path) -> Path:
    """Write all of these and the probes of table 1 to results that have pre-training runs (`write_results`)."""
    write_fine_tuning(root)
    write_learning_rates(root)
    for name, table in (("memory", memory()), ("cost_scaling", cost_scaling()), ("communication", communication())):
        write_probe(root, name, table)
    return root
