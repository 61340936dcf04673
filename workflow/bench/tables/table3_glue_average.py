"""Table 3: the average over the classification tasks, and the cost of the pre-training."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.results.tables import Results
from workflow.bench.tables._finetuning import write_overview

EXPERIMENTS = ("bert_glue", "bert_pretraining", "bert_pretraining_small")
PROBES = ("step_time",)
PUBLISHED = ("glue",)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer: the average over tasks, of the seeds that have a score in every task of the tier."""
    title = "The average over the classification tasks, from each optimizer's pre-training"
    columns = {"paper": "glue", "metric": "score", "score": "average", "about": "Average here over {0} tasks: {1}"}
    return write_overview(results, folder, "table3_glue_average", title, **columns)
