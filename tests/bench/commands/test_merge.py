"""Merging another machine's results: what is copied, what is refused, and that a failure changes nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.experiments import block, make_folder, optimizer, with_looks, write
from tests.support.synthetic_hardware import step_breakdown
from workflow.bench import aggregate, merge, train
from workflow.bench.figures import fig16_hardware
from workflow.bench.plan import REFERENCE
from workflow.bench.plan.artefacts import available
from workflow.bench.plan.rounds import Rounds, write_rounds
from workflow.bench.plan.runs import run_id
from workflow.bench.results.costs import read_costs
from workflow.bench.results.tables import Results
from workflow.bench.support.source_code import probe_fingerprint

NAME = "other-cpu"
OTHER = min(folder.parent.name for folder in REFERENCE.glob("*/embedded"))
"""A machine with a committed reference of the same tier."""
RUNS, EVALUATIONS, PROBE = "one.runs.csv", "one.csv", "probes/step_breakdown.csv"
TARGET = {"split": "validation", "metric": "loss", "below": 0.178}


def _experiment(config: Path, lr: float = 1.0, target: dict = TARGET) -> None:
    entries = (optimizer("mkor", lr=lr, base="sgd"), optimizer("sgd", lr=0.5))
    write(config, "one", block(*entries, target=target, seeds=[0, 1]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and another machine's results: trained runs and a probe."""
    folder = tmp_path_factory.mktemp("merge")
    config = make_folder(folder / "config")
    _experiment(config)
    options = [f"--config-dir={config}", f"--results={folder / 'results'}", f"--hardware={NAME}"]
    for label in ("mkor", "sgd"):
        assert train.main(["one", label, *options]) == 0
    assert aggregate.main(["one", *options]) == 0
    source = folder / "results" / NAME / "embedded"
    for part in ("probes", "tables", "figures"):
        (source / part).mkdir()
    table = step_breakdown(NAME).assign(
        code_fingerprint=probe_fingerprint("workflow.bench.probes.step_breakdown"), precision="float32"
    )
    table.to_csv(source / "probes" / "step_breakdown.csv", index=False)
    tables = ("hardware.csv", "hardware.md", "hardware.html", "claim_parts.csv")
    for file in (*(f"tables/{name}" for name in tables), "figures/fig16_hardware.pdf"):
        (source / file).write_text("made there\n")
    (source / "figures" / "fig13_update_rules.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the configuration and the results, which a test may damage."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def merged(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and a reference that has been merged from it."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("merged") / "copy"))
    assert _merge(folder) == 0
    return folder


@pytest.fixture
def again(merged: Path, tmp_path: Path) -> Path:
    """A copy of `merged`, from which a test merges again."""
    return Path(shutil.copytree(merged, tmp_path / "again"))


def _source(folder: Path) -> Path:
    return folder / "results" / NAME / "embedded"


def _merge(folder: Path, *arguments: str, source: Path | None = None, into: Path | None = None) -> int:
    chosen = [f"--config-dir={folder / 'config'}", f"--into={into or folder / 'reference'}"]
    return merge.main([str(source or _source(folder)), *chosen, *arguments])


def _files(folder: Path) -> dict[str, bytes]:
    found = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


def _table(folder: Path, file: str = RUNS) -> pd.DataFrame:
    return pd.read_csv(_source(folder) / file, dtype=str, keep_default_na=False)


def _edit(file: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    return lambda folder: change(_table(folder, file)).to_csv(_source(folder) / file, index=False)


def _set(file: str, column: str, value: str) -> Callable[[Path], None]:
    """Give the first row another value."""
    return _edit(file, lambda table: table.assign(**{column: [value, *table[column][1:]]}))


def _spec(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = min((_source(folder) / "specs").glob("*.json"))
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def _other_id(**changes: Any) -> Callable[[Path], None]:
    """Change the first run's spec, and its id everywhere, as another configuration would."""

    def damage(folder: Path) -> None:
        path = min((_source(folder) / "specs").glob("*.json"))
        spec = {**json.loads(path.read_text()), **changes}
        path.unlink()
        (path.parent / f"{run_id(spec)}.json").write_text(json.dumps(spec))
        for file in (RUNS, EVALUATIONS):
            _edit(file, lambda table: table.replace({"run": {path.stem: run_id(spec)}}))(folder)

    return damage


def _link(name: str) -> Callable[[Path], None]:
    """Put a link to a private file or folder in the place of one of the results."""

    def damage(folder: Path) -> None:
        path = _source(folder) / name
        private = folder / "private" / path.name
        private.parent.mkdir()
        if path.is_dir():
            path.rename(private)
        else:
            path.unlink(missing_ok=True)
            private.write_text("a private key\n")
        path.symlink_to(private)

    return damage


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (_source(folder) / name).write_bytes(content)


def _empty(folder: Path) -> None:
    for file in [*_source(folder).glob("*.csv"), *(_source(folder) / "probes").glob("*.csv")]:
        file.unlink()


def test_tables_probes_pictures_and_specs_are_kept_and_can_be_compared_and_merged_again(copy, capsys):
    assert _merge(copy) == 0
    target = copy / "reference" / NAME / "embedded"
    assert capsys.readouterr().out.strip().endswith(f"reference/{NAME}/embedded")
    kept, source = _files(target), _files(_source(copy))
    specs = json.loads(kept.pop("specs.json"))
    tables = {f"tables/{name}" for name in ("claim_parts.csv", "hardware.csv", "hardware.md")}
    assert set(kept) == {EVALUATIONS, RUNS, PROBE, *tables, "figures/fig13_update_rules.png"}
    assert all(source[name] == content for name, content in kept.items())
    assert len(specs) == 4
    assert all(run_id(spec) == run for run, spec in specs.items())
    assert set(specs) == set(_table(copy)["run"])
    assert [path.name for path in target.parent.iterdir()] == ["embedded"]
    made = fig16_hardware.make(Results(copy / "none" / "embedded", compared=(target,)), copy / "drawn")
    assert all(path.stat().st_size for path in made)
    assert _merge(copy, source=target, into=copy / "second") == 0
    assert _files(copy / "second" / NAME / "embedded") == _files(target)


def test_costs_are_kept_from_the_logs_and_from_a_kept_folder_and_what_was_there_is_replaced(copy):
    log = _source(copy) / "logs" / "train" / "one" / "mkor.log"
    log.parent.mkdir(parents=True)
    log.write_text("cost: 10.0 core-seconds in 20.0 s, peak 1 MB\n")
    target = copy / "reference" / NAME / "embedded"
    (target / "probes").mkdir(parents=True)
    (target / "probes" / "stale.csv").write_text("old\n")
    assert _merge(copy) == 0
    assert [file.name for file in (target / "probes").iterdir()] == ["step_breakdown.csv"]
    (cost,) = (cost for cost in read_costs(target / "costs.csv") if cost.name == "one")
    assert cost[1:] == (4, 10.0, None, round(_table(copy)["peak_memory_bytes"].astype(float).max() / 1e6))
    assert _merge(copy, source=target, into=copy / "second") == 0
    assert _files(copy / "second" / NAME / "embedded") == _files(target)
    # What an experiment took whose runs were adopted says nothing of its cost.
    _set(RUNS, "hardware", OTHER)(copy)
    assert _merge(copy, into=copy / "third") == 0
    assert read_costs(copy / "third" / NAME / "embedded" / "costs.csv") == []


def test_step_times_alone_are_enough(copy):
    for file in _source(copy).glob("one*.csv"):
        file.unlink()
    assert _merge(copy) == 0
    assert json.loads((copy / "reference" / NAME / "embedded" / "specs.json").read_text()) == {}


MARKUP = "x\n\n.. include:: /etc/passwd"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (_empty, "make timing"),
    "a column less": (_edit(RUNS, lambda table: table.drop(columns="torch")), "lacks torch"),
    "a column more": (_edit(EVALUATIONS, lambda table: table.assign(mood="good")), "has mood"),
    "no rows": (_edit(RUNS, lambda table: table[:0]), "has no rows"),
    "no evaluations": (lambda f: (_source(f) / EVALUATIONS).unlink(), "one.csv: does not exist"),
    "a probe's column": (_edit(PROBE, lambda table: table.drop(columns="refresh_ms")), "lacks refresh_ms"),
    "a stranger's probe": (_write("probes/mine.csv", b"a\n1\n"), "not the table of a probe"),
    "a short line": (lambda f: (_source(f) / RUNS).open("a").write("one,two\n"), "its rows differ in length"),
    "no number": (_set(EVALUATIONS, "value", "low"), 'value = "low"'),
    "no number in a probe": (_set(PROBE, "refresh_ms", "fast"), 'refresh_ms = "fast": must be a number'),
    "a status": (_set(RUNS, "status", "fine"), 'status = "fine"'),
    "two statuses": (_set(EVALUATIONS, "status", "diverged"), 'must be "finished"'),
    "another machine's": (_set(RUNS, "hardware", "my-cpu"), f'must be "{NAME}"'),
    "another machine's probe": (_set(PROBE, "hardware", "my-cpu"), f'must be "{NAME}"'),
    "a run twice": (_edit(RUNS, lambda table: pd.concat([table, table[:1]])), "twice"),
    "a run less": (_edit(RUNS, lambda table: table[1:]), "its runs are not those of one.runs.csv"),
    "a label": (_set(RUNS, "optimizer", "lamb"), 'optimizer = "lamb"'),
    "no spec": (lambda f: shutil.rmtree(_source(f) / "specs"), "has no spec"),
    "a changed spec": (_spec(steps=21), "spec's hash is"),
    "a key without a value": (_other_id(precision=None), "is not planned here; use one configuration"),
    "a broken spec": (lambda f: min((_source(f) / "specs").iterdir()).write_text("{"), "not valid JSON"),
    "a target": (_set(RUNS, "target", '{"split": "validation", "metric": "loss", "below": 9.0}'), "target = "),
    "another torch": (_set(RUNS, "torch", "1.0.0+cpu"), "made with torch 1.0.0"),
    "other code": (_set(RUNS, "code_fingerprint", "0" * 16), f"made by other code, such as {'0' * 16}, "),
    "a probe of other code": (_set(PROBE, "code_fingerprint", "0" * 16), f"other code, such as {'0' * 16}"),
    "another configuration": (
        lambda f: _experiment(f / "config", lr=2.0),
        "optimizer.hyperparameters.lr = 1.0, 2.0 here",
    ),
    "another experiment": (
        lambda f: (f / "config" / "experiments" / "one.yaml").rename(f / "config" / "experiments" / "two.yaml"),
        "no experiment 'one'",
    ),
    "a faulty configuration": (lambda f: (f / "config/experiments/one.yaml").write_text("title: 3\n"), "one.yaml: "),
    **{
        f"a link for {name}": (_link(name), f"{name}: is a link, to ")
        for name in ("tables/aa_test.md", "figures/fig13_update_rules.png", PROBE, "tables", "specs", "rounds.yaml")
    },
    "a signal to the terminal": (_set(RUNS, "reason", "\x1b[2J"), "reason = "),
    "a paragraph": (_set(RUNS, "reason", MARKUP), "must be text without line breaks"),
    "another line break": (_set(RUNS, "dataset", "digits\u2028"), "dataset = "),
    "a signal in a table": (_write("tables/hardware.md", b"a\nb\x1b[2J\n"), "line 2 has a control character"),
    "a table that is no text": (_write("tables/hardware.md", b"\xff"), "is not UTF-8 text"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_in_one_line_and_changes_nothing(again, capsys, fault):
    damage, message = FAULTS[fault]
    before = _files(again / "reference")
    capsys.readouterr()
    damage(again)
    assert _merge(again) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert _files(again / "reference") == before


@pytest.mark.parametrize("fault", ["another torch", "other code", "a probe of other code"])
def test_other_versions_are_taken_where_asked_and_told(copy, capsys, fault):
    damage, message = FAULTS[fault]
    damage(copy)
    assert _merge(copy, "--other-versions") == 0
    assert message in capsys.readouterr().out
    assert (copy / "reference" / NAME / "embedded" / RUNS).is_file()


def test_another_build_of_the_same_torch_is_no_other_version(copy):
    _edit(RUNS, lambda table: table.assign(torch=table["torch"].str.partition("+")[0] + "+cu130"))(copy)
    assert _merge(copy) == 0


def test_planned_runs_that_are_missing_there_are_told(copy, capsys):
    for file in (RUNS, EVALUATIONS):
        _edit(file, lambda table: table[table["optimizer"] == "sgd"])(copy)
    assert _merge(copy) == 0
    assert "one: 2 of the runs that are planned here are missing" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["results/nobody/embedded", "results/Other CPU/embedded", "results/other-cpu/tiny"])
def test_a_folder_of_no_machine_or_tier_is_refused_in_one_line(copy, capsys, folder):
    if "nobody" not in folder:
        shutil.copytree(_source(copy), copy / folder)
    assert _merge(copy, source=copy / folder) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (copy / "reference").exists()


def test_the_reference_is_not_merged_into_itself(again, capsys):
    target = again / "reference" / NAME / "embedded"
    assert _merge(again, source=target) == 1
    assert "already" in capsys.readouterr().err
    assert (target / RUNS).is_file()


def _full(path: Path, value: object) -> None:
    raise OSError(28, "No space left on device", str(path))


def _stuck(source: Path, target: Path, rename: Callable[[Path, Path], None] = os.replace) -> None:
    if Path(source).name == "new":
        raise OSError(5, "Input/output error", str(source))
    rename(source, target)


@pytest.mark.parametrize(("patched", "error"), [((merge, "write_json", _full), 28), ((os, "replace", _stuck), 5)])
def test_what_breaks_a_merge_off_leaves_what_was_there_and_nothing_half_written(
    again, monkeypatch, capsys, patched, error
):
    before = _files(again / "reference")
    (_source(again) / "tables" / "hardware.md").write_text("made anew\n")
    monkeypatch.setattr(*patched)
    assert _merge(again) == 1
    monkeypatch.undo()
    assert capsys.readouterr().err.startswith(f"[Errno {error}] ")
    assert _files(again / "reference") == before


def test_the_pictures_that_are_kept_are_figures():
    assert set(merge.FIGURES) <= set(available("figures"))


def _archive(folder: Path, machine: str = NAME) -> Path:
    """Write a file in the place of an archive of the reference."""
    archive = folder / "reference" / machine / "embedded" / "one.records.json.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(b"kept")
    return archive


def test_evaluations_are_kept_once_in_the_archives_of_all_machines_that_trained_which_stay(copy: Path):
    """Two machines trained the runs: with the archive of one of them the table is still needed."""
    _set(RUNS, "hardware", OTHER)(copy)  # adopted from a machine in the repository, so it is accepted
    for machine, is_kept in ((OTHER, True), (NAME, False)):
        archive = _archive(copy, machine)
        assert _merge(copy) == 0
        assert archive.read_bytes() == b"kept"
        assert (copy / "reference" / NAME / "embedded" / RUNS).is_file()
        assert (copy / "reference" / NAME / "embedded" / EVALUATIONS).exists() is is_kept


def test_seeds_of_later_rounds_are_planned_as_their_folder_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = with_looks(make_folder(tmp_path / "config"), 2)
    rounds = {"seeds": 1, "most": 2}
    write(config, "one", block(optimizer("sgd"), rounds=rounds, steps=1, evaluate_every=1), tier="evidence")
    source = tmp_path / "results" / NAME / "evidence"
    write_rounds(source, Rounds(2, {"one": 2}))
    options = [f"--config-dir={config}", f"--results={tmp_path / 'results'}", f"--hardware={NAME}", "--tier=evidence"]
    assert train.main(["one", "sgd", *options]) == 0
    assert aggregate.main(["one", *options]) == 0
    assert _merge(tmp_path, source=source, into=tmp_path / "first") == 0
    # A merged copy can be merged.
    assert _merge(tmp_path, source=tmp_path / "first" / NAME / "evidence", into=tmp_path / "second") == 0
    kept = tmp_path / "second" / NAME / "evidence"
    assert len((kept / "one.runs.csv").read_text().splitlines()) == 3
    (kept / "rounds.yaml").unlink()
    assert _merge(tmp_path, source=kept, into=tmp_path / "without") == 1
    assert "is not planned here" in capsys.readouterr().err


@pytest.mark.parametrize("linked", ["embedded", NAME])
def test_a_link_to_a_folder_of_results_is_refused(copy: Path, capsys: pytest.CaptureFixture[str], linked: str):
    """It may be one of those that were handed over, and lead to results of the user's own."""
    given = copy / "given" / NAME / "embedded"
    link = given if linked == "embedded" else given.parent
    link.parent.mkdir(parents=True)
    link.symlink_to(_source(copy) if linked == "embedded" else _source(copy).parent)
    assert _merge(copy, source=given) == 1
    assert f"{linked}: is a link, to " in capsys.readouterr().err
    assert not (copy / "reference").exists()


def test_runs_and_logs_of_which_nothing_is_copied_may_be_elsewhere(copy: Path):
    (_source(copy) / "logs").mkdir(exist_ok=True)
    for name in ("runs", "logs"):
        (_source(copy) / name).rename(copy / name)
        (_source(copy) / name).symlink_to(copy / name)
    assert _merge(copy) == 0


def test_an_archive_in_the_reference_that_is_a_link_is_not_copied(copy: Path, capsys: pytest.CaptureFixture[str]):
    archive = _archive(copy)
    archive.rename(copy / "private")
    archive.symlink_to(copy / "private")
    assert _merge(copy) == 1
    assert "one.records.json.gz: is a link, to " in capsys.readouterr().err
    assert archive.is_symlink()
