"""Table 6: models, data and hardware, here and in the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.results.sources import NO_SOURCES, Sources, from_rows, from_runs
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("*",)
PROBES = ("sizes",)
PUBLISHED = ("settings",)

COUNTERPARTS: Final = {
    "alexnet_cifar100": "AlexNet",
    "bert_base_squad": "BERT-Base-Cased",
    "bert_glue": "BERT-Large-Uncased",
    "bert_imdb": "BERT-Large-Cased",
    "bert_inversion": "BERT-Large-Uncased",
    "bert_phase1": "BERT-Large-Uncased",
    "bert_pretraining": "BERT-Large-Uncased",
    "bert_pretraining_small": "BERT-Large-Uncased",
    "bert_squad": "BERT-Large-Uncased",
    "resnet50_imagenet": "ResNet-50",
    "resnet_cifar10_lr": "ResNet-50",
}
"""The paper's model that an experiment's is compared with."""
COUNTED: Final = {
    "BERT-Base-Cased": "pretraining_parameters",
    "BERT-Large-Cased": "encoder_parameters",
    "BERT-Large-Uncased": "encoder_parameters",
}
"""The column with the parameters that a published number counts, if it does not count those of the trained model."""
_PUBLISHED_TITLES: Final = {
    "model": "model in the paper",
    "parameters_m": "parameters in the paper (M)",
    "dataset": "data in the paper",
    "train": "train in the paper",
    "test": "test in the paper",
}
_MODEL: Final = ["workload", "model", "dataset", "parameters"]
_TRAINED: Final = ["run", "experiment", "train_examples", "validation_examples", "gpu", "cpu"]


def _ours(sizes: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return our columns: one row per model, data set and model of the paper that it is compared with."""
    rows = sizes.assign(counterpart=sizes["experiment"].map(COUNTERPARTS))
    columns = rows["counterpart"].map(COUNTED).fillna("parameters")
    rows["counted"] = [row[column] for (_, row), column in zip(rows.iterrows(), columns, strict=True)]
    listed = {  # a damaged table may lack names
        "experiment": lambda names: ", ".join(names.dropna()),
        "batch_size": lambda numbers: ", ".join(map(str, sorted(set(numbers)))),
    }
    keys = [*_MODEL, "counted", "counterpart"]
    rows = rows.groupby(keys, dropna=False, sort=False, as_index=False).agg(listed)
    rows = rows.merge(_trained(runs), on=_MODEL, how="left")
    # Millions truncated to one decimal, as the paper does: 25.5 for ResNet-50's 25,557,032.
    counted = rows["counted"].map(lambda parameters: f"{parameters // 1e5 / 10:.1f}")
    return pd.DataFrame(
        {
            "workload": rows["workload"],
            "experiments": rows["experiment"],
            "model here": rows["model"],
            "parameters here (M)": (rows["parameters"].astype(float) / 1e6).map("{:.4g}".format),
            "counted the paper's way here (M)": counted.where(rows["counterpart"].notna()),
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


def _trained(runs: pd.DataFrame) -> pd.DataFrame:
    """Return, by model and data set, the examples and the hardware of its first run, and that run as a source."""
    rows = runs.dropna(subset=["parameters"]).drop_duplicates(_MODEL).astype({"parameters": "int64"})
    sources = [from_runs(f"{row['experiment']}.runs.csv", row.to_frame().T) for _, row in rows.iterrows()]
    return rows[[*_MODEL, "train_examples", "validation_examples"]].assign(
        hardware=rows["gpu"].astype(object).fillna(rows["cpu"]),
        trained=pd.Series(sources, rows.index, object),
    )


def _table(sizes: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return our settings joined with the paper's, and with the sources of both."""
    paper = published("settings").rename(columns=_PUBLISHED_TITLES)
    paper["hardware in the paper"] = paper.pop("gpus").astype(str) + " x " + paper.pop("gpu")
    table = _ours(sizes, runs).merge(paper, on="model in the paper", how="outer", sort=False)
    is_published = table["model in the paper"].isin(paper["model in the paper"])
    data = [
        (ours if isinstance(ours, Sources) else NO_SOURCES)
        + (from_rows("workflow/paper/settings.csv", model=model) if known else NO_SOURCES)
        for ours, model, known in zip(table.pop("data"), table["model in the paper"], is_published, strict=True)
    ]
    table["data"] = pd.Series(data, table.index, object)
    whole = ["train here", "test here", "train in the paper", "test in the paper"]
    return table.astype(dict.fromkeys(whole, "Int64")).sort_values("workload", na_position="last", kind="stable")


def make(results: Results, folder: Path) -> list[Path]:
    """Write the settings of every model of the tier and of the paper; one that only the paper has lacks our columns.

    Sizes need neither data nor a GPU: a model that was not trained has no examples and no hardware here.
    """
    sizes = results.some_rows("sizes")
    frames = [results.runs(experiment) for experiment in results.experiments()]
    runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*_MODEL, *_TRAINED])
    notes = [
        "An empty left side: no experiment of this tier has this model. No examples and hardware here: the model was "
        "not trained",
        "Counted as in the paper: the encoder of a BERT-Large with its pooler, and a BERT-Base with its pre-training "
        "heads too; truncated to one decimal",
    ]
    text = caption(results, runs, notes=notes, summarized=False)
    title = "Models, data and hardware: here and in the paper"
    return write_table(_table(sizes, runs), folder, "table6_settings", title=title, caption=text)
