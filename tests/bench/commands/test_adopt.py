"""Runs that one machine trained and committed, and that another one adopts."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, write
from tests.support.records import read_summary
from workflow.bench import adopt, keep, train
from workflow.bench.aggregate import aggregate
from workflow.bench.plan import REFERENCE, Plan
from workflow.bench.results import archive as archives
from workflow.bench.results.archive import SUFFIX
from workflow.bench.results.rows import read_csv, run_rows
from workflow.bench.support.config import shown_path
from workflow.bench.support.errors import FileWarning
from workflow.bench.training.record import RunFolder, origin_of, sealed

SHORT: dict[str, Any] = {"steps": 1, "evaluate_every": 1}
FOLLOWS = {"experiment": "first"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a configuration, and with its runs as the machine ``one`` trained and kept them."""
    folder = tmp_path_factory.mktemp("kept")
    config = make_folder(folder / "config")
    both = (optimizer("sgd"), optimizer("mkor"))
    write(config, "first", block(*both, seeds=[0, 1], **SHORT))
    write(config, "second", block(*both, seeds=[0, 1], start_from=FOLLOWS, **SHORT))
    for experiment in ("first", "second"):
        for label in ("sgd", "mkor"):
            assert train.main([experiment, label, *place(folder, "one")]) == 0
    assert keep.main(["first", "second", "--into", str(folder / "reference"), *place(folder, "one")]) == 0
    return folder


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    """Return a copy of `kept` without the machine's own results."""
    for name in ("config", "reference"):
        shutil.copytree(kept / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def alone(folder: Path) -> Path:
    """The same without the second experiment, which starts from the first one."""
    (folder / "config" / "experiments" / "second.yaml").unlink()
    return folder


def place(folder: Path, hardware: str) -> list[str]:
    return [f"--config-dir={folder / 'config'}", f"--results={folder / 'results'}", f"--hardware={hardware}"]


def adopted(folder: Path, hardware: str = "two") -> tuple[Plan, list[str]]:
    plan = load(folder / "config", hardware=hardware)
    return plan, adopt.adopt(plan, folder / "reference")


def origins(plan: Plan, experiment: str) -> dict[tuple[str, int], str | None]:
    """Return where each run of an experiment was adopted from, None if from nowhere, by label and seed."""
    jobs = plan.experiments[experiment].jobs.values()
    return {(job.label, run.seed): origin_of(RunFolder.of(plan.results, run.id)) for job in jobs for run in job.runs}


def archive(folder: Path, experiment: str) -> Path:
    return folder / "reference" / "one" / "embedded" / f"{experiment}{SUFFIX}"


def content_of(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return content


def packed(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(json.dumps(content).encode()))


def change(file: Path, **changes: Any) -> None:
    """Change the record of the first run of an archive, which stays intact."""
    content = content_of(file)
    record = next(iter(content["runs"].values()))
    record["run.json"] = sealed({**record["run.json"], **changes})
    packed(file, content)


def test_what_one_machine_kept_another_adopts_with_all_that_follows(folder: Path, kept: Path):
    plan, remarks = adopted(folder)
    assert remarks == [
        "first: 4 runs adopted from one, seeds 0-1",
        "second: 4 runs adopted from one, seeds 0-1",
    ]
    assert set(origins(plan, "first").values()) == {"one"}
    there = load(kept / "config", hardware="one")
    for experiment in ("first", "second"):
        ours, theirs = ([read_csv(file) for file in aggregate(each, experiment)] for each in (plan, there))
        assert ours == theirs
        assert theirs[1] == read_csv(archive(folder, experiment).with_name(f"{experiment}.runs.csv"))
    # The pipeline finds every job done, and none older than one that it depends on.
    times = [plan.csv_of(plan.job(experiment, "sgd")).stat().st_mtime_ns for experiment in ("first", "second")]
    assert times == sorted(times)
    files = {file: file.stat().st_mtime_ns for file in plan.results.rglob("*") if file.name != "lock"}
    assert adopted(folder)[1] == []
    assert {file: file.stat().st_mtime_ns for file in files} == files


def test_keeping_again_writes_the_same_archive_and_adopted_runs_are_not_kept_twice(
    folder: Path, kept: Path, capsys: pytest.CaptureFixture[str]
):
    assert keep.main(["first", "--into", str(folder / "again"), *place(kept, "one")]) == 0
    again = folder / "again" / "one" / "embedded" / f"first{SUFFIX}"
    assert again.read_bytes() == archive(folder, "first").read_bytes()
    assert len(again.read_bytes()) < 4 * 4096
    hosts = {
        report["host"] for record in content_of(again)["runs"].values() for report in record["run.json"]["by_rank"]
    }
    assert hosts == {"one"}
    adopted(folder)
    capsys.readouterr()
    assert keep.main(["first", "--into", str(folder / "again"), *place(folder, "two")]) == 0
    assert capsys.readouterr().out == "first: all runs were adopted; nothing to keep\n"


def test_new_seeds_are_trained_beside_adopted_ones_and_the_runs_they_start_from(folder: Path):
    """Pairs are compared by seed: those of seeds 0 and 1 come from one machine, and those of seed 2 from the other."""
    both = (optimizer("sgd"), optimizer("mkor"))
    adopted(folder)
    write(folder / "config", "first", block(*both, seeds=[0, 1, 2], **SHORT))
    write(folder / "config", "second", block(*both, seeds=[0, 1, 2], start_from=FOLLOWS, **SHORT))
    plan, remarks = adopted(folder)
    assert remarks == [
        f"{shown_path(archive(folder, name))}: not adopted: seeds 2 lack runs that are planned here"
        for name in ("first", "second")
    ]
    assert not plan.csv_of(plan.job("first", "sgd")).exists()
    assert train.main(["second", "sgd", *place(folder, "two")]) == 0
    assert origins(plan, "second")["sgd", 0] == "one"
    assert origins(plan, "second")["sgd", 2] is None
    assert origins(plan, "first")["sgd", 0] == "one"
    sources = [RunFolder.of(plan.results, run.id) for run in plan.job("first", "sgd").runs]
    assert [source.weights.exists() for source in sources] == [False, False, True]
    assert [row["hardware"] for row in run_rows(plan, plan.job("second", "sgd"))] == ["one", "one", "two"]


def test_a_run_to_be_trained_has_the_whole_set_trained_that_it_starts_from(folder: Path):
    """The second experiment has another optimizer, so no seed of it is whole, and weights were not kept."""
    three = (optimizer("sgd"), optimizer("mkor"), optimizer("sgd", "fast", lr=0.2))

    def write_second() -> None:
        start = {**FOLLOWS, "optimizer": "sgd"}
        write(folder / "config", "second", block(*three, seeds=[0], start_from=start, **SHORT))

    write_second()
    plan, remarks = adopted(folder)
    assert set(origins(plan, "second").values()) == {None}
    assert {key for key, origin in origins(plan, "first").items() if origin == "one"} == {("sgd", 1), ("mkor", 1)}
    assert remarks[0].endswith("not adopted: seeds 0 lack runs that are planned here")
    assert remarks[-1] == "first: 2 runs adopted from one, seed 1"
    # Runs that were adopted before are given up in the same way.
    (folder / "config" / "experiments" / "second.yaml").unlink()
    before, _ = adopted(folder, "three")
    assert set(origins(before, "first").values()) == {"one"}
    write_second()
    after, _ = adopted(folder, "three")
    assert {key for key, origin in origins(after, "first").items() if origin == "one"} == {("sgd", 1), ("mkor", 1)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"code_fingerprint": "0123456789abcdef"}, "were made by other code"),
        ({"machine": {"cpu": "another", "gpus": []}}, "were trained by several machines"),
    ],
)
def test_runs_of_other_code_and_of_several_machines_are_not_adopted(alone: Path, changes: dict[str, Any], why: str):
    change(archive(alone, "first"), **changes)
    plan, remarks = adopted(alone)
    assert remarks[0].endswith(f"{SUFFIX}: not adopted: seeds {remarks[0].split('seeds ')[1][0]} {why}")
    assert len([origin for origin in origins(plan, "first").values() if origin is None]) == 2


