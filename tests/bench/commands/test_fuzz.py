"""Hundreds of damaged inputs: a one-line message or a correct run, never a traceback or a partial file."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import synthetic, tally
from tests.support.fuzzing import FUZZ, MOST, assert_one_line, call, changed_csv
from tests.support.synthetic_trials import tables_of_trials
from workflow.bench import make_artefact
from workflow.bench.plan import artefacts


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with every experiment and probe."""
    return synthetic.write_results(tmp_path_factory.mktemp("measured") / "test" / "embedded")


@given(data=st.data(), name=st.sampled_from(artefacts.available("tables")))
@settings(FUZZ, max_examples=MOST // 5)
def test_tables_of_changed_results_are_made_or_refused_in_one_line(
    data: st.DataObject, name: str, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _make_of_changed("tables", name, data, measured, tmp_path, capsys)


@given(data=st.data(), name=st.sampled_from(artefacts.available("figures")))
@settings(FUZZ, max_examples=MOST // 50)
def test_figures_of_changed_results_are_made_or_refused_in_one_line(
    data: st.DataObject, name: str, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _make_of_changed("figures", name, data, measured, tmp_path, capsys)


def _make_of_changed(
    kind: artefacts.Kind,
    name: str,
    data: st.DataObject,
    measured: Path,
    tmp_path: Path,
    said: pytest.CaptureFixture[str],
) -> None:
    """Make an artefact after one of its input CSV files was changed."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    root = tmp_path / "copy" / "test" / "embedded"
    shutil.copytree(measured, root)
    about = artefacts.describe(kind, name)
    tables = [f"{experiment}{suffix}" for experiment in about.experiments for suffix in (".csv", ".runs.csv")]
    named = [root / file for file in [*tables, *(f"probes/{probe}.csv" for probe in about.probes)]]
    trials = tables_of_trials(root) if about.trials else ()
    files = [file for file in (*named, *trials) if file.exists()] or sorted(root.rglob("*.csv"))
    file = data.draw(st.sampled_from(files))
    file.write_bytes(data.draw(changed_csv(file.read_bytes())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code, err = call(make_artefact.main, [name, f"--results={root}", "--trials", *map(str, trials)], said)
    tally.count(f"changed CSVs of {kind}: {'refused' if code else 'made'}")
    if code:
        assert_one_line(err)
    assert [path.name for path in root.rglob(".*")] == []
