"""Damaged, misplaced and foreign files of results: the run is named in one line, and nothing wrong counts as done."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial as bound
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support import records, tally
from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from tests.support.fuzzing import (
    FUZZ,
    MISPLACED,
    MOST,
    assert_one_line,
    call,
    changed_bytes,
    changed_csv,
    changed_json,
)
from tests.support.numbers import within
from tests.support.synthetic_hardware import step_breakdown
from workflow.bench import aggregate, compare, merge, partial, status, train
from workflow.bench.plan import Plan
from workflow.bench.results.columns import EVALUATION_COLUMNS
from workflow.bench.results.rows import evaluation_rows, write_csv
from workflow.bench.support.source_code import probe_fingerprint
from workflow.bench.training import checkpoint
from workflow.bench.training.record import RunFolder, write_spec

pytestmark = pytest.mark.filterwarnings("ignore::workflow.bench.support.errors.FileWarning")
SECONDS = 20.0
"""Time in which any command must end; most take a tenth of a second."""
CHANGES = {".json": changed_json, ".csv": changed_csv}
TRAINED = 6 if MOST <= 100 else MOST // 4
"""Examples after which runs are trained, which takes a third of a second each."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Results with runs in every state, which nobody has trained, and the tables made from them."""
    folder = make_folder(tmp_path_factory.mktemp("records") / "config")
    write(folder, "one", block(optimizer("sgd"), optimizer("mkor", base="sgd"), seeds=[0, 1, 2]))
    write(folder, "after", block(optimizer("sgd"), start_from={"experiment": "one", "optimizer": "sgd", "seed": 0}))
    plan = replace(load(folder), compared=())  # without the reference results, which would take seconds
    states = {"sgd": ("finished", "diverged", "interrupted"), "mkor": ("finished", "finished", "failed")}
    for label, of_label in states.items():
        for run, state in zip(plan.job("one", label).runs, of_label, strict=True):
            place, steps = RunFolder.of(plan.results, run.id), 20 if state == "finished" else 10
            records.evaluated(place, *range(0, steps + 1, 10))
            records.put(place, run, state, steps=steps)
            write_spec(plan.results, run)
            place.lock.touch()
            checkpoint.save(place.checkpoint if state == "interrupted" else place.weights, run.id, steps, {})
    for job in plan.jobs:
        write_csv(plan.csv_of(job), EVALUATION_COLUMNS, evaluation_rows(plan, job))
    (plan.results / "probes").mkdir()
    probe = step_breakdown("test").assign(
        code_fingerprint=probe_fingerprint("workflow.bench.probes.step_breakdown"), precision="float32"
    )
    probe.to_csv(plan.results / "probes" / "step_breakdown.csv", index=False)
    aggregate.aggregate(plan, "one")
    shutil.copytree(plan.results, plan.results.with_name("whole"))
    return plan


