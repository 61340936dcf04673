"""Table 3: the average over the classification tasks, and the cost of the pre-training."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.analysis.finetuning_scores import averages, last_values, scores
from workflow.bench.results.tables import Results
from workflow.bench.tables._finetuning import write_overview

EXPERIMENTS = ("bert_glue", "bert_pretraining", "bert_pretraining_small")
PROBES = ("step_time",)
PUBLISHED = ("glue",)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer: the average over tasks, of the seeds that have a score in every task of the tier.

    Raises:
        NoDataError: there are no fine-tuning runs.
    """
    runs = results.some_runs("bert_glue")
    last = last_values(results.metrics("bert_glue"), "score")
    tasks = list(runs["dataset"].dropna().unique())
    by_label = {
        str(label): averages([scores(rows[rows["dataset"] == task], last) for task in tasks])
        for label, rows in runs.groupby("optimizer", sort=False)
    }
    return write_overview(
        results,
        folder,
        "table3_glue_average",
        "The average over the classification tasks, from each optimizer's pre-training",
        score="average",
        paper="glue",
        paper_score="average",
        last=last,
        scores=by_label,
        note=f"Average here over {len(tasks)} tasks: {', '.join(tasks)}",
    )
