"""Synthetic rows that decide the claims either way; all numbers are chosen, none is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tests.support.synthetic import reaching, run_rows
from workflow.bench.claims import conditions_of
from workflow.bench.claims.decision import Trained
from workflow.bench.claims.verdicts import Condition
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS, WITHOUT_VALUES
from workflow.bench.results.tables import published

TASKS = ("docstrings: copy", "docstrings: package")
NO_RUNS = pd.DataFrame(columns=list(RUN_COLUMNS))
NO_METRICS = pd.DataFrame(columns=list(EVALUATION_COLUMNS))


def conditions(claim: str) -> tuple[Condition, ...]:
    """Return the thresholds of a claim."""
    return conditions_of(published("claims", as_text=True).set_index("id").loc[claim].to_dict())


def runs_to_target(
    experiment: str, reaches: Mapping[str, Sequence[float | None]], *, target: float | None = 4.2, **about: Any
) -> pd.DataFrame:
    """Return rows of ``<experiment>.runs.csv``: iterations to the target by label, one a seed, None where not reached.

    An iteration takes 0.03 training seconds, KAISA's 0.05.
    """
    rows: list[dict[str, Any]] = []
    for label, steps in reaches.items():
        runs = run_rows(experiment, experiment, label, range(len(steps)), period=10, target=target)[1]
        second = 0.05 if label == "kaisa" else 0.03
        rows += [run | reaching(step, second) | about for run, step in zip(runs, steps, strict=True)]
    return pd.DataFrame(rows)


def descents(runs: pd.DataFrame) -> pd.DataFrame:
    """Return rows of ``<experiment>.csv`` for runs of `runs_to_target`, with a target on the validation loss of 4.2.

    The loss falls from 10 along a line to 4.2 at the run's ``crossing_step``, and stays there: so a run that takes
    twice as long to the last target takes twice as long to every one. Without a crossing it stays at 10.
    """
    rows = []
    for run in runs[~runs["status"].isin(WITHOUT_VALUES)].to_dict("records"):
        shared = {name: run[name] for name in EVALUATION_COLUMNS if name in run}
        shared |= {"split": "validation", "metric": "loss"}
        end, last = run["crossing_step"], float(run["steps_done"])
        corners = {0.0, last} if pd.isna(end) else {0.0, min(end, last), last}
        for step in sorted(corners):
            share = 0.0 if pd.isna(end) else min(step / end, 1.0)
            rows.append(shared | {"step": step, "value": 10 - 5.8 * share, "train_seconds": 0.03 * step})
    return pd.DataFrame(rows, columns=list(EVALUATION_COLUMNS))


def swept(experiment: str, reaches: Mapping[str, Sequence[float | None]], **about: Any) -> Trained:
    """Return runs of 300 steps that take these steps to the last of a sweep's targets, by label, one a seed."""
    runs = runs_to_target(experiment, reaches, **{"steps": 300, "steps_done": 300, **about})
    return Trained(experiment, runs, descents(runs))


def untrained(experiment: str) -> Trained:
    """Return the results of an experiment that has none."""
    return Trained(experiment, NO_RUNS, NO_METRICS)


