"""Table 2: fine-tuning on questions from every optimizer's pre-training, and the cost of the pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from workflow.bench.analysis.finetuning_scores import last_values, scores
from workflow.bench.results.tables import Results
from workflow.bench.tables._finetuning import Overview, write_overview

EXPERIMENTS = ("bert_squad", "bert_pretraining", "bert_pretraining_small")
PROBES = ("step_time",)
PUBLISHED = ("squad",)

_TABLE: Final = Overview(
    name="table2_squad",
    title="Fine-tuning on questions, from each optimizer's pre-training",
    experiment="bert_squad",
    score="F1 here (%)",
    difference="F1 minus LAMB's here",
    paper="squad",
    paper_score="f1",
    paper_title="F1 in the paper (%)",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer: the F1 score of its last evaluation over seeds, and the paper's.

    Raises:
        NoDataError: there are no fine-tuning runs.
    """
    runs = results.some_runs(_TABLE.experiment)
    last = 100 * last_values(results.metrics(_TABLE.experiment), "f1")
    by_label = {str(label): scores(rows, last) for label, rows in runs.groupby("optimizer", sort=False)}
    note = f"Questions here: {', '.join(sorted(runs['dataset'].dropna().unique()))}"
    return write_overview(results, folder, _TABLE, last=last, scores=by_label, note=note)
