"""Synthetic rows that decide the claims either way; all numbers are chosen, none is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tests.support.synthetic import reaching, run_rows
from tests.support.synthetic_probes import combinations
from workflow.bench.claims import conditions_of
from workflow.bench.claims.decision import Condition, Trained
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS, WITHOUT_VALUES
from workflow.bench.results.rows import write_csv
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
    twice as long to the last target takes twice as long to every one. Without a crossing it stays at 10. Evaluations
    are 10 steps apart, and one is where it bends.
    """
    rows = []
    for run in runs[~runs["status"].isin(WITHOUT_VALUES)].to_dict("records"):
        shared = {name: run[name] for name in EVALUATION_COLUMNS if name in run}
        shared |= {"split": "validation", "metric": "loss"}
        end, last = run["crossing_step"], float(run["steps_done"])
        steps = {*map(float, range(0, int(last), 10)), last} | ({0.0} if pd.isna(end) else {min(end, last)})
        for step in sorted(steps):
            share = 0.0 if pd.isna(end) else min(step / end, 1.0)
            rows.append(shared | {"step": step, "value": 10 - 5.8 * share, "train_seconds": 0.03 * step})
    return pd.DataFrame(rows, columns=list(EVALUATION_COLUMNS))


def swept(experiment: str, reaches: Mapping[str, Sequence[float | None]], **about: Any) -> Trained:
    """Return runs of 300 steps that take these steps to the last of a sweep's targets, by label, one a seed."""
    runs = runs_to_target(experiment, reaches, **{"steps": 300, "steps_done": 300, **about})
    return Trained(experiment, runs, descents(runs))


def write_swept(root: Path, trained: Trained) -> None:
    """Write both CSV files of an experiment's results."""
    for end, columns, rows in (
        (".csv", EVALUATION_COLUMNS, trained.metrics),
        (".runs.csv", RUN_COLUMNS, trained.runs),
    ):
        root.mkdir(parents=True, exist_ok=True)
        # What pandas lost to NaN is an empty field again.
        whole = rows.astype(object).where(rows.notna(), None)
        write_csv(root / f"{trained.name}{end}", columns, whole.to_dict("records"))


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


def comparing(trained: Trained, cosines: Mapping[str, float]) -> Trained:
    """Return results with a cosine of V and D at two evaluations of each run of these labels."""
    runs = trained.runs[trained.runs["optimizer"].isin(cosines)]
    shared = runs[[name for name in EVALUATION_COLUMNS if name in runs]]
    rows = [
        shared.assign(split="preconditioner", metric="cosine", step=step, value=shared["optimizer"].map(cosines))
        for step in (50, 60)
    ]
    return Trained(trained.name, trained.runs, pd.concat([trained.metrics, *rows], ignore_index=True))


