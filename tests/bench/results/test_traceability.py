"""Numbers of tables followed back, by what their rows name, to the metrics.csv of runs that were really trained."""

from __future__ import annotations

import csv
import random
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import isotonic_regression

from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import aggregate, train
from workflow.bench.make_artefact import main
from workflow.bench.results.tables import Results

TARGET = 0.178
FOLLOWED = 3
BERT = {"batch_size": 8, "layers": 1, "hidden_size": 8, "heads": 1, "vocabulary_size": 256, "sequence_length": 16}
RATES = (1.0, 0.1, 1e-6)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experiments of the autoencoder with a target, pre-training, and fine-tuning on two tasks from it; tables."""
    config = make_folder(tmp_path_factory.mktemp("traced") / "config")
    aim = {"split": "validation", "metric": "loss", "below": TARGET}
    rates = {"sweep": {"lr": list(RATES)}, "hyperparameters": {"momentum": 0.9}}
    preconditioned = {**rates, "hyperparameters": {"base": "sgd", "momentum": 0.9, "inverse_update_period": 5}}
    write(
        config,
        "resnet_cifar10_lr",
        block({"name": "sgd", **rates}, {"name": "mkor", **preconditioned}, target=aim, seeds=[0, 1]),
    )
    few = {"steps": 4, "evaluate_every": 2, "seeds": [0, 1]}
    write(
        config,
        "bert_pretraining",
        block(
            optimizer("lamb"),
            optimizer("mkor", base="lamb"),
            workload={"name": "bert_pretraining", **BERT, "validation_pairs": 16},
            **few,
        ),
    )
    labels = [optimizer("adamw", label, lr=0.001) for label in ("lamb", "mkor")]
    write(
        config,
        "bert_glue",
        *(
            block(
                *labels,
                workload={"name": "bert_classification", "dataset": task, **BERT},
                start_from={"experiment": "bert_pretraining"},
                **few,
            )
            for task in ("copy", "similarity")
        ),
    )
    plan = load(config)
    for experiment in ("resnet_cifar10_lr", "bert_pretraining", "bert_glue"):
        for job in plan.experiments[experiment].jobs.values():
            assert train.main([experiment, job.label, *options(config)]) == 0
        assert aggregate.main([experiment, *options(config)]) == 0
    for name in FOLLOW:
        assert main([name, "--results", str(plan.results)]) == 0
    return plan.results


def named(row: pd.Series, experiment: str) -> list[str]:
    """The runs of an experiment that a row says its numbers come from."""
    sources = (source.partition(": runs ") for source in row["data"].split("; "))
    return [run for file, _, runs in sources if file.startswith(f"{experiment}.") for run in runs.split(", ")]


def metrics(root: Path, run: str, metric: str) -> list[tuple[int, float, float]]:
    """A run's validation values of a metric, as it wrote them: step, epoch, value."""
    with (root / "runs" / run / "metrics.csv").open(newline="") as file:
        return [
            (int(row["step"]), float(row["epoch"]), float(row["value"]))
            for row in csv.DictReader(file)
            if (row["split"], row["metric"]) == ("validation", metric)
        ]


def about(root: Path, experiment: str) -> pd.DataFrame:
    """Label, seed and rate of an experiment's runs: who they are, not what they measured."""
    runs = Results(root).runs(experiment).set_index("run")
    return runs.assign(lr=[given["lr"] for given in runs["hyperparameters"]])


Followed = list[tuple[str, float | str]]


def reached(root: Path, run: str) -> tuple[int, float] | None:
    """Step and epoch at which a run's loss first was at the target or below."""
    return next(((step, epoch) for step, epoch, value in metrics(root, run, "loss") if value <= TARGET), None)


def crossed(root: Path, run: str) -> float | None:
    """Step at which a run's loss, fitted by SciPy's isotonic regression, crosses the target, interpolated."""
    steps, _, losses = zip(*metrics(root, run, "loss"), strict=True)
    fitted = isotonic_regression(losses, increasing=False).x
    if fitted[-1] > TARGET:
        return None
    at = int(np.argmax(fitted <= TARGET))
    around = slice(max(at - 1, 0), at + 1)
    return float(np.interp(-TARGET, -fitted[around], steps[around]))


