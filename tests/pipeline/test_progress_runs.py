"""The line of progress of a real run of Snakemake: in a file, on a terminal, and of a run that goes on."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from pathlib import Path

import pytest

import workflow.plugins.snakemake_logger_plugin_progress as progress
from tests.support import records
from tests.support.experiments import block, load, make_folder, optimizer, write
from tests.support.fork_server import commands_fork, forked
from workflow.bench.status import share_left
from workflow.bench.support.config import ROOT
from workflow.bench.training.record import RunFolder

TABLE = "results/test/embedded/one.csv"
ARGUMENTS = (
    *("--snakefile", str(ROOT / "Snakefile"), "--cores", "2", "--logger", "progress"),
    *("--config", "config_dir=config", "hardware=test", "--"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an experiment of two optimizers and two seeds; nothing is trained."""
    make_folder(tmp_path / "config")
    write(tmp_path / "config", "one", block(optimizer("sgd"), optimizer("mkor"), seeds=[0, 1]))
    return tmp_path


def called(folder: Path, stream: int, target: str = TABLE) -> int:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "workflow" / "plugins")])
    environment = {**os.environ, **commands_fork(), "PYTHONPATH": paths, "COLUMNS": "100"}
    command = forked("snakemake", *ARGUMENTS, target)
    return subprocess.run(command, cwd=folder, env=environment, stdout=stream, stderr=stream, check=False).returncode


def in_a_file(folder: Path, target: str = TABLE) -> tuple[int, list[str]]:
    with (folder / "said.txt").open("wb") as file:
        code = called(folder, file.fileno(), target)
    return code, (folder / "said.txt").read_text().splitlines()


def test_a_file_gets_few_short_lines_that_end_with_all_jobs(folder):
    code, lines = in_a_file(folder)
    assert code == 0, lines
    drawn = [line for line in lines if " left" in line]
    assert re.fullmatch(r" {2}0%, 0 of \d jobs, \d+ s left", drawn[0])
    shares = [int(line.split("%")[0]) for line in drawn]
    assert shares == sorted(shares)
    assert [line for line in lines if line.startswith("100%, ")]
    assert len(lines) <= 12, lines
    assert max(len(line) for line in lines if "Complete log" not in line) <= 120


def test_a_terminal_shows_one_line_with_what_runs(folder):
    ours, theirs = pty.openpty()
    said: list[bytes] = []

    def read() -> None:
        while True:
            try:
                said.append(os.read(ours, 1 << 16))
            except OSError:  # no process holds the other end any more
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        code = called(folder, theirs)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    text = b"".join(said).decode()
    assert code == 0, text
    drawn = re.findall(r"\r\x1b\[K([^\r\n]*%, \d+ of [^\r\n]*)", text)
    assert any("train-one-sgd" in line for line in drawn)
    assert max(map(len, drawn)) < 100
    assert len(text.splitlines()) < 40 + len(drawn)
    assert len([line for line in text.split("\n") if " left" in line]) == 1, "all share one line of the terminal"


def test_what_was_trained_before_is_not_left(folder):
    """Truth: of two seeds of SGD one is done, and the other has a checkpoint after 15 of 20 steps."""
    plan = load(folder / "config")
    job = plan.job("one", "sgd")
    assert share_left(plan, job) == 1
    records.put(RunFolder.of(plan.results, job.runs[0].id), job.runs[0], "finished", steps=20, seconds=1.0)
    assert share_left(plan, job) == 0.5
    begun = RunFolder.of(plan.results, job.runs[1].id)
    records.evaluated(begun, 15)
    begun.checkpoint.write_bytes(b"")
    assert share_left(plan, job) == pytest.approx(5 / 40)


def test_a_failed_job_is_told_in_lines_that_fit(folder):
    (folder / "results" / "test" / "embedded").mkdir(parents=True)
    (folder / "results" / "test" / "embedded" / "runs").write_text("in the way of a folder")
    code, lines = in_a_file(folder)
    assert code == 1
    assert any("train-one" in line for line in lines)
    # What the command for partial results prints after it is its own.
    told = lines[: lines.index("runs: 4 missing")]
    assert max(map(len, told)) <= 120
    assert len(told) < 20


def test_a_long_message_keeps_its_ends_and_says_what_is_left_out():
    text = progress.shortened("\n".join(["first", *("x" * 500 for _ in range(98)), "last"]))
    lines = text.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("first", "last", 41)
    assert "... 60 more lines in .snakemake/log ..." in lines
    assert max(map(len, lines)) == 120
