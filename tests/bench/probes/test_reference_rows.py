"""Every row of the committed probes names the run that it measured: truth is that run's specification."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd
import pytest

from workflow.bench.plan import REFERENCE
from workflow.bench.plan.runs import run_id
from workflow.bench.probes.step_time import work_of
from workflow.bench.results.rows import read_csv

FILES = sorted(file for name in ("step_time", "field_steps") for file in REFERENCE.glob(f"*/*/probes/{name}.csv"))


def _specs(folder: Path) -> dict[str, dict]:
    specs = json.loads((folder / "specs.json").read_text())
    assert all(run_id(spec) == name for name, spec in specs.items())
    return specs


def _runs(folder: Path) -> dict[tuple[str, str, str], set[str]]:
    """Return the ids of the runs of every experiment, label and workload."""
    found = defaultdict(set)
    for file in folder.glob("*.runs.csv"):
        for row in read_csv(file):
            found[row["experiment"], row["optimizer"], row["workload"]].add(row["run"])
    return found


def test_there_are_committed_rows():
    assert {file.stem for file in FILES} == {"step_time", "field_steps"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: "-".join(file.parts[-4:]))
def test_a_row_measures_a_step_that_runs_of_its_label_take(file):
    """Truth: the specifications of the label's runs. Their method, base and hyperparameters are those of the row's."""
    folder = file.parents[1]
    specs, runs = _specs(folder), _runs(folder)
    rows = pd.read_csv(file, dtype={"run": str})
    for where, of_label in rows.groupby(["experiment", "optimizer", "workload"]):
        planned = Counter(work_of(specs[run]) for run in runs[where])
        measured = {work_of(specs[run]) for run in of_label["run"]}
        assert measured <= planned.keys(), where
        assert {specs[run]["workload"]["name"] for run in of_label["run"]} == {where[2]}
        if file.stem == "step_time":
            assert measured == planned.keys(), f"{where}: some of its runs take a step that was not timed"
            # The seeds of later rounds take the studies in turn again, so that the shares stay.
            counted = of_label[~of_label["again"]].drop_duplicates("run")
            for run, number in zip(counted["run"], counted["runs"], strict=True):
                share = planned[work_of(specs[run])] / planned.total()
                assert number / counted["runs"].sum() == pytest.approx(share), where


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.stem == "step_time"], ids=lambda file: "-".join(file.parts[-4:])
)
def test_two_specifications_never_share_a_step_time(file):
    """Equal series of two runs are one measurement under two names; labels of one run may share its series."""
    timed = pd.read_csv(file, dtype={"run": str}).dropna(subset=["step_ms"])
    by_run = {
        key: tuple(rows.drop_duplicates("round").sort_values("round")["step_ms"])
        for key, rows in timed.groupby(["experiment", "run", "again"])
    }
    assert all(
        tuple(rows.sort_values("round")["step_ms"]) == by_run[experiment, run, again]
        for (experiment, _, run, again), rows in timed.groupby(["experiment", "optimizer", "run", "again"])
    )
    runs_of = defaultdict(set)
    for (_, run, again), series in by_run.items():
        runs_of[series].add((run, again))
    assert [runs for runs in runs_of.values() if len(runs) > 1] == []