@pytest.fixture
def restore(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """A function that restores the results and returns their files; commands get the plan, which is not loaded anew."""
    monkeypatch.setattr(Plan, "load", classmethod(lambda *_, **__: plan))
    monkeypatch.setattr(compare, "ARTEFACTS", (("tables", "hardware"),))
    monkeypatch.setattr(status, "_artefacts", lambda _: {"probes": {}, "figures": {}, "tables": {}})

    def restored() -> list[Path]:
        shutil.rmtree(plan.results)
        shutil.copytree(plan.results.with_name("whole"), plan.results)
        return sorted(path for path in plan.results.rglob("*") if path.is_file())

    return restored


def commands(plan: Plan, into: Path) -> dict[str, Callable[[], int]]:
    """Return calls of all commands that read records or what is made from them; none of them trains."""
    return {
        "status": bound(status.main, []),
        "aggregate": bound(aggregate.main, ["one"]),
        "partial": lambda: bool(partial.gather(plan)) - 1,
        "merge": bound(merge.main, [str(plan.results), f"--into={into}"]),
        "compare": bound(compare.main, [f"--out-dir={into}"]),
    }


def states(plan: Plan) -> dict[str, str]:
    return {state.run.id: state.state for job in plan.jobs for state in status.states(plan, job)}


def changes_nothing(file: Path, whole: Path) -> bool:
    """Return whether a changed file says the same of a run that has ended."""
    if file.suffix != ".json":
        return file.read_bytes() == whole.read_bytes()
    return len({json.dumps(json.loads(path.read_bytes()), sort_keys=True) for path in (file, whole)}) == 1


@given(data=st.data())
@settings(FUZZ, max_examples=MOST // 4)
def test_no_damaged_file_stops_a_command_or_counts_as_done(
    data: st.DataObject,
    plan: Plan,
    restore: Callable[[], list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    files = restore()
    before = states(plan)
    of_runs = data.draw(st.sampled_from([("run.json", "metrics.csv"), (".json", ".csv", ".pt")]))
    file = data.draw(st.sampled_from([file for file in files if file.name.endswith(of_runs)]))
    content = data.draw(CHANGES.get(file.suffix, changed_bytes)(file.read_bytes()))
    file.write_bytes(content)
    tally.count("damaged files")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _call_all(plan, tmp_path, capsys, data.draw(st.sampled_from(["partial", "merge", "compare"])))
        after = states(plan)
    run = file.parent.name
    assert {name: state for name, state in after.items() if name != run} == {
        name: state for name, state in before.items() if name != run
    }
    if file.name in ("run.json", "metrics.csv"):
        assert after[run] in ("unreadable", before[run], "left", "interrupted")
        if after[run] in ("finished", "diverged"):
            assert changes_nothing(file, plan.results.with_name("whole") / file.relative_to(plan.results))
        event(f"{file.name} of a run that was {before[run]}: {after[run]}")


def _call_all(plan: Plan, into: Path, said: pytest.CaptureFixture[str], last: str) -> None:
    """Call status, aggregate and another command: each succeeds, or fails with one line."""
    named = commands(plan, into)
    for name in ("status", "aggregate", last):
        with within(SECONDS):
            code, err = call(lambda _, name=name: named[name](), [], said)
        assert code in (0, 1)
        assert code == 0 or name not in ("status", "partial"), err
        if code:
            assert err.count("\n") == 1, err
            assert_one_line(err)


@pytest.mark.parametrize("words", MISPLACED)
def test_what_is_no_readable_file_makes_that_run_unreadable_and_stops_no_command(
    words: str,
    plan: Plan,
    restore: Callable[[], list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    run = plan.job("one", "sgd").runs[2]
    place = RunFolder.of(plan.results, run.id)
    for name, last in (("run.json", "partial"), ("metrics.csv", "merge"), ("lock", "compare")):
        restore()
        before = states(plan)
        with pytest.MonkeyPatch.context() as patch:
            MISPLACED[words](place.path / name, patch)
            tally.count("damaged files")
            assert states(plan) == {**before, run.id: "unreadable"}
            status.main([])
            said = capsys.readouterr().out.splitlines()
            (line,) = (line for line in said if line.startswith("unreadable: "))
            assert line.startswith(f"unreadable: {run.id} ({run.describe()}): {place.path / name}: cannot be read: ")
            assert words in line
            _call_all(plan, tmp_path, capsys, last)
            reason = line.rpartition("cannot be read: ")[2]
            refused = 1, f"{place.path / name}: cannot be read: {reason}\n"
            assert call(train.main, ["one", "sgd", "--seed=2"], capsys) == refused
    # A file may stand where the folder of a run belongs, too.
    restore()
    shutil.rmtree(place.path)
    place.path.write_text("")
    assert states(plan) == {**before, run.id: "unreadable"}
    _call_all(plan, tmp_path, capsys, "partial")
    assert call(train.main, ["one", "sgd", "--seed=2"], capsys)[0] == 1


def test_no_other_unreadable_file_of_results_stops_a_command(
    plan: Plan,
    restore: Callable[[], list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    """Weights, checkpoints, specifications, tables and probes: a FIFO for one of each; in the long tests, anything."""
    files = [file for file in restore() if file.name not in ("run.json", "metrics.csv", "lock")]
    by_kind = {file.parent.name if file.suffix == ".json" else file.name: file for file in files}
    for file in by_kind.values():
        for words in ["a FIFO"] if MOST <= 100 else MISPLACED:
            restore()
            with pytest.MonkeyPatch.context() as patch:
                MISPLACED[words](file, patch)
                tally.count("damaged files")
                for last in ("partial", "merge", "compare"):
                    _call_all(plan, tmp_path, capsys, last)


def test_a_record_of_another_run_counts_as_none(
    plan: Plan, restore: Callable[[], list[Path]], capsys: pytest.CaptureFixture[str]
):
    """Whole folders are copied, as a group does that shares results."""
    restore()
    one, other = plan.job("one", "mkor").runs[:2]
    shutil.rmtree(RunFolder.of(plan.results, one.id).path)
    shutil.copytree(RunFolder.of(plan.results, other.id).path, RunFolder.of(plan.results, one.id).path)
    assert states(plan)[one.id] == "unreadable"
    assert aggregate.main(["one"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f'run.json: id = "{other.id}": must be {one.id}, as its folder' in err
    assert err.endswith("; to train the run again, run python -m workflow.bench.train one mkor\n")
    # Nor is a status alone a record.
    RunFolder.of(plan.results, one.id).summary.write_text('{"status": "finished", "steps_done": 20}')
    assert states(plan)[one.id] == "unreadable"


def test_partial_results_have_a_damaged_run_as_missing_with_the_reason(plan: Plan, restore: Callable[[], list[Path]]):
    restore()
    run = plan.job("one", "mkor").runs[0]
    place = RunFolder.of(plan.results, run.id)
    place.metrics.write_text(place.metrics.read_text().replace("0.2", "0.3"))
    assert partial.gather(plan)["missing"] == 2
    (row,) = (row for row in rows(plan.partial / "one.runs.csv") if row["run"] == run.id)
    assert row["status"] == "missing"
    assert row["reason"].startswith(f"{place.metrics}: damaged: it differs from the file that the run left; to train")


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of two small optimizers; of a run that starts from weights; and of one that is interrupted."""
    folder = make_folder(tmp_path_factory.mktemp("fuzz") / "config")
    small = {"schedule": {"name": "linear", "warmup": 0.25}, "evaluate_every": 2}
    mkor = optimizer("mkor", base="sgd", inverse_update_period=2)
    write(folder, "trial", block(optimizer("sgd"), mkor, steps=4, seeds=[0, 1], **small))
    start = {"experiment": "trial", "optimizer": "sgd", "seed": 0}
    write(folder, "after", block(optimizer("sgd"), steps=2, evaluate_every=1, start_from=start))
    with (folder / "tiers" / "embedded.yaml").open("a") as file:
        file.write("checkpoint_steps: 3\n")
    write(folder, "begun", block(mkor, steps=8, evaluate_every=2))
    return folder


@pytest.fixture(scope="module")
def trained(origin: Path) -> Plan:
    """The results of these runs; of the interrupted one in "whole", too, as it is without an interruption."""
    for label in ("sgd", "mkor"):
        assert train.main(["trial", label, *options(origin)]) == 0
    assert train.main(["begun", "mkor", *options(origin)]) == 0
    plan = load(origin)
    (run,) = plan.job("begun", "mkor").runs
    place = RunFolder.of(plan.results, run.id)
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
    return plan


@given(data=st.data())
@settings(FUZZ, max_examples=TRAINED)
def test_training_names_a_damaged_file_or_makes_it_anew(
    data: st.DataObject, origin: Path, trained: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """After any change to a file of a run, status, train and aggregate report the fault or correct it."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    copied = tmp_path / "copy"
    shutil.copytree(origin.parent, copied)
    root = copied / trained.results.relative_to(origin.parent)
    kinds = data.draw(st.sampled_from([("run.json", "metrics.csv"), (".pt", ".previous"), (".json", ".csv")]))
    files = sorted(path for path in root.rglob("*") if path.name.endswith(kinds) and "whole" not in path.parts)
    file = data.draw(st.sampled_from(files))
    file.write_bytes(data.draw(CHANGES.get(file.suffix, changed_bytes)(file.read_bytes())))
    tally.count("damaged files")
    refused = False
    (begun,) = trained.job("begun", "mkor").run_ids
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for main, arguments in (
            (status.main, []),
            (train.main, ["trial", "mkor"]),
            (train.main, ["begun", "mkor"]),
            (train.main, ["after", "sgd"]),
            (aggregate.main, ["trial"]),
        ):
            code, err = call(main, [*arguments, *options(copied / "config")], capsys)
            assert code in (0, 1)
            event(f"{main.__module__.rpartition('.')[2]} of a changed {file.name}: {code}")
            if code:
                assert_one_line(err)
                refused = True
            elif arguments[:1] == ["begun"]:
                place = RunFolder.of(root, begun)
                assert rows(place.metrics, TIMES) == rows(root / "runs" / "whole" / "metrics.csv", TIMES)
    tally.count(f"changed results {'told' if refused else 'harmless or mended'}")
    for table in (root / "trial.csv", root / "trial.runs.csv"):
        assert table.read_bytes().endswith(b"\n") or table == file
