"""Synthetic results with the real columns, for tests of figures, tables and claims."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.support.synthetic_probes import step_time, write_probe, write_probes
from tests.support.synthetic_trials import write_trials
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.rows import write_csv
from workflow.bench.results.tables import Results

VARIANTS = ("mkor", "mkor_one_side", "mkor_one_vector", "mkor_scaled", "mkor_normalized")
"""MKOR by the exact rule, and its labels in factor_variants."""
RULES = {
    **dict.fromkeys(VARIANTS, "sherman_morrison"),
    "mkor_released": "released",
    "mkor_published": "published",
}
SPEED = {
    "sgd": 0.6,
    "lamb": 0.8,
    "adamw": 0.9,
    "kaisa": 1.3,
    "mkor": 1.15,
    "mkor_released": 1.1,
    "mkor_published": 0.3,
    "mkor_one_side": 1.15,
    "mkor_one_vector": 1.0,
    "mkor_scaled": 0.5,
    "mkor_normalized": 1.4,
}


def _rule_of(label: str) -> dict[str, str]:
    return {"update_rule": RULES[label]} if label in RULES else {}


def reaching(step: float | None, second: float) -> dict[str, float | None]:
    """Return the columns of a run that reaches its target at a step, as its evaluations and as its smoothed metric do.

    step: None for a run that never does; second: the training seconds of a step.
    """
    took = None if step is None else second * step
    return {"steps_to_target": step, "seconds_to_target": took, "crossing_step": step, "crossing_seconds": took}


def run_rows(
    experiment: str,
    workload: str,
    label: str,
    seeds: Iterable[int],
    *,
    period: int | None = None,
    steps: int = 150,
    every: int = 10,
    start: float = 5.0,
    floor: float = 4.0,
    base: str = "sgd",
    failed: Iterable[int] = (),
    target: float | None = None,
    reaches: float | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of ``<experiment>.csv`` and ``<experiment>.runs.csv`` for one label: losses that decay, by seed."""
    second_order = label in RULES or label == "kaisa"
    metrics: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        rng = np.random.default_rng([seed, len(label), steps, period or 0])
        identity = {
            "experiment": experiment,
            "optimizer": label,
            "method": "mkor" if label in RULES else label,
            "update_rule": RULES.get(label),
            "inverse_update_period": period if second_order else None,
            "seed": seed,
            "workload": workload,
            "run": f"{abs(hash((experiment, workload, label, period, seed))) % 16**8:016x}",
            "status": "diverged" if seed in failed else "finished",
        }
        speed = SPEED.get(label, 1.0) * (1 - 0.04 * np.log10(period or 1)) * (1 + 0.03 * (seed % 3))
        last = steps // 3 if seed in failed else steps
        for step in range(0, last + 1, every):
            value = floor + (start - floor) * np.exp(-3 * speed * step / steps)
            value *= 1 + 0.004 * rng.standard_normal()
            if seed in failed:
                value *= 1 + 2 * (step / last) ** 4
            metrics.append(
                identity
                | {
                    "step": step,
                    "epoch": step / 50,
                    "split": "validation",
                    "metric": "loss",
                    "value": value,
                    "lr": 0.1,
                    "train_seconds": step * (0.05 if label == "kaisa" else 0.03),
                    "wall_seconds": step * 0.06,
                }
            )
        runs.append(
            identity
            | {
                "tier": "embedded",
                "hardware": "test-cpu",
                "reason": None,
                "switch_step": None,
                "hyperparameters": {"lr": 0.1, **({"base": base} if second_order else {}), **_rule_of(label)},
                "tuned": True,
                "study": 0,
                "start_from": None,
                "steps": steps,
                "steps_done": last,
                **reaching(None if reaches is None else reaches + seed, 0.03),
                "direction_cosine": 0.8 if second_order else None,
                "train_seconds": last * (0.05 if label == "kaisa" else 0.03),
                "parameters": 123456,
                "model": f"{workload} model",
                "dataset": f"{workload} data",
                "train_examples": 1437,
                "validation_examples": 360,
                "git_commit": "0123456789abcdef",
                "git_dirty": False,
                "code_current": True,
                "cpu": "Test CPU",
                "gpu": None,
                "target": Target("validation", "loss", "below", target) if target else None,
            }
        )
    return metrics, runs


def write_experiment(root: Path, name: str, parts: Iterable[tuple[list[Any], list[Any]]]) -> None:
    """Write both CSV files of an experiment from results of `run_rows`."""
    root.mkdir(parents=True, exist_ok=True)
    listed = list(parts)
    write_csv(root / f"{name}.csv", EVALUATION_COLUMNS, (row for metrics, _ in listed for row in metrics))
    write_csv(root / f"{name}.runs.csv", RUN_COLUMNS, (row for _, runs in listed for row in runs))


def write_rows(file: Path, columns: Iterable[str], rows: pd.DataFrame) -> None:
    """Write a frame as a tidy CSV file; columns that it lacks are empty."""
    write_csv(file, columns, rows.astype(object).where(rows.notna(), None).to_dict("records"))


