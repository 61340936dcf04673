"""Whole pipelines beside each other, and on a machine whose clock is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.experiments import TIMES, block, make_folder, optimizer, rows, write
from tests.support.tally import count
from workflow.bench.support.config import ROOT

TABLE = "it.csv"
_DAY = 86400.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to start pipelines in: two jobs of two runs each, some seconds long."""
    config = make_folder(tmp_path / "one" / "config")
    write(config, "it", block(optimizer("sgd"), optimizer("mkor", base="sgd"), seeds=[0, 1], steps=600))
    return config.parent


def _start(folder: Path, results: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2", *more]
    settings = ["config_dir=config", "hardware=test", f"results={results}"]
    return subprocess.Popen(
        [*command, str(results / "test" / "embedded" / TABLE), "--config", *settings],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _end(pipeline: subprocess.Popen[str]) -> str:
    said, _ = pipeline.communicate(timeout=300)
    assert pipeline.returncode == 0, said
    return said


def _table(results: Path) -> list[dict[str, str]]:
    return rows(results / "test" / "embedded" / TABLE, TIMES)


def test_two_pipelines_in_one_folder_are_one_and_a_line_that_says_so(folder: Path):
    results = folder / "results"
    both = [_start(folder, results), _start(folder, results)]
    said = [pipeline.communicate(timeout=300)[0] for pipeline in both]
    codes = [pipeline.returncode for pipeline in both]
    # Whoever comes late may also find all done.
    assert sorted(codes) in ([0, 0], [0, 1]), said
    if 1 in codes:
        assert "Directory cannot be locked" in said[codes.index(1)]
        count("second pipelines refused")
    assert _end(_start(folder, results))
    alone = folder / "alone"
    _end(_start(folder, alone))
    assert _table(results) == _table(alone)


def test_two_pipelines_on_the_same_results_share_the_work(folder: Path, tmp_path: Path):
    """In folders of their own, Snakemake's lock does not see the other one; ours, on each run, does."""
    other = tmp_path / "two"
    other.mkdir()
    (other / "config").symlink_to(folder / "config")
    results = tmp_path / "results"
    for pipeline in [_start(folder, results), _start(other, results)]:
        _end(pipeline)
    alone = tmp_path / "alone"
    _end(_start(folder, alone))
    assert _table(results) == _table(alone)
    count("pipelines on the same results, both right", 2)


def test_files_from_the_future_cost_work_and_nothing_else(folder: Path):
    """As a clock that was a day ahead, and was put right, leaves them."""
    results = folder / "results"
    _end(_start(folder, results))
    before = _table(results)
    ahead = time.time() + _DAY
    for file in results.rglob("*"):
        if file.is_file():
            os.utime(file, (ahead, ahead))
    said = _end(_start(folder, results))
    assert not re.search(r"^train-", said, re.MULTILINE), said
    assert _table(results) == before
    (results / "test" / "embedded" / "it" / "sgd.csv").unlink()
    _end(_start(folder, results))
    assert _table(results) == before
    count("clocks put back under a pipeline, survived")
