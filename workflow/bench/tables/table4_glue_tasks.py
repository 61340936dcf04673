"""Table 4: the score of each classification task, from each optimizer's pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import studies_of
from workflow.bench.analysis.finetuning_scores import last_values, pretraining_experiment, scores
from workflow.bench.results.tables import Results, published
from workflow.bench.tables import _finetuning as finetuning
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("bert_glue", "bert_pretraining", "bert_pretraining_small")
PUBLISHED = ("glue",)

_RUN_TITLES: Final = {"optimizer": "optimizer in the paper", "iterations": "iterations in the paper"}
_NOT_TASKS: Final = (*_RUN_TITLES, "time_h", "speedup", "average")


def _titles(metrics: pd.DataFrame, runs: pd.DataFrame) -> dict[str, str]:
    """Return ``{dataset: title}``, the columns of our tasks with their metrics.

    A task's metric is the one that equals its ``score`` at every evaluation.
    """
    validation = metrics[metrics["split"] == "validation"]
    titles = {}
    for task, rows in runs.dropna(subset=["dataset"]).groupby("dataset", sort=False):
        of_task = validation[validation["run"].isin(rows["run"])]
        wide = of_task.pivot_table(index=["run", "step"], columns="metric", values="value", aggfunc="last")
        same = [name for name in wide if name != "score" and wide[name].equals(wide["score"])]
        titles[str(task)] = f"{task} here ({same[0] if same else 'score'})"
    return titles


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer and one column per task: its last score over studies or seeds."""
    runs, metrics = results.some_runs("bert_glue"), results.metrics("bert_glue")
    source = pretraining_experiment(results, runs)
    pretraining = results.runs(source)
    last, titles, rows = last_values(metrics, "score"), _titles(metrics, runs), []
    for label, of_label in runs.groupby("optimizer", sort=False):
        by_task = {title: scores(of_label[of_label["dataset"] == task], last) for task, title in titles.items()}
        cells = finetuning.score_cells("bert_glue.csv", str(label), runs, last)
        rows.append(
            cells | {title: finetuning.shown(values, studies_of(of_label)) for title, values in by_task.items()}
        )
    theirs = [str(column) for column in published("glue") if column not in _NOT_TASKS]
    tasks = {column: f"{column.replace('_', ' (')}) in the paper" for column in theirs}
    text = finetuning.caption_of(results, runs, source, [finetuning.SCORE_NOTE, finetuning.PAPER_NOTE])
    table = finetuning.join_paper(rows, pretraining, "glue", _RUN_TITLES | tasks)
    title = "The classification tasks one by one, from each optimizer's pre-training"
    return write_table(table, folder, "table4_glue_tasks", title=title, caption=text)