def iteration_times(kaisa_factor: float = 12.0, mkor_factor: float = 1.2, repeats: int = 3) -> pd.DataFrame:
    """Return rows of probes/iteration_time.csv; the factors are time(period 1) / time(period 100)."""
    rows = []
    for workload, base in (("autoencoder", 2.0), ("bert", 20.0)):
        for optimizer, factor in (("kaisa", kaisa_factor), ("mkor", mkor_factor)):
            for period in (1, 10, 100, 1000):
                for repeat in range(repeats):
                    cost = base * (1 + (factor - 1) * (1 / period - 0.01) / 0.99) * (1 + 0.01 * repeat)
                    rows.append(
                        {
                            "workload": workload,
                            "optimizer": optimizer,
                            "update_rule": RULES.get(optimizer),
                            "inverse_update_period": period,
                            "repeat": repeat,
                            "steps": 100,
                            "iteration_ms": cost,
                            "median_ms": base,
                            "estimate": "combined" if period == 1000 else "measured",
                            "hardware": "test-cpu",
                            "git_commit": "0123456789abcdef",
                        }
                    )
    return pd.DataFrame(rows)


def numerics(
    eigenvalue: float = 0.01, published_residual: float = 0.5, cosine: float = 0.2, trials: int = 4
) -> pd.DataFrame:
    """Return rows of probes/numerics.csv; only the published rule takes the given values for C21."""
    rows = []
    for rule in ("published", "sherman_morrison", "released"):
        for trial in range(trials):
            shared = {"update_rule": rule, "dtype": "float64", "dimension": 32, "trial": trial, "bound": None}
            shared |= {"updates": 100, "of": 100}
            residual = 1e-12 if rule == "sherman_morrison" else published_residual
            rows += [
                shared | {"check": "C20", "value": eigenvalue * (1 + trial)},
                shared | {"check": "C21", "value": residual},
                shared | {"check": "C23", "value": cosine * (1 + 0.1 * trial)},
            ]
    return pd.DataFrame(rows)


def sizes() -> pd.DataFrame:
    """Return rows of probes/sizes.csv: the trained models, and one of the paper's size that was not trained."""
    experiments = [("update_rules", "autoencoder"), ("autoencoder_inversion", "autoencoder"), ("bert_pretraining",) * 2]
    rows = [
        {
            "experiment": experiment,
            "workload": workload,
            "batch_size": 64,
            "model": f"{workload} model",
            "dataset": f"{workload} data",
            "parameters": 123456,
            "encoder_parameters": 100000 if workload.startswith("bert") else None,
            "pretraining_parameters": 123456 if workload.startswith("bert") else None,
        }
        for experiment, workload in experiments
    ]
    large = {"model": "BERT, large", "dataset": "text", "parameters": 336_226_108, "batch_size": 32768}
    parts = {"encoder_parameters": 335_141_888, "pretraining_parameters": 336_226_108}
    return pd.DataFrame([*rows, {"experiment": "bert_phase1", "workload": "bert_pretraining", **large, **parts}])


def write_results(root: Path) -> Path:
    """Write a folder of results with experiments, one diverged run among them, probes and trials; return it."""
    write_trials(root / "trials")
    bert: dict[str, Any] = {"workload": "bert_pretraining", "base": "lamb"}
    write_experiment(
        root,
        "bert_pretraining",
        [
            run_rows("bert_pretraining", label=label, seeds=range(3), period=10, target=4.2, reaches=at, **bert)
            for label, at in (
                ("sgd", None),
                ("adamw", 100.0),
                ("lamb", 120.0),
                ("kaisa", 70.0),
                ("mkor", 80.0),
                ("mkor_released", 85.0),
            )
        ],
    )
    inversions: list[tuple[str, str, int, dict[str, Any]]] = [
        ("autoencoder_inversion", "autoencoder", 6, {"start": 0.2, "floor": 0.01, "steps": 400}),
        ("bert_inversion", "bert_pretraining", 3, {"start": 5.0, "floor": 4.0, "steps": 100}),
    ]
    for name, workload, seeds, scale in inversions:
        write_experiment(
            root,
            name,
            [
                run_rows(name, workload, label, range(seeds), period=period, **scale)
                for label in ("kaisa", "mkor")
                for period in (1, 10, 100)
            ],
        )
    write_experiment(
        root,
        "update_rules",
        [
            run_rows(
                "update_rules",
                "autoencoder",
                label,
                range(6),
                period=10,
                start=0.2,
                floor=0.01,
                steps=400,
                every=20,
                failed=(4,) if label == "mkor_published" else (),
            )
            for label in ("sgd", "kaisa", "mkor", "mkor_released", "mkor_published")
        ]
        + [
            run_rows("update_rules", label=label, seeds=range(3), period=10, **bert)
            for label in ("lamb", "kaisa", "mkor", "mkor_released", "mkor_published")
        ],
    )
    digits: list[tuple[str, int]] = [("autoencoder", 6), ("alexnet", 3)]
    write_experiment(
        root,
        "factor_variants",
        [
            run_rows("factor_variants", workload, label, range(seeds), period=5, start=0.2, floor=0.01)
            for workload, seeds in digits
            for label in ("sgd", *VARIANTS)
        ],
    )
    write_probe(root, "iteration_time", iteration_times())
    write_probe(root, "numerics", numerics())
    write_probe(root, "sizes", sizes())
    every = [Results(root).runs(name) for name in ("bert_pretraining", "update_rules")]
    write_probe(root, "step_time", step_time(pd.concat(every)))
    return write_probes(root)
