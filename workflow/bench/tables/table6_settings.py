"""Table 6: models, data and hardware, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workflow.bench.captions import caption
from workflow.bench.results import NoDataError, Results, published
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("*",)
PUBLISHED = ("settings",)

#: The paper's model that stands beside a workload, by the first part of the workload's name.
COUNTERPARTS = {"bert": "BERT-Large-Uncased"}


def _ours(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a workload and size: what was trained here, on what."""
    trained = runs.dropna(subset=["parameters"]).copy()
    trained["hardware here"] = trained["gpu"].astype(object).fillna(trained["cpu"])
    columns = [
        "workload",
        "model",
        "parameters",
        "dataset",
        "train_examples",
        "validation_examples",
        "hardware here",
    ]
    rows = trained[columns].drop_duplicates()
    counterparts = rows["workload"].astype(str).str.split("_").str[0].map(COUNTERPARTS)
    return pd.DataFrame(
        {
            "workload": rows["workload"],
            "model here": rows["model"],
            "parameters here (M)": (rows["parameters"].astype(float) / 1e6).map("{:.4g}".format),
            "data here": rows["dataset"],
            "train here": rows["train_examples"],
            "test here": rows["validation_examples"],
            "hardware here": rows["hardware here"],
            "model in the paper": counterparts,
        }
    )


def make(results: Results, folder: Path) -> list[Path]:
    """Write what every workload here is, beside the paper's; models that only the paper trains have no left side.

    Raises NoDataError where no experiment has a run that was trained.
    """
    frames = [results.runs(experiment) for experiment in results.experiments()]
    runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if runs.empty or runs["parameters"].dropna().empty:
        raise NoDataError(f"no *.runs.csv with a trained run in {results.root}: run an experiment first.")
    paper = published("settings").rename(
        columns={
            "model": "model in the paper",
            "parameters_m": "parameters in the paper (M)",
            "dataset": "data in the paper",
            "train": "train in the paper",
            "test": "test in the paper",
        }
    )
    paper["hardware in the paper"] = paper.pop("gpus").astype(str) + " x " + paper.pop("gpu")
    for column in ("train in the paper", "test in the paper"):
        paper[column] = paper[column].astype("Int64")
    table = _ours(runs).merge(paper, on="model in the paper", how="outer", sort=False)
    table = table.sort_values("workload", na_position="last", kind="stable")
    for column in ("train here", "test here"):
        table[column] = table[column].astype("Int64")
    return write_table(
        table,
        folder,
        "table6_settings",
        title="Models, data and hardware: here and in the paper",
        caption=caption(results, runs, notes=["An empty left side: not trained at this tier"], summarised=False),
    )
