"""What the tests of training share: a configuration folder, and the digits' autoencoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.experiments import make_folder
from tests.support.trained import SMALL
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads import create
from workflow.bench.workloads.base import Workload


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration folder without experiments."""
    return make_folder(tmp_path / "config")


@pytest.fixture
def place(tmp_path: Path) -> RunFolder:
    """The folder of a run."""
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="session")
def workload() -> Workload:
    """The small autoencoder."""
    return create(**SMALL)
