"""Table 2: fine-tuning on questions from every optimizer's pre-training, and the cost of the pre-training."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.results.tables import Results
from workflow.bench.tables._finetuning import write_overview

EXPERIMENTS = ("bert_squad", "bert_pretraining", "bert_pretraining_small")
PROBES = ("step_time",)
PUBLISHED = ("squad",)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer: the F1 score of its last evaluation over studies or seeds, and the paper's."""
    title = "Fine-tuning on questions, from each optimizer's pre-training"
    columns = {"paper": "squad", "metric": "f1", "score": "F1", "unit": " (%)", "about": "Questions here: {1}"}
    return write_overview(results, folder, "table2_squad", title, **columns)