def test_a_set_of_which_this_machine_trained_a_part_is_finished_here(alone: Path):
    assert train.main(["first", "sgd", "--seed", "1", *place(alone, "two")]) == 0
    plan, remarks = adopted(alone)
    assert remarks == ["first: 2 runs adopted from one, seed 0"]
    assert {seed for (_, seed), origin in origins(plan, "first").items() if origin} == {0}


def test_an_archive_in_the_place_of_another_is_named_and_ignored(alone: Path):
    other = alone / "reference" / "else" / "embedded" / archive(alone, "first").name
    packed(other, content_of(archive(alone, "first")))
    with pytest.warns(FileWarning, match=r"contains runs of first at tier embedded on one, unlike its name; ignored$"):
        assert adopted(alone)[1] == ["first: 4 runs adopted from one, seeds 0-1"]


def other_rows(file: Path) -> None:
    content = content_of(file)
    run = next(iter(content["runs"].values()))
    run["metrics.csv"] = run["metrics.csv"].replace("loss", "gain", 1)
    packed(file, content)


def link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


NOT_PLAIN = "must be text without line breaks and control characters"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda file: file.write_bytes(file.read_bytes()[:-20]), "not a gzip file"),
    "not packed": (lambda file: file.write_bytes(b"not gzip"), "not a gzip file"),
    "no archive": (lambda file: packed(file, []), "must be a mapping"),
    "no text": (lambda file: file.write_bytes(gzip.compress(b"\xff")), "UTF-8"),
    "large": (lambda file: file.write_bytes(gzip.compress(bytes(archives.MOST_BYTES + 1))), "unpacks to more than"),
    "other rows": (other_rows, "differs from the file that the run left"),
    "a link": (link, "is a link, to elsewhere"),
    "a FIFO": (fifo, "it is a FIFO, not a file"),
    **{
        f"{key} {text!r}": (lambda file, key=key, text=text: change(file, **{key: text}), rf"{key} = .*{NOT_PLAIN}")
        for key in ("reason", "dataset")
        for text in ("x\n\n.. include:: /etc/passwd", "\x1b[2J", "a\u2028b", "a\x85b")
    },
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_named_in_one_line_and_ignored(alone: Path, damage: str):
    make, words = DAMAGES[damage]
    make(archive(alone, "first"))
    with pytest.warns(FileWarning, match=rf"{words}.*; ignored$") as said:
        plan, remarks = adopted(alone)
    assert len(said) == 1
    assert remarks == []
    assert set(origins(plan, "first").values()) == {None}