def cost_scaling(
    mkor: float = 2.05, floor: float = 2.0, kaisa: float = 2.9, *, shares: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Return rows of probes/cost_scaling.csv with these slopes; HyLo's is 2.

    shares: of the factors' work at the paper's periods, by optimizer; the times of preconditioning follow from them.
    """
    rows = []
    slopes, widths = {"mkor": mkor, "copy": floor, "kaisa": kaisa, "hylo": 2.0}, (256, 512, 1024)
    given = {"mkor": 0.02, "kaisa": 0.6, "hylo": 0.6} | (dict(shares) if shares else {})
    # Two factors every 10 steps, two every 50, and HyLo's rows of both sides every 50.
    updates = {"mkor": 2 / 10, "kaisa": 2 / 50, "hylo": 1 / 50}
    for at in combinations(
        optimizer=slopes, part=("factor", "precondition", "floor"), dimension=widths, repeat=range(3)
    ):
        label, part, width, repeat = at.values()
        ms = width ** slopes[label] * 1e-6 * (1 if label == "kaisa" else 1 + 0.01 * repeat)
        if part == "precondition" and label in given:
            rows.append({**at, "ms": ms * updates[label] * (1 - given[label]) / given[label]})
        if part == ("floor" if label == "copy" else "factor"):
            rows.append({**at, "ms": ms})
    return pd.DataFrame(rows)


def communication(mkor: float = 1.0, kaisa: float = 2.0) -> pd.DataFrame:
    """Return rows of probes/communication.csv with these slopes."""
    slopes = {"mkor": mkor, "kaisa": kaisa}
    every = combinations(optimizer=slopes, workers=(2, 4), rank=range(4), dimension=(64, 256, 1024))
    return pd.DataFrame(
        {**at, "collective": "all_reduce", "bytes": round(64 * at["dimension"] ** slopes[at["optimizer"]])}
        for at in every
        if at["rank"] < at["workers"]
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
    rows = [
        {"source": "measured", "workers": workers, "repeat": repeat, "value": (100 + repeat) / (workers * share)}
        for workers, share in {1: 1.0, **efficiency}.items()
        for repeat in range(3)
    ]
    rows += [{"source": "model", "workers": workers, "value": 100 / workers} for workers in (1, 64)]
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
    layers, sides = [f"layer {index}" for index in range(6)], ("activation", "gradient")
    for at in combinations(workload=("bert", "resnet"), layer=layers, side=sides, seed=(0, 1), step=(0, 100)):
        error = best if isinstance(best, float) else best[at["side"]]
        captured = share if isinstance(share, float) else share[at["side"]]
        smallest = error + 0.001 * layers.index(at["layer"]) + (change if at["step"] else 0.0)
        of_mean = (1 - captured * (1 - smallest**2)) ** 0.5
        for name, value in (("best", smallest), ("mean", 2 * smallest), ("scaled_mean", of_mean)):
            rows.append({**at, "optimizer": "sgd", "approximation": name, "error": value})
    return pd.DataFrame(rows)


def spectra(running: Sequence[float] = (1.0, 100.0), *, layers: int = 6, singular: int = 0) -> pd.DataFrame:
    """Return rows of probes/spectra.csv: conditions of the first batch and the last average without identity.

    ``singular`` layers' averages are so at the last; the batch factors double whatever the averages do. Averages have
    a weight of 0.95 of the identity at the first step and 0.005 at the last, beside a rest of at most 1.
    """
    rows = []
    first, last = running
    conditions = {("batch", 0): first, ("batch", 100): 2 * first, ("running", 0): first, ("running", 100): last}
    for at in combinations(
        workload=("bert", "resnet"), layer=range(layers), factor=("batch", "running"), step=(0, 100)
    ):
        is_running = at["factor"] == "running"
        is_singular = is_running and at["step"] and at["layer"] < singular
        low = 0.0 if is_singular else 1 / (conditions[at["factor"], at["step"]] * (1 + 0.01 * at["layer"]))
        weight = (0.005 if at["step"] else 0.95) if is_running else 0.0
        about = {"optimizer": "kaisa", "seed": 0, "resolution": 1e-7, "start_weight": weight}
        smallest, largest = low + weight, 1 + weight
        condition = largest / smallest if smallest else float("inf")
        values = {"smallest": smallest, "largest": largest, "condition_number": condition}
        rows.append({**at, "layer": f"layer {at['layer']}", **about, **values})
    return pd.DataFrame(rows)


def half_precision(errors: Mapping[str, float] | None = None, finite: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return rows of probes/half_precision.csv: largest errors, with bounds of 1, and finite updates of 10,000.

    One update of each rule starts from a factor that has overflowed before.
    """
    rows = []
    for rule in ("published", "sherman_morrison"):
        error, updates = (errors or {}).get(rule, 0.1), (finite or {}).get(rule, 10_000)
        values = [("error", 0.01, 1.0), ("error", error, 1.0), ("error", float("nan"), float("inf"))]
        for check, value, bound in (*values, ("finite", updates, 10_000.0)):
            about = {"update_rule": rule, "blend": 0.8, "dtype": "float16", "arithmetic": "half"}
            rows.append({**about, "sequence": "independent", "check": check, "value": value, "bound": bound})
    return pd.DataFrame(rows)
