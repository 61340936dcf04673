"""Table 6: models, data and hardware, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.results.sources import NO_SOURCES, Source, Sources, from_rows
from workflow.bench.results.tables import NoDataError, Results, published
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("*",)
PROBES = ("sizes",)
PUBLISHED = ("settings",)

#: The paper's model that stands beside an experiment's.
COUNTERPARTS = {
    "alexnet_cifar100": "AlexNet",
    "bert_base_squad": "BERT-Base-Cased",
    "bert_glue": "BERT-Large-Uncased",
    "bert_imdb": "BERT-Large-Cased",
    "bert_inversion": "BERT-Large-Uncased",
    "bert_phase1": "BERT-Large-Uncased",
    "bert_pretraining": "BERT-Large-Uncased",
    "bert_squad": "BERT-Large-Uncased",
    "resnet50_imagenet": "ResNet-50",
    "resnet_cifar10_lr": "ResNet-50",
}
#: What a published number of parameters counts, where that is not the model that is trained.
COUNTED = {
    "BERT-Base-Cased": "pretraining_parameters",
    "BERT-Large-Cased": "encoder_parameters",
    "BERT-Large-Uncased": "encoder_parameters",
}
_MODEL = ["workload", "model", "dataset", "parameters"]
_TRAINED = ["run", "experiment", "train_examples", "validation_examples", "gpu", "cpu"]


def _ours(sizes: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """One row a model and data set beside each model of the paper; where it was trained, on how much and on what."""
    rows = sizes.assign(counterpart=sizes["experiment"].map(COUNTERPARTS))
    columns = rows["counterpart"].map(COUNTED).fillna("parameters")
    rows["counted"] = [row[column] for (_, row), column in zip(rows.iterrows(), columns, strict=True)]
    rows = rows.groupby([*_MODEL, "counted", "counterpart"], dropna=False, sort=False, as_index=False).agg(
        {"experiment": ", ".join, "batch_size": _listed}
    )
    trained = runs.dropna(subset=["parameters"]).copy()
    trained["hardware"] = trained["gpu"].astype(object).fillna(trained["cpu"])
    runs_files = zip(trained["experiment"] + ".runs.csv", trained["run"], strict=True)
    trained["trained"] = pd.Series(
        [Sources((Source(file, (run,)),)) for file, run in runs_files], trained.index, object
    )
    trained = trained[[*_MODEL, "train_examples", "validation_examples", "hardware", "trained"]].drop_duplicates(_MODEL)
    rows = rows.merge(trained.astype({"parameters": "int64"}), on=_MODEL, how="left")
    return pd.DataFrame(
        {
            "workload": rows["workload"],
            "experiments": rows["experiment"],
            "model here": rows["model"],
            "parameters here (M)": (rows["parameters"].astype(float) / 1e6).map("{:.4g}".format),
            "counted as in the paper (M)": rows["counted"].map(_cut).where(rows["counterpart"].notna()),
            "batch here": rows["batch_size"],
            "data here": rows["dataset"],
            "train here": rows["train_examples"],
            "test here": rows["validation_examples"],
            "hardware here": rows["hardware"],
            "model in the paper": rows["counterpart"],
            "data": [
                from_rows("probes/sizes.csv", workload=row["workload"], model=row["model"], dataset=row["dataset"])
                + (row["trained"] if isinstance(row["trained"], Sources) else NO_SOURCES)
                for _, row in rows.iterrows()
            ],
        }
    )


def _listed(numbers: pd.Series) -> str:
    """Return different numbers, in their order."""
    return ", ".join(map(str, sorted(set(numbers))))


def _cut(parameters: float) -> str:
    """Return millions with one decimal, the others cut off: so the paper makes 25.5 of ResNet-50's 25,557,032."""
    return f"{parameters // 1e5 / 10:.1f}"


def make(results: Results, folder: Path) -> list[Path]:
    """Write what every model of the tier is, beside the paper's; models that only the paper trains have no left side.

    Sizes need neither data nor a GPU: a model that was not trained has no examples and no hardware here.

    Raises NoDataError where its probe has not run.
    """
    sizes = results.probe("sizes")
    if sizes.empty:
        raise NoDataError(f"no probes/sizes.csv in {results.root}: run python -m workflow.bench.probes.sizes first.")
    frames = [results.runs(experiment) for experiment in results.experiments()]
    runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*_MODEL, *_TRAINED])
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
    table = _ours(sizes, runs).merge(paper, on="model in the paper", how="outer", sort=False)
    known = table["model in the paper"].isin(paper["model in the paper"])
    sources = [from_rows("workflow/paper/settings.csv", model=name) for name in table["model in the paper"]]
    data = [
        (ours if isinstance(ours, Sources) else NO_SOURCES) + (theirs if is_published else NO_SOURCES)
        for ours, theirs, is_published in zip(table.pop("data"), sources, known, strict=True)
    ]
    table["data"] = pd.Series(data, table.index, object)
    table = table.sort_values("workload", na_position="last", kind="stable")
    for column in ("train here", "test here"):
        table[column] = table[column].astype("Int64")
    notes = [
        "An empty left side: no experiment of this tier has it. No examples and hardware here: not trained",
        "Counted as in the paper: a BERT-Large's encoder with its pooler, a BERT-Base with its pre-training heads too; "
        "cut after the first decimal",
    ]
    return write_table(
        table,
        folder,
        "table6_settings",
        title="Models, data and hardware: here and in the paper",
        caption=caption(results, runs, notes=notes, summarised=False),
    )
