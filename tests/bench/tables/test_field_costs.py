"""field_costs: the update's root mean square, from records made by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tests.support.synthetic_field import write_field
from workflow.bench.results.columns import EVALUATION_COLUMNS
from workflow.bench.results.rows import read_csv, write_csv
from workflow.bench.results.tables import Results
from workflow.bench.tables import field_costs


def test_the_updates_root_mean_square_is_the_median_over_evaluations(tmp_path: Path):
    """Of all runs of a label; empty where no run has recorded it."""
    root = write_field(tmp_path / "test-cpu" / "field")
    rows = read_csv(file := root / "field_alexnet.csv")
    one = {**rows[0], "optimizer": "mkor", "split": "train", "metric": "update_rms"}
    measured = [
        {**one, "step": str(step), "value": value} for step, value in ((5, "0.3"), (10, "0.001"), (15, "0.002"))
    ]
    others = [{**one, "split": "validation", "value": "9"}, {**one, "metric": "loss", "value": "8"}]
    write_csv(file, EVALUATION_COLUMNS, [*rows, *measured, *others])
    field_costs.make(Results(root), tmp_path)
    table = pd.read_csv(tmp_path / "field_costs.csv").set_index(["experiment", "optimizer"])["update RMS"]
    assert table["field_alexnet", "mkor"] == 0.002
    assert table.drop(("field_alexnet", "mkor")).isna().all()
