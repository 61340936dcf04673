"""Hundreds of damaged inputs: a one-line message or a correct run, never a traceback or a partial file."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support import synthetic, tally
from tests.support.experiments import TIMES, block, make_folder, optimizer, options, rows, write
from tests.support.fuzzing import FUZZ, MOST, assert_one_line, call, changed_bytes, changed_csv, changed_json
from workflow.bench import aggregate, make_artefact, status, train
from workflow.bench.plan import Plan, artefacts
from workflow.bench.training import checkpoint
from workflow.bench.training.record import RunFolder


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of two small optimizers."""
    folder = make_folder(tmp_path_factory.mktemp("fuzz") / "config")
    small = block(
        optimizer("sgd"),
        optimizer("mkor", base="sgd", inverse_update_period=2),
        steps=4,
        evaluate_every=2,
        seeds=[0, 1],
        schedule={"name": "linear", "warmup": 0.25},
        target={"split": "validation", "metric": "loss", "below": 0.2},
    )
    write(folder, "trial", small)
    return folder


@pytest.fixture(scope="module")
def finished(origin: Path) -> Path:
    """The results of that experiment, trained, and of two more: one interrupted, one that starts from weights."""
    start = {"experiment": "trial", "optimizer": "sgd", "seed": 0}
    write(origin, "after", block(optimizer("sgd"), steps=2, evaluate_every=1, start_from=start))
    with (origin / "tiers" / "embedded.yaml").open("a") as file:
        file.write("checkpoint_steps: 3\n")
    write(origin, "begun", block(optimizer("mkor", base="sgd", inverse_update_period=2), steps=8, evaluate_every=2))
    for label in ("sgd", "mkor"):
        assert train.main(["trial", label, *options(origin)]) == 0
    assert train.main(["begun", "mkor", *options(origin)]) == 0
    found = Plan.load(origin, results=str(origin.parent / "results"), hardware="test")
    (run,) = found.job("begun", "mkor").runs
    place = RunFolder.of(found.results, run.id)
    place.path.rename(place.path.with_name("whole"))
    save, saved = checkpoint.save, []

    def save_twice(*arguments: Any) -> None:
        save(*arguments)
        saved.append(arguments)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save_twice)
        with pytest.raises(KeyboardInterrupt):
            train.main(["begun", "mkor", *options(origin)])
    assert place.checkpoint.exists()
    assert aggregate.main(["trial", *options(origin)]) == 0
    return found.results


@given(data=st.data())
@settings(FUZZ, max_examples=4 * MOST // 5)
def test_changed_records_are_told_or_trained_again(
    data: st.DataObject, finished: Path, origin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """After any change to a file of a run, status, train and aggregate report the fault or correct it."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    copied = tmp_path / "copy"
    shutil.copytree(origin.parent, copied)
    root = copied / finished.relative_to(origin.parent)
    kinds = data.draw(st.sampled_from([("run.json", "metrics.csv"), (".pt", ".previous"), (".json", ".csv")]))
    files = sorted(path for path in root.rglob("*") if path.name.endswith(kinds) and "whole" not in path.parts)
    file = data.draw(st.sampled_from(files))
    change = {".json": changed_json, ".csv": changed_csv}.get(file.suffix, changed_bytes)
    file.write_bytes(data.draw(change(file.read_bytes())))
    chosen = options(copied / "config")
    refused = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for main, arguments in (
            (status.main, []),
            (train.main, ["trial", "mkor"]),
            (train.main, ["begun", "mkor"]),
            (train.main, ["after", "sgd"]),
            (aggregate.main, ["trial"]),
        ):
            code, err = call(main, [*arguments, *chosen], capsys)
            assert code in (0, 1)
            event(f"{main.__module__.rpartition('.')[2]} of a changed {file.name}: {code}")
            if code:
                assert_one_line(err)
                refused = True
            elif arguments[:1] == ["begun"]:
                (place,) = (RunFolder.of(root, name) for name in _runs(copied / "config", "begun"))
                assert rows(place.metrics, TIMES) == rows(root / "runs" / "whole" / "metrics.csv", TIMES)
    tally.count(f"changed results {'told' if refused else 'harmless or mended'}")
    for table in (root / "trial.csv", root / "trial.runs.csv"):
        assert table.read_bytes().endswith(b"\n") or table == file


def _runs(folder: Path, experiment: str) -> list[str]:
    jobs = Plan.load(folder, results="unused", hardware="test").experiments[experiment].jobs.values()
    return [name for job in jobs for name in job.run_ids]


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
    files = [file for file in named if file.exists()] or sorted(root.rglob("*.csv"))
    file = data.draw(st.sampled_from(files))
    file.write_bytes(data.draw(changed_csv(file.read_bytes())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code, err = call(make_artefact.main, [name, f"--results={root}"], said)
    tally.count(f"changed CSVs of {kind}: {'refused' if code else 'made'}")
    if code:
        assert_one_line(err)
    assert [path.name for path in root.rglob(".*")] == []
