"""Table 2: fine-tuning on questions from every optimizer's pre-training, and what the pre-training took."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.analysis.finetuning_scores import last_values, scores
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.tables._finetuning import write_overview

EXPERIMENTS = ("bert_squad", "bert_pretraining")
PUBLISHED = ("squad",)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row an optimizer: F1 of its last evaluation over seeds, beside the paper's.

    Raises NoDataError where no run of fine-tuning is there.
    """
    runs = results.runs("bert_squad")
    if runs.empty:
        raise NoDataError(f"no bert_squad.runs.csv in {results.root}: run the experiment first.")
    last = 100 * last_values(results.metrics("bert_squad"), "f1")
    return write_overview(
        results,
        folder,
        "table2_squad",
        experiment="bert_squad",
        last=last,
        values={str(label): scores(rows, last) for label, rows in runs.groupby("optimizer", sort=False)},
        score=("F1 here (%)", "F1 minus LAMB's here"),
        paper=("squad", "f1", "F1 in the paper (%)"),
        title="Fine-tuning on questions, from each optimizer's pre-training",
        note=f"Questions here: {', '.join(sorted(runs['dataset'].dropna().unique()))}",
    )
