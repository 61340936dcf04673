"""Which experiment the runs of a fine-tuning start from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tests.support.synthetic import run_rows, write_experiment
from workflow.bench.analysis.finetuning_scores import pretraining_experiment
from workflow.bench.results.tables import Results


def test_fine_tuning_starts_from_the_experiment_that_has_its_checkpoints(tmp_path: Path):
    root = tmp_path / "results" / "test-cpu" / "evidence"
    names = ("bert_pretraining", "bert_pretraining_small")
    for name in names:
        write_experiment(root, name, [run_rows(name, "bert", "mkor", range(2))])
    results = Results(root)
    for name in names:
        tuned = pd.DataFrame({"start_from": [results.runs(name)["run"].iloc[1], None]})
        assert pretraining_experiment(results, tuned) == name
    assert pretraining_experiment(results, pd.DataFrame({"start_from": ["elsewhere"]})) == "bert_pretraining"
