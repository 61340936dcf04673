"""Table 4: every classification task by itself, from each optimizer's pre-training."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.finetuning_scores import last_values, scores
from workflow.bench.results.tables import NoDataError, Results, published
from workflow.bench.tables import _finetuning
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("bert_glue", "bert_pretraining")
PUBLISHED = ("glue",)

_ABOUT = {"optimizer": "optimizer in the paper", "iterations": "iterations in the paper"}
_NOT_TASKS = (*_ABOUT, "time_h", "speedup", "average")


def own_metric(metrics: pd.DataFrame) -> str:
    """The metric of one task's rows that its ``score`` is: the one that equals it at every evaluation."""
    wide = metrics.pivot_table(index=["run", "step"], columns="metric", values="value", aggfunc="last")
    same = [name for name in wide if name != "score" and wide[name].equals(wide["score"])]
    return str(same[0]) if same else "score"


def _titles(metrics: pd.DataFrame, runs: pd.DataFrame) -> dict[str, str]:
    """Columns of the tasks here, with their metric: ``{dataset: title}``."""
    validation = metrics[metrics["split"] == "validation"]
    titles = {}
    for task, rows in runs.dropna(subset=["dataset"]).groupby("dataset", sort=False):
        of_task = validation[validation["run"].isin(rows["run"])]
        titles[str(task)] = f"{task} here ({own_metric(of_task) if not of_task.empty else 'score'})"
    return titles


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row an optimizer and one column a task: the score of its last evaluation over seeds.

    Raises NoDataError where no run of fine-tuning is there.
    """
    runs, metrics = results.runs("bert_glue"), results.metrics("bert_glue")
    pretraining = results.runs(_finetuning.PRETRAINING)
    if runs.empty:
        raise NoDataError(f"no bert_glue.runs.csv in {results.root}: run the experiment first.")
    last, titles = last_values(metrics, "score"), _titles(metrics, runs)
    rows = [
        {
            "optimizer here": str(label),
            "runs finished": _finetuning.finished(of_label),
            **{
                title: _finetuning.shown(scores(of_label[of_label["dataset"] == task], last), _finetuning.SCORE_DIGITS)
                for task, title in titles.items()
            },
            "data": _finetuning.traced_scores("bert_glue.csv", of_label, last, str(label)),
        }
        for label, of_label in runs.groupby("optimizer", sort=False)
    ]
    theirs = [str(column) for column in published("glue") if column not in _NOT_TASKS]
    tasks = {column: f"{column.replace('_', ' (')}) in the paper" for column in theirs}
    return write_table(
        _finetuning.beside(
            rows, pretraining, "glue", _ABOUT | tasks, ["optimizer here", "runs finished", *titles.values()]
        ),
        folder,
        "table4_glue_tasks",
        title="The classification tasks one by one, from each optimizer's pre-training",
        caption=caption(
            results,
            _finetuning.shown_runs(runs, pretraining),
            notes=_finetuning.NOTES[::2],
            absent=[_finetuning.PRETRAINING] if pretraining.empty else [],
        ),
    )