def fine_tuned(
    experiment: str, scores: Mapping[str, Sequence[float]], tasks: Iterable[str] = TASKS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows of ``<experiment>.csv`` and ``.runs.csv``: a label's last score on every task, one a seed."""
    metrics: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for label, by_seed in scores.items():
        for task in tasks:
            _, task_runs = run_rows(experiment, task, label, range(len(by_seed)))
            for run, score in zip(task_runs, by_seed, strict=True):
                runs.append(run | {"dataset": task, "method": "adamw"})
                shared = {key: run[key] for key in ("run", "optimizer", "seed", "status")}
                shared |= {"split": "validation", "metric": "score", "train_seconds": 1.0}
                metrics += [shared | {"step": 50, "value": 0.1}, shared | {"step": 100, "value": score}]
    return pd.DataFrame(metrics), pd.DataFrame(runs)


def hybrid(switches: Sequence[float | None], *, steps: int = 150) -> pd.DataFrame:
    """Return rows of ``bert_pretraining.runs.csv``: MKOR-H's switches by seed, and MKOR with its rule and steps."""
    frames = []
    for label in ("mkor_h", "mkor"):
        runs = run_rows("bert_pretraining", "bert", label, range(len(switches)), period=5, steps=steps)[1]
        rule = {"update_rule": "sherman_morrison"}
        same = {"method": label, **rule, "hyperparameters": {"lr": 0.1, "base": "lamb", **rule}}
        at = switches if label == "mkor_h" else [None] * len(switches)
        frames += [run | same | {"switch_step": switch} for run, switch in zip(runs, at, strict=True)]
    return pd.DataFrame(frames)


def learning_rates(converging: Mapping[str, Sequence[int]], *, best: float = 0.95) -> Trained:
    """Return results of resnet_cifar10_lr: at how many of four rates a label converges, one number a seed.

    The target is an accuracy of .9. A run that converges has the best accuracy ``best``, another .5; untrained they
    have .1.
    """
    rows: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    for label, counts in converging.items():
        for index, lr in enumerate((0.1, 1.0, 10.0, 0.01)):
            rate_runs = run_rows("resnet_cifar10_lr", f"resnet {lr}", label, range(len(counts)), target=0.9)[1]
            for run, count in zip(rate_runs, counts, strict=True):
                has_converged = index < count
                target = Target("validation", "accuracy", "above", 0.9)
                about = {"hyperparameters": {"lr": lr}, "target": target}
                rows.append(run | about | {"steps_to_target": 50.0 if has_converged else None})
                shared = {name: run[name] for name in EVALUATION_COLUMNS if name in run}
                shared |= {"split": "validation", "metric": "accuracy"}
                values = {0: 0.1, 50: best if has_converged else 0.5, 60: 0.3}
                metrics += [shared | {"step": step, "value": value} for step, value in values.items()]
    return Trained("resnet_cifar10_lr", pd.DataFrame(rows), pd.DataFrame(metrics, columns=list(EVALUATION_COLUMNS)))


def step_breakdown(shares: Mapping[str, float], *, capture: float = 0.0, repeats: int = 3) -> pd.DataFrame:
    """Return rows of probes/step_breakdown.csv: each method's share of factor work where capture is none of it.

    MKOR has period 10, others 10 and 50 alike; ``capture`` milliseconds are KAISA's alone; one repeat is slower.
    """
    rows = []
    for workload in ("bert", "resnet"):
        for optimizer, share in shares.items():
            for period in (10,) if optimizer == "mkor" else (10, 50):
                for repeat in range(repeats):
                    phases = {"forward": 5.0, "backward": 9.0, "factor": share, "precondition": 1 - share}
                    phases |= {"capture": capture if optimizer == "kaisa" else 0.0, "communication": 0.0, "update": 0.0}
                    rows += [
                        {
                            "workload": workload,
                            "workers": 1,
                            "optimizer": optimizer,
                            "inverse_update_period": period,
                            "repeat": repeat,
                            "phase": phase,
                            "ms": ms * (1 + 0.01 * repeat),
                        }
                        for phase, ms in phases.items()
                    ]
    return pd.DataFrame(rows)


def cost_scaling(
    mkor: float = 2.05, floor: float = 2.0, kaisa: float = 2.9, *, shares: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Return rows of probes/cost_scaling.csv with these slopes; KAISA's largest width is timed once.

    shares: of factor work at the paper's periods, by optimizer; the times of preconditioning follow from them.
    """
    rows = []
    for optimizer, share in (shares or {"mkor": 0.02, "kaisa": 0.5}).items():
        period, slope = (10, mkor) if optimizer == "mkor" else (50, kaisa)
        for dimension in (256, 512, 1024):
            for repeat in range(3):
                factor = dimension**slope * 1e-6 * (1 if optimizer == "kaisa" else 1 + 0.01 * repeat) / period
                ms = factor * (1 - share) / share
                row = {"optimizer": optimizer, "part": "precondition", "dimension": dimension, "repeat": repeat}
                rows.append({**row, "ms": ms})
    for optimizer, part, slope in (("mkor", "factor", mkor), ("copy", "floor", floor), ("kaisa", "factor", kaisa)):
        for dimension in (256, 512, 1024):
            for repeat in range(1 if optimizer == "kaisa" and dimension == 1024 else 3):
                ms = dimension**slope * 1e-6 * (1 if optimizer == "kaisa" else 1 + 0.01 * repeat)
                rows.append({"optimizer": optimizer, "part": part, "dimension": dimension, "repeat": repeat, "ms": ms})
    return pd.DataFrame(rows)


def communication(mkor: float = 1.0, kaisa: float = 2.0) -> pd.DataFrame:
    """Return rows of probes/communication.csv with these slopes."""
    return pd.DataFrame(
        {
            "optimizer": optimizer,
            "dimension": dimension,
            "workers": workers,
            "rank": rank,
            "collective": "all_reduce",
            "bytes": round(64 * dimension**slope),
        }
        for optimizer, slope in (("mkor", mkor), ("kaisa", kaisa))
        for workers in (2, 4)
        for rank in range(workers)
        for dimension in (64, 256, 1024)
    )


def memory(mkor: int = 1_000_000, kaisa: int = 2_000_000) -> pd.DataFrame:
    """Return rows of probes/memory.csv: bytes kept in two tensors, and a base with a peak of 5 MB."""
    rows = []
    for workload, base in (("bert", "lamb"), ("resnet", "sgd")):
        for optimizer, size in ((base, 0), ("mkor", mkor), ("kaisa", kaisa)):
            shared = {"workload": workload, "optimizer": optimizer}
            rows.append(shared | {"quantity": "peak_over_start", "bytes": 5_000_000 + size, "computed_bytes": None})
            for tensor in ("left", "right") if size else ():
                state = {"quantity": "preconditioner_state", "tensor": tensor}
                rows.append(shared | state | {"bytes": size // 2, "computed_bytes": size // 2})
    return pd.DataFrame(rows)


def scaling(efficiency: Mapping[int, float]) -> pd.DataFrame:
    """Return rows of probes/scaling.csv: MKOR's measured efficiency by workers; and rows of an earlier model."""
    rows = []
    for workers, share in {1: 1.0, **efficiency}.items():
        rows += [
            {"source": "measured", "workers": workers, "repeat": repeat, "value": (100 + repeat) / (workers * share)}
            for repeat in range(3)
        ]
    rows += [{"source": "model", "workers": 1, "value": 100.0}]
    rows += [{"source": "model", "workers": 64, "value": 100 / 64}]
    return pd.DataFrame(rows).assign(quantity="step_ms", optimizer="mkor", cores=2)


def projection(efficiency: float = 0.5) -> pd.DataFrame:
    """Return rows of probes/projection.csv: the model's efficiency of MKOR at 64 GPUs over 8, on two systems."""
    return pd.DataFrame(
        [
            {"system": system, "workload": workload, "optimizer": label, "workers": gpus, "step_ms": ms}
            for system, share in (("A", efficiency), ("B", efficiency / 2))
            for workload, label, fast in (("bert_large", "mkor", 1), ("bert_large", "lamb", 2), ("gpt_7b", "mkor", 3))
            for gpus, ms in ((8, 800.0 / fast), (64, 100 / share))
        ]
    )


def rank1_error(
    best: Mapping[str, float] | float = 0.2, share: Mapping[str, float] | float = 0.95, change: float = -0.05
) -> pd.DataFrame:
    """Return rows of probes/rank1_error.csv: best errors, the share of their energy in the mean, and their change."""
    rows = []
    for workload in ("bert", "resnet"):
        for index in range(6):
            for side in ("activation", "gradient"):
                error = best if isinstance(best, float) else best[side]
                times = share if isinstance(share, float) else share[side]
                for seed in (0, 1):
                    for step, more in ((0, 0.0), (100, change)):
                        smallest = error + more + 0.001 * index
                        shared = {"workload": workload, "optimizer": "sgd", "seed": seed, "step": step}
                        shared |= {"layer": f"layer {index}", "side": side}
                        rows += [
                            shared | {"approximation": "best", "error": smallest},
                            shared | {"approximation": "mean", "error": 2 * smallest},
                            shared | {"approximation": "scaled_mean", "error": (1 - times * (1 - smallest**2)) ** 0.5},
                        ]
    return pd.DataFrame(rows)


def spectra(running: Sequence[float] = (1.0, 100.0), *, layers: int = 6, singular: int = 0) -> pd.DataFrame:
    """Return rows of probes/spectra.csv: condition numbers of the running averages at the first and last step.

    ``singular`` layers' averages are so at the last; the batch factors grow from 10 to 20 whatever the averages do.
    """
    rows = []
    for workload in ("bert", "resnet"):
        for index in range(layers):
            for factor, conditions in (("batch", (10.0, 20.0)), ("running", running)):
                for step, condition in zip((0, 100), conditions, strict=True):
                    is_singular = factor == "running" and step and index < singular
                    low = 0.0 if is_singular else 1.0 / (condition * (1 + 0.01 * index))
                    rows.append(
                        {
                            "workload": workload,
                            "optimizer": "kaisa",
                            "seed": 0,
                            "step": step,
                            "layer": f"layer {index}",
                            "factor": factor,
                            "smallest": low,
                            "condition_number": 1 / low if low else float("inf"),
                            "resolution": 1e-7,
                            "start_weight": 0.005 if factor == "running" else 0.0,
                        }
                    )
    return pd.DataFrame(rows)


def half_precision(errors: Mapping[str, float] | None = None, finite: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return rows of probes/half_precision.csv: largest errors, with bounds of 1, and finite updates of 10,000.

    One update of each rule starts from a factor that has overflowed before.
    """
    rows: list[dict[str, Any]] = []
    for rule in ("published", "sherman_morrison"):
        shared = {"update_rule": rule, "blend": 0.8, "dtype": "float16", "arithmetic": "half"}
        shared |= {"sequence": "independent"}
        error = (errors or {}).get(rule, 0.1)
        rows += [
            shared | {"check": "error", "value": value, "bound": 1.0, "largest_entry": 2.0} for value in (0.01, error)
        ]
        overflowed = {"value": float("nan"), "bound": float("inf"), "largest_entry": float("inf")}
        rows.append(shared | {"check": "error"} | overflowed)
        updates = (finite or {}).get(rule, 10_000)
        rows.append(shared | {"check": "finite", "value": updates, "bound": 10_000.0, "largest_entry": 2.0})
    return pd.DataFrame(rows)
