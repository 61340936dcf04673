"""The columns of the tidy CSV files, and their reading: other values are refused by file, line and column."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from tests.support.fuzzing import MISPLACED
from tests.support.numbers import within
from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_probes import spectra, write_probe
from tests.support.synthetic_trials import trial_rows
from workflow.bench.plan.artefacts import Artefact, available
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import PROBE_PROVENANCE, TRIAL_COLUMNS, probe_columns
from workflow.bench.results.rows import write_csv
from workflow.bench.results.tables import NoDataError, Results


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one run that has a target and one that has none, and a probe."""
    parts = [run_rows("one", "digits", label, [0], target=target) for label, target in (("mkor", 0.5), ("sgd", None))]
    write_experiment(tmp_path, "one", parts)
    write_probe(tmp_path, "spectra", spectra())
    return tmp_path


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_targets_and_hyperparameters_are_objects(root):
    """Truth: what was written."""
    mkor, sgd = Results(root).runs("one").to_dict("records")
    assert mkor["target"] == Target("validation", "loss", "below", 0.5)
    assert sgd["target"] is None
    assert mkor["hyperparameters"] == {"lr": 0.1, "base": "sgd", "update_rule": "sherman_morrison"}
    assert (mkor["tuned"], mkor["git_dirty"]) == (True, False)


def test_text_that_looks_like_a_number_stays_text(root):
    replace(root / "one.runs.csv", "0123456789abcdef", "0123456789")
    assert Results(root).runs("one")["git_commit"].iloc[0] == "0123456789"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('""below"": 0.5', '""below"": true', "line 2: target = .* is not a target"),
        ('""below"": 0.5', '""below"": 0.5, ""trivial"": true', "line 2: target = .* is not a target"),
        ('""below"": 0.5', '""below"": 0.5, ""trivial"": ""low""', "line 2: target = .* is not a target"),
        ('""below"": 0.5', '""below"": 1' + 400 * "0", "line 2: target = .* is not a target"),
        ('""lr"": 0.1', '""lr"" 0.1', "line 2: hyperparameters = .* is not a JSON object"),
        ("true", "perhaps", "line 2: tuned = 'perhaps' is neither true nor false"),
        ("123456,", "many,", "line 2: parameters = 'many' is not a number"),
        ("123456,", "inf,", "line 2: parameters = 'inf' is not finite"),
        ("hyperparameters", "settings", "lacks the columns hyperparameters"),
    ],
)
def test_a_value_of_another_type_is_named(root, old, new, problem):
    replace(root / "one.runs.csv", old, new)
    with pytest.raises(NoDataError, match=problem):
        Results(root).runs("one")


def test_only_some_columns_of_probes_may_be_infinite(root):
    assert len(Results(root).probe("spectra")) == len(spectra())
    assert np.isinf(Results(root).probe("spectra")["condition_number"]).any()
    write_probe(root, "spectra", spectra().assign(smallest=float("inf")))
    with pytest.raises(NoDataError, match="smallest = 'inf' is not finite"):
        Results(root).probe("spectra")
    write_probe(root, "spectra", spectra())
    replace(root / "probes" / "spectra.csv", "step", "stage")
    with pytest.raises(NoDataError, match="lacks the columns step"):
        Results(root).probe("spectra")


@pytest.mark.parametrize("words", MISPLACED)
def test_what_is_no_file_has_no_data(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "one.runs.csv").write_text("")
    MISPLACED[words](tmp_path / "one.runs.csv", monkeypatch)
    with within(10), pytest.raises(NoDataError, match=f"one.runs.csv: cannot be read: .*{words}"):
        Results(tmp_path).runs("one")


def test_two_rows_in_one_line_are_named_in_one_line(root):
    """Pandas ends this message with a new line."""
    file = root / "one.runs.csv"
    header, first, second = file.read_text().splitlines()
    file.write_text(f"{header}\n{first}\n{second},{first}\n")
    with pytest.raises(NoDataError, match=r"one.runs.csv is not a readable CSV file: .*\. Delete it and run again\.$"):
        Results(root).runs("one")


@pytest.mark.parametrize("fields", [1, 2, 3])
def test_a_trial_that_was_cut_off_is_named(fields: int, tmp_path: Path):
    """As of a table that was copied in part: such a row belongs to no study."""
    file, rows = tmp_path / "one.trials.csv", trial_rows("one", "autoencoder", by_steps=False)
    write_csv(file, TRIAL_COLUMNS, rows)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], ",".join(lines[3].split(",")[:fields])]))
    with pytest.raises(NoDataError, match=r"one.trials.csv, line 4: lacks its optimizer or study\. "):
        Results(tmp_path, trial_tables=(file,)).trials()


def test_an_error_names_the_experiment_or_probe_that_has_no_rows(tmp_path):
    results = Results(tmp_path)
    with pytest.raises(NoDataError, match=r"no rows in .*/one\.runs\.csv: run the experiment one first\."):
        results.some_runs("one")
    with pytest.raises(NoDataError, match=r"no rows in .*/probes/sizes\.csv: run the probe sizes first\."):
        results.some_rows("sizes")
    write_probe(tmp_path, "spectra", spectra())
    assert results.some_rows("spectra").equals(results.probe("spectra"))


@pytest.mark.parametrize("name", available("probes"))
def test_the_columns_of_a_probe_are_the_fields_of_its_row(name):
    """Truth: the class itself, imported."""
    fields = get_type_hints(import_module(f"workflow.bench.probes.{name}").Row)
    types = {field: (get_args(kind) or (kind,))[0] for field, kind in fields.items()}
    assert probe_columns(name) == types | PROBE_PROVENANCE
    assert list(probe_columns(name)) == [*fields, *PROBE_PROVENANCE]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("class Rows: pass", "has no class Row"),
        ("class Row:\n    sizes: list[int]", "Row.sizes: list\\[int\\]: the type"),
    ],
)
def test_a_probe_without_readable_columns_is_named(source, problem, tmp_path, monkeypatch):
    (tmp_path / "made_up.py").write_text(source)
    monkeypatch.setattr(Artefact, "module", property(lambda artefact: tmp_path / f"{artefact.name}.py"))
    with pytest.raises(ValueError, match=problem):
        probe_columns("made_up")
