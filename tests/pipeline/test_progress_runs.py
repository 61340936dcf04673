"""The line of progress of a real run of Snakemake: in a file, on a terminal, and of a run that goes on."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from pathlib import Path

import pytest

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


def called(folder: Path, stream: int) -> int:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "workflow" / "plugins")])
    environment = {**os.environ, **commands_fork(), "PYTHONPATH": paths, "COLUMNS": "100"}
    command = forked("snakemake", *ARGUMENTS, TABLE)
    return subprocess.run(command, cwd=folder, env=environment, stdout=stream, stderr=stream, check=False).returncode


def test_a_file_gets_few_short_lines_that_end_with_all_jobs(folder):
    with (folder / "said.txt").open("wb") as file:
        code = called(folder, file.fileno())
    lines = (folder / "said.txt").read_text().splitlines()
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
