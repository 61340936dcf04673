"""Tables of tuning trials with the columns of real ones: two studies of three optimizers, by steps or by a loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workflow.bench.results.columns import TRIAL_COLUMNS
from workflow.bench.results.rows import write_csv

SCORES = {"sgd": 0.08, "mkor": 0.04, "kaisa": 0.06}
"""About the best score of each optimizer."""
TRIALS, STUDIES = 6, 2


def trial_rows(experiment: str, workload: str, *, by_steps: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of one experiment. One trial of each study diverges; with steps, half reach the target."""
    for number, (label, best) in enumerate(SCORES.items()):
        for study in range(STUDIES):
            rng = np.random.default_rng([number, study])
            scores = (best * np.exp(rng.exponential(size=TRIALS))).tolist()
            chosen = int(np.argmin(scores[1:])) + 1
            for trial, score in enumerate(scores):
                reaches = by_steps and trial > 0 and (score <= np.median(scores) or trial == chosen)
                yield {
                    "experiment": experiment,
                    "workload": workload,
                    "optimizer": label,
                    "study": study,
                    "values": {"lr": 0.1 * trial + 0.1},
                    "seed": 1000 + study,
                    "run": f"{abs(hash((experiment, label, study, trial))) % 16**8:016x}",
                    "status": "finished" if trial else "diverged",
                    "split": "validation",
                    "metric": "loss",
                    "score": score if trial else None,
                    "steps_to_target": 1000 * score if reaches else None,
                    "chosen": trial == chosen,
                }


def tables_of_trials(root: Path) -> tuple[Path, ...]:
    """Return the tables of trials in a folder of synthetic results."""
    return tuple(sorted((root / "trials").glob("*.csv")))


def write_trials(folder: Path) -> list[Path]:
    """Write the tables of four experiments, and return their files."""
    files = []
    workloads = {"one": "autoencoder", "two": "alexnet", "three": "bert_span", "four": "resnet20"}
    for experiment, workload in workloads.items():
        files.append(folder / f"{experiment}.trials.csv")
        write_csv(files[-1], TRIAL_COLUMNS, trial_rows(experiment, workload, by_steps=experiment == "two"))
    return files
