"""Merging another machine's results: what is copied, what is refused, and that a failure changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

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
from workflow.bench.support.config import ConfigError
from workflow.bench.support.source_code import probe_fingerprint

NAME = "other-cpu"
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
    table = step_breakdown(NAME).assign(code_fingerprint=probe_fingerprint())
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


def _source(folder: Path) -> Path:
    return folder / "results" / NAME / "embedded"


def _merge(folder: Path, *arguments: str, source: Path | None = None, into: Path | None = None) -> int:
    chosen = [f"--config-dir={folder / 'config'}", f"--into={into or folder / 'reference'}"]
    return merge.main([str(source or _source(folder)), *chosen, *arguments])


def _files(folder: Path) -> dict[str, bytes]:
    found = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


def test_tables_probes_pictures_and_specs_are_kept_and_nothing_else(copy, capsys):
    assert _merge(copy) == 0
    target = copy / "reference" / NAME / "embedded"
    assert capsys.readouterr().out.strip().endswith(f"reference/{NAME}/embedded")
    kept, source = _files(target), _files(_source(copy))
    specs = json.loads(kept.pop("specs.json"))
    assert set(kept) == {
        "one.csv",
        "one.runs.csv",
        "probes/step_breakdown.csv",
        "tables/claim_parts.csv",
        "tables/hardware.csv",
        "tables/hardware.md",
        "figures/fig13_update_rules.png",
    }
    assert all(source[name] == content for name, content in kept.items())
    assert len(specs) == 4
    assert all(run_id(spec) == run for run, spec in specs.items())
    assert set(specs) == set(pd.read_csv(target / "one.runs.csv")["run"])
    assert [path.name for path in target.parent.iterdir()] == ["embedded"]


def test_what_was_kept_can_be_compared_and_merged_again(copy):
    assert _merge(copy) == 0
    target = copy / "reference" / NAME / "embedded"
    made = fig16_hardware.make(Results(copy / "none" / "embedded", compared=(target,)), copy / "drawn")
    assert all(path.stat().st_size for path in made)
    assert _merge(copy, source=target, into=copy / "second") == 0
    assert _files(copy / "second" / NAME / "embedded") == _files(target)


def test_costs_are_kept_from_the_logs_and_from_a_kept_folder(copy):
    log = _source(copy) / "logs" / "train" / "one" / "mkor.log"
    log.parent.mkdir(parents=True)
    log.write_text("cost: 10.0 core-seconds in 20.0 s, peak 1 MB\n")
    assert _merge(copy) == 0
    target = copy / "reference" / NAME / "embedded"
    (cost,) = (cost for cost in read_costs(target / "costs.csv") if cost.name == "one")
    peaks = pd.read_csv(target / "one.runs.csv")["peak_memory_bytes"]
    assert cost[1:] == (4, 10.0, None, round(peaks.max() / 1e6))
    assert _merge(copy, source=target, into=copy / "second") == 0
    assert _files(copy / "second" / NAME / "embedded") == _files(target)


def test_merging_again_replaces_what_was_there(copy):
    stale = copy / "reference" / NAME / "embedded" / "probes" / "stale.csv"
    stale.parent.mkdir(parents=True)
    stale.write_text("old\n")
    assert _merge(copy) == 0
    assert not stale.exists()
    assert (stale.parents[1] / "one.csv").is_file()


def test_step_times_alone_are_enough(copy):
    for file in _source(copy).glob("one*.csv"):
        file.unlink()
    assert _merge(copy) == 0
    assert json.loads((copy / "reference" / NAME / "embedded" / "specs.json").read_text()) == {}


def _edit(file: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = _source(folder) / file
        change(pd.read_csv(path, dtype=str, keep_default_na=False)).to_csv(path, index=False)

    return damage


def _set(file: str, column: str, value: str, row: int = 0) -> Callable[[Path], None]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[row, column] = value
        return table

    return _edit(file, change)


def _spec(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = min((_source(folder) / "specs").glob("*.json"))
        spec = json.loads(path.read_text())
        change(spec)
        path.write_text(json.dumps(spec))

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


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (_source(folder) / name).write_text(text)


def _without_specs(folder: Path) -> None:
    shutil.rmtree(_source(folder) / "specs")


def _empty(folder: Path) -> None:
    for file in [*_source(folder).glob("*.csv"), *(_source(folder) / "probes").glob("*.csv")]:
        file.unlink()


RUNS, EVALUATIONS, PROBE = "one.runs.csv", "one.csv", "probes/step_breakdown.csv"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (_empty, "make timing"),
    "a column less": (_edit(RUNS, lambda table: table.drop(columns="torch")), "lacks torch"),
    "a column more": (_edit(EVALUATIONS, lambda table: table.assign(mood="good")), "has mood"),
    "no rows": (_edit(RUNS, lambda table: table[:0]), "has no rows"),
    "a probe's column": (_edit(PROBE, lambda table: table.drop(columns="refresh_ms")), "lacks refresh_ms"),
    "a stranger's probe": (
        lambda f: (_source(f) / "probes" / "mine.csv").write_text("a\n1\n"),
        "not the table of a probe",
    ),
    "a short line": (lambda f: (_source(f) / RUNS).open("a").write("one,two\n"), "its rows differ in length"),
    "no number": (_set(EVALUATIONS, "value", "low"), 'value = "low"'),
    "a status": (_set(RUNS, "status", "fine"), 'status = "fine"'),
    "two statuses": (_set(EVALUATIONS, "status", "diverged"), 'must be "finished"'),
    "another machine's": (_set(RUNS, "hardware", "my-cpu"), f'must be "{NAME}"'),
    "another machine's probe": (_set(PROBE, "hardware", "my-cpu"), f'must be "{NAME}"'),
    "a run twice": (_edit(RUNS, lambda table: pd.concat([table, table[:1]])), "twice"),
    "a run less": (_edit(RUNS, lambda table: table[1:]), "its runs are not those of one.runs.csv"),
    "a label": (_set(RUNS, "optimizer", "lamb"), 'optimizer = "lamb"'),
    "no spec": (_without_specs, "has no spec"),
    "a changed spec": (_spec(lambda spec: spec.update(steps=21)), "spec's hash is"),
    "a broken spec": (lambda f: min((_source(f) / "specs").iterdir()).write_text("{"), "not valid JSON"),
    "a target": (_set(RUNS, "target", '{"split": "validation", "metric": "loss", "below": 9.0}'), "target = "),
    "another torch": (_set(RUNS, "torch", "1.0.0+cpu"), "made with torch 1.0.0"),
    "other code": (
        _set(RUNS, "code_fingerprint", "0" * 16),
        f"rows of runs and probes made by other code, such as {'0' * 16}, ",
    ),
    "a probe of other code": (_set(PROBE, "code_fingerprint", "0" * 16), f"other code, such as {'0' * 16}"),
    "another configuration": (
        lambda f: _experiment(f / "config", lr=2.0),
        "optimizer.hyperparameters.lr = 1.0, 2.0 here",
    ),
    "another experiment": (
        lambda f: (f / "config" / "experiments" / "one.yaml").rename(f / "config" / "experiments" / "two.yaml"),
        "no experiment 'one'",
    ),
    "a linked table": (_link("tables/aa_test.md"), "tables/aa_test.md: is a link, to "),
    "a linked figure": (_link("figures/fig13_update_rules.png"), "figures/fig13_update_rules.png: is a link, to "),
    "a linked probe": (_link(PROBE), f"{PROBE}: is a link, to "),
    "a linked folder": (_link("tables"), "tables: is a link, to "),
    "linked specs": (_link("specs"), "specs: is a link, to "),
    "linked rounds": (_link("rounds.yaml"), "rounds.yaml: is a link, to "),
    "a signal to the terminal": (_set(RUNS, "reason", "\x1b[2J"), "reason = "),
    "a paragraph": (_set(RUNS, "reason", "x\n\n.. include:: /etc/passwd"), "must be text without line breaks"),
    "another line break": (_set(RUNS, "dataset", "digits\u2028"), "dataset = "),
    "a signal in a table": (
        _write("tables/hardware.md", "a\nb\x1b[2J\n"),
        "hardware.md: line 2 has a control character",
    ),
    "a table that is no text": (
        lambda f: (_source(f) / "tables" / "hardware.md").write_bytes(b"\xff"),
        "is not UTF-8 text",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_in_one_line_and_changes_nothing(copy, capsys, fault):
    damage, message = FAULTS[fault]
    assert _merge(copy) == 0
    before = _files(copy / "reference")
    capsys.readouterr()
    damage(copy)
    assert _merge(copy) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert _files(copy / "reference") == before


@pytest.mark.parametrize("fault", ["another torch", "other code", "a probe of other code"])
def test_other_versions_are_taken_where_asked_and_told(copy, capsys, fault):
    damage, message = FAULTS[fault]
    damage(copy)
    assert _merge(copy, "--other-versions") == 0
    assert message in capsys.readouterr().out
    assert (copy / "reference" / NAME / "embedded" / RUNS).is_file()


def test_another_build_of_the_same_torch_is_no_other_version(copy):
    file = _source(copy) / RUNS
    runs = pd.read_csv(file, dtype=str, keep_default_na=False)
    runs["torch"] = runs["torch"].str.partition("+")[0] + "+cu130"
    runs.to_csv(file, index=False)
    assert _merge(copy) == 0


def test_planned_runs_that_are_missing_there_are_told(copy, capsys):
    for file in (RUNS, EVALUATIONS):
        table = pd.read_csv(_source(copy) / file, dtype=str, keep_default_na=False)
        table[table["optimizer"] == "sgd"].to_csv(_source(copy) / file, index=False)
    assert _merge(copy) == 0
    assert "one: 2 of the runs that are planned here are missing" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["results/nobody/embedded", "results/Other CPU/embedded", "results/other-cpu/tiny"])
def test_a_folder_of_no_machine_or_tier_is_refused_in_one_line(copy, capsys, folder):
    if "nobody" not in folder:
        shutil.copytree(_source(copy), copy / folder)
    assert _merge(copy, source=copy / folder) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (copy / "reference").exists()


def test_the_reference_is_not_merged_into_itself(copy, capsys):
    assert _merge(copy) == 0
    target = copy / "reference" / NAME / "embedded"
    assert _merge(copy, source=target) == 1
    assert "already" in capsys.readouterr().err
    assert (target / RUNS).is_file()


def test_a_full_disk_leaves_what_was_there_and_nothing_half_written(copy, monkeypatch, capsys):
    assert _merge(copy) == 0
    before = _files(copy / "reference")
    (_source(copy) / "tables" / "hardware.md").write_text("made anew\n")

    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(merge, "write_json", full)
    assert _merge(copy) == 1
    assert "No space left" in capsys.readouterr().err
    assert _files(copy / "reference") == before


def test_a_failing_rename_puts_the_old_folder_back(copy, monkeypatch):
    assert _merge(copy) == 0
    before = _files(copy / "reference")
    rename = merge.os.replace

    def stuck(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise OSError(5, "Input/output error", str(source))
        rename(source, target)

    monkeypatch.setattr(merge.os, "replace", stuck)
    assert _merge(copy) == 1
    monkeypatch.undo()
    assert _files(copy / "reference") == before


def test_the_pictures_that_are_kept_are_figures():
    assert set(merge.FIGURES) <= set(available("figures"))


def test_a_faulty_configuration_here_is_its_own_error(copy):
    (copy / "config" / "experiments" / "one.yaml").write_text("title: 3\n")
    with pytest.raises(ConfigError):
        merge.merge(_source(copy), copy / "reference", copy / "config")


def test_archives_that_keep_wrote_stay_when_a_folder_is_merged_again(copy: Path):
    archive = copy / "reference" / NAME / "embedded" / "one.records.json.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"kept")
    assert _merge(copy) == 0
    assert archive.read_bytes() == b"kept"
    assert archive.with_name("one.runs.csv").is_file()
    assert not archive.with_name("one.csv").exists()


def test_runs_that_were_adopted_from_a_machine_in_the_repository_are_accepted(copy: Path):
    file = _source(copy) / "one.runs.csv"
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    table.loc[0, "hardware"] = min(folder.name for folder in REFERENCE.iterdir())
    table.to_csv(file, index=False)
    assert _merge(copy) == 0


def test_evaluations_are_kept_once_in_the_archives_of_all_machines_that_trained(copy: Path):
    """Two machines trained the runs: with the archive of one of them the table is still needed."""
    other = min(folder.name for folder in REFERENCE.iterdir())
    file = _source(copy) / "one.runs.csv"
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    table.loc[0, "hardware"] = other
    table.to_csv(file, index=False)
    for machine, is_kept in ((other, True), (NAME, False)):
        archive = copy / "reference" / machine / "embedded" / "one.records.json.gz"
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(b"kept")
        assert _merge(copy) == 0
        assert (copy / "reference" / NAME / "embedded" / "one.csv").exists() is is_kept


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
    archive = copy / "reference" / NAME / "embedded" / "one.records.json.gz"
    archive.parent.mkdir(parents=True)
    (copy / "private").write_text("a private key")
    archive.symlink_to(copy / "private")
    assert _merge(copy) == 1
    assert "one.records.json.gz: is a link, to " in capsys.readouterr().err
    assert archive.is_symlink()
