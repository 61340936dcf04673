"""A results folder with the cases that kept results have not: altered copies of a kept folder's files.

Runs that broke down, declared trivial predictors, rivals that act, runs of several lengths with switches, factors that
remember equally long at all periods, HyLo's shares, and 64 workers. The numbers mean nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TRIVIAL = {"autoencoder_lamb": 0.074, "resnet50_imagenet": 0.1, "alexnet_cifar100": 0.02}
LENGTHS = (0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
COPIED = ("bert_glue", "bert_pretraining")
Tables = tuple[pd.DataFrame, pd.DataFrame]
"""An experiment's runs and evaluations, as text."""


def _read(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, dtype=str, keep_default_na=False)


def _numbers(column: pd.Series) -> np.ndarray:
    return column.to_numpy(float)


def _json(column: pd.Series, change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[str]:
    return [json.dumps(change(json.loads(text))) if text else "" for text in column]


def _noisy(runs: pd.DataFrame, rows: pd.DataFrame, draw: np.random.Generator) -> None:
    """Give updates other cosines, metrics noise, one label's seeds other studies, and four runs another end."""
    acts = (rows["metric"] == "cosine").to_numpy()
    rows.loc[acts, "value"] = draw.uniform(0.3, 0.9, acts.sum()).astype(str)
    noisy = rows["metric"].isin(["loss", "accuracy"]).to_numpy()
    rows.loc[noisy, "value"] = (_numbers(rows.loc[noisy, "value"]) * draw.normal(1, 0.02, noisy.sum())).astype(str)
    # Which label's study counts for a seed matters only where they differ.
    ours = runs["optimizer"] == "mkor"
    runs.loc[ours, "study"] = np.roll(runs.loc[ours, "study"], 1)
    ends = ("diverged", "diverged", "out_of_memory", "interrupted")
    for run, status in zip(draw.choice(runs["run"], len(ends), replace=False), ends, strict=True):
        for table in (runs, rows):
            table.loc[table["run"] == run, "status"] = status


def _of_seeds(tables: Tables, seeds: int) -> Tables:
    """Return runs and evaluations of one seed as those of several, with runs of their own."""
    runs, rows = (
        pd.concat([table.assign(seed=str(seed), run=table["run"] + f"-{seed}") for seed in range(seeds)])
        for table in tables
    )
    return runs.reset_index(drop=True), rows.reset_index(drop=True)


def _switching(runs: pd.DataFrame, draw: np.random.Generator) -> None:
    hybrid = (runs["optimizer"] == "mkor_h").to_numpy()
    steps = _numbers(runs.loc[hybrid, "steps"])
    runs.loc[hybrid, "switch_step"] = (draw.uniform(0.1, 0.7, len(steps)) * steps).astype(int).astype(str)


def _of_studies(runs: pd.DataFrame, rows: pd.DataFrame, draw: np.random.Generator) -> None:
    """Give two seeds each the same study, LAMB's other ones, and scores noise."""
    seeds = _numbers(runs["seed"])
    runs["study"] = np.where(runs["optimizer"] == "lamb", seeds % 4, seeds // 2).astype(int).astype(str)
    scored = (rows["metric"] == "score").to_numpy()
    rows.loc[scored, "value"] = (_numbers(rows.loc[scored, "value"]) + draw.normal(0, 0.02, scored.sum())).astype(str)


def _of_lengths(runs: pd.DataFrame, rows: pd.DataFrame, draw: np.random.Generator) -> Tables:
    """Return runs of several lengths, cut from those of one, with other final losses."""
    found: tuple[list[pd.Series], list[pd.DataFrame]] = ([], [])
    for _, run in runs[runs["optimizer"].isin(["lamb", "mkor", "mkor_h"])].iterrows():
        curve = rows[(rows["run"] == run["run"]) & (rows["split"] == "validation") & (rows["metric"] == "loss")]
        for share in LENGTHS:
            length = int(share * int(run["steps"]))
            status = "finished" if draw.random() < 0.95 else draw.choice(["diverged", "out_of_memory"])
            about = {"run": f"{run['run']}-{length}", "experiment": "autoencoder_horizons", "status": status}
            cut = curve[_numbers(curve["step"]) <= length].assign(**about)
            cut["value"] = (_numbers(cut["value"]) * (1 - 0.5 * (1 - share) * draw.random())).astype(str)
            one = pd.Series({**run, **about, "steps": str(length), "steps_done": str(length)})
            if run["optimizer"] == "mkor_h":
                one["switch_step"] = str(int(length * draw.uniform(0.2, 0.9))) if draw.random() < 0.7 else ""
            found[0].append(one)
            found[1].append(cut)
    return pd.DataFrame(found[0]), pd.concat(found[1])


def _equally_long(runs: pd.DataFrame) -> None:
    def equal(given: dict[str, Any]) -> dict[str, Any]:
        period = given.get("inverse_update_period")
        return given | {"factor_decay": 0.99**period} if period else given

    runs["hyperparameters"] = _json(runs["hyperparameters"], equal)


def _probes(source: Path, folder: Path, draw: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    shutil.copy(source / "step_time.csv", folder)
    times, scaling = (_read(source / f"{name}.csv") for name in ("cost_scaling", "scaling"))
    hylo = times[times["optimizer"] == "kaisa"].assign(optimizer="hylo")
    times = pd.concat([times[times["optimizer"] != "hylo"], hylo], ignore_index=True)
    times["ms"] = (_numbers(times["ms"]) * draw.uniform(0.9, 1.1, len(times))).astype(str)
    times.to_csv(folder / "cost_scaling.csv", index=False)
    two = (scaling["workers"] == "2").to_numpy()
    scaling.loc[two, "value"] = (_numbers(scaling.loc[two, "value"]) / draw.uniform(40, 44, two.sum())).astype(str)
    scaling.loc[two, "workers"] = "64"
    scaling.to_csv(folder / "scaling.csv", index=False)


def write_cases(kept: Path, folder: Path) -> None:
    """Write the folder from a kept one of the embedded tier, the same at each call."""
    draw = np.random.default_rng(0)
    _probes(kept / "probes", folder / "probes", draw)
    written: dict[str, Tables] = {}
    for name in (*TRIVIAL, "resnet_cifar10_lr", "autoencoder_inversion", *COPIED):
        tables = _read(kept / f"{name}.runs.csv"), _read(kept / f"{name}.csv")
        # Noise may end a run of every seed before its time; then nothing is left to compare.
        runs, rows = written[name] = _of_seeds(tables, 8) if name in ("resnet_cifar10_lr", "bert_glue") else tables
        if name not in COPIED:
            _noisy(runs, rows, draw)
        if name in TRIVIAL:
            runs["target"] = _json(runs["target"], lambda target, name=name: target | {"trivial": TRIVIAL[name]})
    for name in ("autoencoder_lamb", "bert_pretraining"):
        _switching(written[name][0], draw)
    _of_studies(*written["bert_glue"], draw)
    _equally_long(written["autoencoder_inversion"][0])
    written["autoencoder_horizons"] = _of_lengths(*written["autoencoder_lamb"], draw)
    for name, (runs, rows) in written.items():
        runs.to_csv(folder / f"{name}.runs.csv", index=False)
        rows.to_csv(folder / f"{name}.csv", index=False)
