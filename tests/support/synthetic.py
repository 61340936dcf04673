"""Synthetic results with the real columns, for tests of figures, tables and claims."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.support.synthetic_probes import combinations, step_time, write_probe, write_probes
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
    decay: float | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of ``<experiment>.csv`` and ``<experiment>.runs.csv`` for one label: losses that decay, by seed."""
    second_order, second = label in RULES or label == "kaisa", 0.05 if label == "kaisa" else 0.03
    given: dict[str, Any] = {"lr": 0.1, **({"base": base} if second_order else {}), **_rule_of(label)}
    if decay is not None:
        given |= {"inverse_update_period": period, "factor_decay": decay}
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
            clocks = {"train_seconds": step * second, "wall_seconds": step * 0.06}
            about = {"step": step, "epoch": step / 50, "split": "validation", "metric": "loss", "lr": 0.1, **clocks}
            metrics.append(identity | about | {"value": value})
        trained = {"steps": steps, "steps_done": last, "train_seconds": last * second, "parameters": 123456}
        data = {"dataset": f"{workload} data", "train_examples": 1437, "validation_examples": 360}
        origin = {"git_commit": "0123456789abcdef", "git_dirty": False, "code_current": True, "cpu": "Test CPU"}
        goal = {"target": Target("validation", "loss", "below", target) if target else None}
        goal |= reaching(None if reaches is None else reaches + seed, 0.03)
        about = {"tier": "embedded", "hardware": "test-cpu", "tuned": True, "study": 0, "model": f"{workload} model"}
        blank = dict.fromkeys(("reason", "switch_step", "start_from", "gpu"))
        effect = {"direction_cosine": 0.8 if second_order else None, "hyperparameters": dict(given)}
        runs.append(identity | about | trained | data | origin | goal | blank | effect)
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
    bases, grown = {"autoencoder": 2.0, "bert": 20.0}, {"kaisa": kaisa_factor, "mkor": mkor_factor}
    periods = (1, 10, 100, 1000)
    for at in combinations(workload=bases, optimizer=grown, inverse_update_period=periods, repeat=range(repeats)):
        base, period = bases[at["workload"]], at["inverse_update_period"]
        cost = base * (1 + (grown[at["optimizer"]] - 1) * (1 / period - 0.01) / 0.99) * (1 + 0.01 * at["repeat"])
        about = {"update_rule": RULES.get(at["optimizer"]), "steps": 100, "iteration_ms": cost, "median_ms": base}
        rows.append({**at, **about, "estimate": "combined" if period == 1000 else "measured", "hardware": "test-cpu"})
    return pd.DataFrame(rows)


def numerics(
    eigenvalue: float = 0.01, published_residual: float = 0.5, cosine: float = 0.2, trials: int = 4
) -> pd.DataFrame:
    """Return rows of probes/numerics.csv; only the published rule takes the given values for C21."""
    rows = []
    rules = ("published", "sherman_morrison", "released")
    for at in combinations(update_rule=rules, trial=range(trials), check=("C20", "C21", "C23")):
        residual = 1e-12 if at["update_rule"] == "sherman_morrison" else published_residual
        values = {"C20": eigenvalue * (1 + at["trial"]), "C21": residual, "C23": cosine * (1 + 0.1 * at["trial"])}
        about = {"dtype": "float64", "dimension": 32, "updates": 100, "of": 100, "value": values[at["check"]]}
        rows.append({**at, **about})
    return pd.DataFrame(rows)


def sizes() -> pd.DataFrame:
    """Return rows of probes/sizes.csv: the trained models, and one of the paper's size that was not trained."""
    small = {"batch_size": 64, "parameters": 123456}
    of_bert = {"encoder_parameters": 100000, "pretraining_parameters": 123456}
    rows = [
        {"experiment": experiment, "workload": workload, "model": f"{workload} model", "dataset": f"{workload} data"}
        | (small | of_bert if workload.startswith("bert") else small)
        for experiment, workload in (
            ("update_rules", "autoencoder"),
            ("autoencoder_inversion", "autoencoder"),
            ("bert_pretraining", "bert_pretraining"),
        )
    ]
    large = {"model": "BERT, large", "dataset": "text", "parameters": 336_226_108, "batch_size": 32768}
    parts = {"encoder_parameters": 335_141_888, "pretraining_parameters": 336_226_108}
    return pd.DataFrame([*rows, {"experiment": "bert_phase1", "workload": "bert_pretraining", **large, **parts}])


def write_results(root: Path) -> Path:
    """Write a folder of results with experiments, one diverged run among them, probes and trials; return it."""
    write_trials(root / "trials")
    of_bert: dict[str, Any] = {"workload": "bert_pretraining", "base": "lamb", "period": 10, "seeds": range(3)}
    of_digits: dict[str, Any] = {"start": 0.2, "floor": 0.01}
    reached = {"sgd": None, "adamw": 100.0, "lamb": 120.0, "kaisa": 70.0, "mkor": 80.0, "mkor_released": 85.0}
    of_rules = ("kaisa", "mkor", "mkor_released", "mkor_published")
    parts = {
        "bert_pretraining": [
            run_rows("bert_pretraining", label=label, target=4.2, reaches=at, **of_bert)
            for label, at in reached.items()
        ],
        "autoencoder_inversion": [
            run_rows("autoencoder_inversion", "autoencoder", label, range(6), period=period, steps=400, **of_digits)
            for label, period in product(("kaisa", "mkor"), (1, 10, 100))
        ],
        "bert_inversion": [
            run_rows("bert_inversion", "bert_pretraining", label, range(3), period=period, steps=100)
            for label, period in product(("kaisa", "mkor"), (1, 10, 100))
        ],
        "update_rules": [
            *(
                run_rows("update_rules", "autoencoder", label, range(6), period=10, steps=400, every=20, **of_digits)
                for label in ("sgd", *of_rules[:-1])
            ),
            run_rows(
                "update_rules",
                "autoencoder",
                "mkor_published",
                range(6),
                period=10,
                steps=400,
                every=20,
                failed=(4,),
                **of_digits,
            ),
            *(run_rows("update_rules", label=label, **of_bert) for label in ("lamb", *of_rules)),
        ],
        "factor_variants": [
            run_rows("factor_variants", workload, label, range(seeds), period=5, **of_digits)
            for (workload, seeds), label in product((("autoencoder", 6), ("alexnet", 3)), ("sgd", *VARIANTS))
        ],
    }
    for name, rows in parts.items():
        write_experiment(root, name, rows)
    write_probe(root, "iteration_time", iteration_times())
    write_probe(root, "numerics", numerics())
    write_probe(root, "sizes", sizes())
    every = [Results(root).runs(name) for name in ("bert_pretraining", "update_rules")]
    write_probe(root, "step_time", step_time(pd.concat(every)))
    return write_probes(root)
