"""Table 2: fine-tuning on questions from every optimizer's pre-training, and the cost of the pre-training."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.analysis.finetuning_scores import last_values, scores
from workflow.bench.results.tables import Results
from workflow.bench.tables._finetuning import write_overview

EXPERIMENTS = ("bert_squad", "bert_pretraining", "bert_pretraining_small")
PROBES = ("step_time",)
PUBLISHED = ("squad",)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer: the F1 score of its last evaluation over seeds, and the paper's.

    Raises:
        NoDataError: there are no fine-tuning runs.
    """
    runs = results.some_runs("bert_squad")
    last = 100 * last_values(results.metrics("bert_squad"), "f1")
    return write_overview(
        results,
        folder,
        "table2_squad",
        "Fine-tuning on questions, from each optimizer's pre-training",
        score="F1",
        unit=" (%)",
        paper="squad",
        paper_score="f1",
        last=last,
        scores={str(label): scores(rows, last) for label, rows in runs.groupby("optimizer", sort=False)},
        note=f"Questions here: {', '.join(sorted(runs['dataset'].dropna().unique()))}",
    )
