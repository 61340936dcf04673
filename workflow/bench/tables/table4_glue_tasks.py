"""Table 4: the score of each classification task, from each optimizer's pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.finetuning_scores import last_values, pretraining_experiment, scores
from workflow.bench.results.tables import Results, published
from workflow.bench.tables import _finetuning
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("bert_glue", "bert_pretraining", "bert_pretraining_small")
PUBLISHED = ("glue",)

_RUN_TITLES: Final = {"optimizer": "optimizer in the paper", "iterations": "iterations in the paper"}
_NOT_TASKS: Final = (*_RUN_TITLES, "time_h", "speedup", "average")


def task_metric(metrics: pd.DataFrame) -> str:
    """Return the name of a task's metric: the one that equals its ``score`` at every evaluation."""
    wide = metrics.pivot_table(index=["run", "step"], columns="metric", values="value", aggfunc="last")
    same = [name for name in wide if name != "score" and wide[name].equals(wide["score"])]
    return str(same[0]) if same else "score"


def _titles(metrics: pd.DataFrame, runs: pd.DataFrame) -> dict[str, str]:
    """Return ``{dataset: title}``, the columns of our tasks with their metrics."""
    validation = metrics[metrics["split"] == "validation"]
    titles = {}
    for task, rows in runs.dropna(subset=["dataset"]).groupby("dataset", sort=False):
        of_task = validation[validation["run"].isin(rows["run"])]
        titles[str(task)] = f"{task} here ({task_metric(of_task) if not of_task.empty else 'score'})"
    return titles


def _row(label: str, runs: pd.DataFrame, last: pd.Series, titles: dict[str, str]) -> dict[str, Any]:
    """Return the cells of one optimizer, with its score in each task."""
    by_task = {title: scores(runs[runs["dataset"] == task], last) for task, title in titles.items()}
    return {
        "optimizer here": label,
        "runs finished": _finetuning.finished(runs),
        **{title: _finetuning.shown(values, _finetuning.SCORE_DIGITS) for title, values in by_task.items()},
        "data": _finetuning.score_sources("bert_glue.csv", runs, last, label),
    }


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer and one column per task: the score of its last evaluation over seeds.

    Raises:
        NoDataError: there are no fine-tuning runs.
    """
    runs, metrics = results.some_runs("bert_glue"), results.metrics("bert_glue")
    source = pretraining_experiment(results, runs)
    pretraining = results.runs(source)
    last, titles = last_values(metrics, "score"), _titles(metrics, runs)
    rows = [_row(str(label), of_label, last, titles) for label, of_label in runs.groupby("optimizer", sort=False)]
    theirs = [str(column) for column in published("glue") if column not in _NOT_TASKS]
    tasks = {column: f"{column.replace('_', ' (')}) in the paper" for column in theirs}
    ours = ["optimizer here", "runs finished", *titles.values()]
    return write_table(
        _finetuning.join_paper(rows, pretraining, "glue", _RUN_TITLES | tasks, ours),
        folder,
        "table4_glue_tasks",
        title="The classification tasks one by one, from each optimizer's pre-training",
        caption=caption(
            results,
            _finetuning.with_pretraining(runs, pretraining),
            notes=[_finetuning.SCORE_NOTE, _finetuning.PAPER_NOTE],
            absent=[source] if pretraining.empty else [],
        ),
    )
