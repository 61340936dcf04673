"""Table 3: the average over the classification tasks, and the cost of the pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from workflow.bench.analysis.finetuning_scores import averages, last_values, scores
from workflow.bench.results.tables import Results
from workflow.bench.tables._finetuning import Overview, write_overview

EXPERIMENTS = ("bert_glue", "bert_pretraining", "bert_pretraining_small")
PROBES = ("step_time",)
PUBLISHED = ("glue",)

_TABLE: Final = Overview(
    name="table3_glue_average",
    title="The average over the classification tasks, from each optimizer's pre-training",
    experiment="bert_glue",
    score="average here",
    difference="average minus LAMB's here",
    paper="glue",
    paper_score="average",
    paper_title="average in the paper",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer: the average over tasks, of the seeds that have a score in every task of the tier.

    Raises:
        NoDataError: there are no fine-tuning runs.
    """
    runs = results.some_runs(_TABLE.experiment)
    last = last_values(results.metrics(_TABLE.experiment), "score")
    tasks = list(runs["dataset"].dropna().unique())
    by_label = {
        str(label): averages([scores(rows[rows["dataset"] == task], last) for task in tasks])
        for label, rows in runs.groupby("optimizer", sort=False)
    }
    note = f"Average here over {len(tasks)} tasks: {', '.join(tasks)}"
    return write_overview(results, folder, _TABLE, last=last, scores=by_label, note=note)
