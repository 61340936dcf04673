"""Table 3: the average over the classification tasks, and what the pre-training took."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.analysis.finetuning_scores import averages, last_values, scores
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.tables._finetuning import write_overview

EXPERIMENTS = ("bert_glue", "bert_pretraining")
PUBLISHED = ("glue",)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row an optimizer: the average over tasks by seed, of the seeds that have every task of the tier.

    Raises NoDataError where no run of fine-tuning is there.
    """
    runs = results.runs("bert_glue")
    if runs.empty:
        raise NoDataError(f"no bert_glue.runs.csv in {results.root}: run the experiment first.")
    last = last_values(results.metrics("bert_glue"), "score")
    tasks = list(runs["dataset"].dropna().unique())
    return write_overview(
        results,
        folder,
        "table3_glue_average",
        experiment="bert_glue",
        last=last,
        values={
            str(label): averages([scores(rows[rows["dataset"] == task], last) for task in tasks])
            for label, rows in runs.groupby("optimizer", sort=False)
        },
        score=("average here", "average minus LAMB's here"),
        paper=("glue", "average", "average in the paper"),
        title="The average over the classification tasks, from each optimizer's pre-training",
        note=f"Average here over {len(tasks)} tasks: {', '.join(tasks)}",
    )