def follow_time_to_target(row: pd.Series, root: Path) -> Followed:
    """Iterations to the target."""
    runs = about(root, row["experiment"]).loc[named(row, row["experiment"])]
    of_label = runs[(runs["optimizer"] == row["optimizer"]) & (runs["lr"] == float(row["rate"]))]
    steps = [crossed(root, run) for run in of_label.index]
    reached = [step for step in steps if step is not None]
    if len(reached) < len(steps):
        return [(row["iterations"].split()[0], "not")]  # reached: no run, or not all of two
    return [(row["iterations"].split()[0], statistics.geometric_mean(reached))]


def follow_table5(row: pd.Series, root: Path) -> Followed:
    """Epochs to the target at each rate, or to the lowest loss where no run gets there."""
    runs = about(root, "resnet_cifar10_lr").loc[named(row, "resnet_cifar10_lr")]
    cells: Followed = []
    for rate in RATES:
        of_rate = list(runs.index[runs["lr"] == rate])
        targets = [reached(root, run) for run in of_rate]
        if None not in targets:
            epochs = [epoch for _, epoch in filter(None, targets)]
        else:
            assert not any(targets), "the made-up rates reach the target in every seed or in none"
            epochs = [min(metrics(root, run, "loss"), key=lambda point: point[2])[1] for run in of_rate]
        cells.append((re.split(r"[* ]", row[f"lr {rate:g} here"])[0], statistics.mean(epochs)))
    return cells


def follow_table3(row: pd.Series, root: Path) -> Followed:
    """The average over tasks of the last score, and the last step of the pre-training."""
    runs, pretraining = (
        frame[frame["optimizer"] == row["optimizer here"]]  # LAMB's are named too, which the row is compared with
        for frame in (about(root, name).loc[named(row, name)] for name in ("bert_glue", "bert_pretraining"))
    )
    last = {run: metrics(root, run, "score")[-1][2] for run in runs.index}
    by_seed = [statistics.mean(last[run] for run in of_seed.index) for _, of_seed in runs.groupby("seed")]
    (steps,) = {metrics(root, run, "loss")[-1][0] for run in pretraining.index}
    return [(row["average here"].split()[0], statistics.mean(by_seed)), (row["iterations here"], float(steps))]


FOLLOW: dict[str, Callable[[pd.Series, Path], Followed]] = {
    "time_to_target": follow_time_to_target,
    "table5_lr_sensitivity": follow_table5,
    "table3_glue_average": follow_table3,
}


def rows(root: Path, name: str) -> list[pd.Series]:
    """A table's rows that have runs of ours."""
    table = pd.read_csv(root / "tables" / f"{name}.csv", dtype=str, keep_default_na=False)
    return [row for _, row in table.iterrows() if ": runs " in row["data"]]


def test_random_rows_lead_back_to_what_the_runs_wrote(results):
    """Truth: metrics.csv of the runs that the row names, read and averaged here, without the bench's statistics."""
    every = [(name, row) for name in FOLLOW for row in rows(results, name)]
    seed = random.randrange(2**32)
    print(f"random rows of seed {seed}")
    for name, row in random.Random(seed).sample(every, FOLLOWED):
        followed = FOLLOW[name](row, results)
        print(name, followed)
        assert followed
        for shown, truth in followed:
            if isinstance(truth, str):
                assert shown == truth
            else:
                assert float(shown) == pytest.approx(truth, rel=6e-3, abs=1e-12)


def test_every_table_has_rows_to_follow(results):
    counts = {name: len(rows(results, name)) for name in FOLLOW}
    assert counts == {"time_to_target": 6, "table5_lr_sensitivity": 2, "table3_glue_average": 2}
    # Some rates reach the target and some do not, so that both ways are followed.
    table = pd.read_csv(results / "tables" / "time_to_target.csv")
    assert {0, 2} == set(table["reached"])