@pytest.mark.parametrize("file", sorted(REFERENCE.glob(f"*/*/*{SUFFIX}")), ids=shown_path)
def test_every_archive_of_the_repository_is_far_from_what_would_be_refused(file: Path):
    with gzip.open(file) as stream:
        assert stream.seek(0, os.SEEK_END) < archives.MOST_BYTES / 4


def test_what_would_be_refused_is_not_kept(
    kept: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    assert keep.main(["first", "--into", str(folder / "new"), *place(kept, "one")]) == 1
    assert re.search(r"not written: it would unpack to \d{4,} bytes, more than 1000$", capsys.readouterr().err.rstrip())
    assert not (folder / "new").exists()


def test_unfinished_and_older_runs_are_not_kept(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert train.main(["first", "sgd", *place(folder, "two")]) == 0
    capsys.readouterr()
    assert keep.main(["first", "--into", str(folder / "new"), *place(folder, "two")]) == 1
    assert capsys.readouterr().err.endswith("has not ended; finish the experiment first\n")
    plan = load(folder / "config", hardware="two")
    place_of = RunFolder.of(plan.results, plan.job("first", "sgd").run_ids[0])
    place_of.summary.write_text(json.dumps(sealed({**read_summary(place_of), "code_fingerprint": "0" * 16})))
    assert keep.main(["first", "--into", str(folder / "new"), *place(folder, "two")]) == 1
    assert "was made by older code; run python -m workflow.bench.refresh first" in capsys.readouterr().err
    assert not (folder / "new").exists()


def test_experiments_that_share_runs_are_adopted_together_or_not_at_all(alone: Path):
    """The third experiment has the first one's runs and one more, so it is trained here, and so is the first."""
    three = (optimizer("sgd"), optimizer("mkor"), optimizer("sgd", "fast", lr=0.2))
    write(alone / "config", "third", block(*three, seeds=[0], **SHORT))
    plan, remarks = adopted(alone)
    assert remarks == ["first: 2 runs adopted from one, seed 1"]
    assert set(origins(plan, "third").values()) == {None}
    # So it is where the first experiment was adopted before.
    (alone / "config" / "experiments" / "third.yaml").unlink()
    assert set(origins(adopted(alone, "three")[0], "first").values()) == {"one"}
    write(alone / "config", "third", block(*three, seeds=[0], **SHORT))
    plan, _ = adopted(alone, "three")
    assert {key for key, origin in origins(plan, "first").items() if origin} == {("sgd", 1), ("mkor", 1)}


def test_experiments_that_share_runs_are_not_adopted_from_two_machines(alone: Path):
    write(alone / "config", "third", block(optimizer("sgd"), seeds=[0, 1], **SHORT))
    other = alone / "reference" / "else" / "embedded" / f"third{SUFFIX}"
    packed(other, {**content_of(archive(alone, "first")), "experiment": "third", "hardware": "else"})
    plan, remarks = adopted(alone)
    assert remarks == []
    assert set(origins(plan, "first").values()) == {None}


def test_rows_that_are_a_link_are_not_kept(folder: Path, capsys: pytest.CaptureFixture[str]):
    plan, _ = adopted(folder)
    run = plan.job("first", "sgd").runs[0]
    place_of = RunFolder.of(plan.results, run.id)
    place_of.origin.unlink()
    place_of.metrics.rename(folder / "elsewhere")
    place_of.metrics.symlink_to(folder / "elsewhere")
    assert keep.main(["first", "--into", str(folder / "new"), *place(folder, "two")]) == 1
    assert capsys.readouterr().err.startswith(f"{place_of.metrics}: is a link, to ")
    assert not (folder / "new").exists()
