"""What is made once for all tests of all processes of a run, because it takes seconds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workflow.bench.data import corpus
from workflow.bench.support.files import locked


def folder_of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all workers of pytest-xdist share; without workers, that of this process."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def docstring_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file in which the data folder keeps the real docstrings with 1000 word pieces."""
    folder = folder_of_run(tmp_path_factory)
    with locked(folder / "corpus.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MKOR_DATA", str(folder / "corpus"))
        corpus.load(1000)
    (file,) = (folder / "corpus").glob("*.npz")
    return file
