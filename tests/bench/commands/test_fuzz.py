"""Hundreds of damaged tables and configurations: one line soon, or a correct result; no traceback, no partial file."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support import synthetic, tally
from tests.support.experiments import load, options
from tests.support.fuzzing import FUZZ, MOST, assert_one_line, call, changed_bytes, changed_csv, changed_values
from tests.support.numbers import WRITTEN, within
from tests.support.numeric_places import CLUSTER_FILE, TIER, TRIAL, Place, places, write_folder
from tests.support.synthetic_trials import tables_of_trials
from workflow.bench import make_artefact, train
from workflow.bench.plan import artefacts
from workflow.bench.plan.__main__ import main as print_plan
from workflow.bench.results.columns import EVALUATION_COLUMNS
from workflow.bench.support.config import ConfigError
from workflow.bench.training.record import METRIC_COLUMNS
from workflow.cluster.settings import Cluster, training_resources


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


SECONDS = 20.0
"""Time in which any configuration must be refused, or planned and trained; most take a tenth of a second."""
MOST_STEPS = 60
"""Configurations with more steps are planned but not trained."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|null|~|", re.ASCII)
"""What may be accepted where a number is due."""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that has every place of a number."""
    folder = tmp_path_factory.mktemp("origin") / "config"
    write_folder(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for changed copies of `origin`."""
    return tmp_path / "config"


def changed(origin: Path, folder: Path, file: str, content: bytes) -> None:
    """Make ``folder`` a copy of ``origin`` with another content of one file, and remove earlier results."""
    for name in (folder, folder.parent / "results"):
        shutil.rmtree(name, ignore_errors=True)
    shutil.copytree(origin, folder)
    (folder / file).write_bytes(content)


def by_kind() -> list[list[Place]]:
    """Return all places of numbers in groups: a hyperparameter is one of hundreds, the number of steps one of ten."""
    groups: dict[object, list[Place]] = defaultdict(list)
    for place in places():
        groups[place.file, "optimizers" in place.path, "workload" in place.path].append(place)
    return list(groups.values())


def plan_on_cluster(arguments: list[str]) -> int:
    """Print the plan, and read the cluster's resources as the Snakefile does."""
    folder = Path(arguments[0].partition("=")[2])
    try:
        cluster = Cluster.load(str(folder / Path(CLUSTER_FILE).parent), load(folder))
        training_resources(cluster, "trial")
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return 1
    return print_plan(arguments)


def train_small_runs(folder: Path, said: pytest.CaptureFixture[str]) -> None:
    """Train the jobs of few steps on the CPU, and check what they write."""
    plan = load(folder)
    for job in plan.jobs:
        if plan.tier.device != "cpu" or max(run.spec["steps"] for run in job.runs) > MOST_STEPS or len(job.runs) > 4:
            continue
        code, err = call(train.main, [job.experiment, job.label, *options(folder)], said)
        event(f"train: {code}")
        if code:
            assert_one_line(err)
        else:
            assert_whole(plan.csv_of(job), EVALUATION_COLUMNS)
        for run in job.runs:
            summary = plan.results / "runs" / run.id / "run.json"
            if summary.exists():
                assert json.loads(summary.read_text())["id"] == run.id
                assert_whole(summary.with_name("metrics.csv"), METRIC_COLUMNS)


def assert_whole(file: Path, columns: tuple[str, ...]) -> None:
    """Every row of the CSV has every column."""
    with file.open(newline="") as opened:
        rows = list(csv.reader(opened))
    assert rows[0] == list(columns)
    assert {len(row) for row in rows} == {len(columns)}


@given(place=st.one_of(*map(st.sampled_from, by_kind())), written=WRITTEN)
@settings(FUZZ, max_examples=MOST if MOST > 100 else MOST // 4)
def test_a_number_of_any_size_is_refused_in_one_line_or_planned_as_written(
    place: Place, written: str, origin: Path, folder: Path, capsys: pytest.CaptureFixture[str]
):
    changed(origin, folder, place.file, place.written(written).encode())
    tally.count("configurations")
    with within(SECONDS):
        code, err = call(plan_on_cluster, options(folder), capsys)
        if code:
            assert err.count("\n") == 1, err
            assert len(err) < 1000
            assert Path(place.file).name in err
            return
        assert NUMBER.fullmatch(written), f"{place.path} accepts {written!r}"
        if place.trains:
            train_small_runs(folder, capsys)


def test_every_place_accepts_some_number(origin: Path, folder: Path):
    """Or else the test above would only see refusals. The short test takes one place in twenty."""
    for place in places()[:: 1 if MOST > 100 else 20]:
        for number in ("1", "0.1", "2", "8", "16", "32", "128", "11"):
            changed(origin, folder, place.file, place.written(number).encode())
            try:
                Cluster.load(str(folder / Path(CLUSTER_FILE).parent), load(folder))
                break
            except ConfigError as problem:
                said = str(problem)
        else:
            pytest.fail(f"{place.file}: {place.path}: {said}")


@given(data=st.data(), file=st.sampled_from((TRIAL, TRIAL, TIER, "config.yaml")))
@settings(FUZZ, max_examples=MOST if MOST > 100 else MOST // 5)
def test_a_changed_configuration_is_refused_in_one_line_or_trains(
    data: st.DataObject, file: str, origin: Path, folder: Path, capsys: pytest.CaptureFixture[str]
):
    content = (origin / file).read_bytes()
    if data.draw(st.booleans()):
        content = yaml.safe_dump(data.draw(changed_values(yaml.safe_load(content)))).encode()
    else:
        content = data.draw(changed_bytes(content))
    changed(origin, folder, file, content)
    tally.count("configurations")
    with within(SECONDS):
        code, err = call(print_plan, options(folder), capsys)
        if not code:
            train_small_runs(folder, capsys)
            return
    assert err.count("\n") == 1, err
    assert Path(file).stem in err or "config" in err
    assert not (folder.parent / "results").exists(), "the error was reported after something was written"
