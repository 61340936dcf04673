"""What the tests of training share: the folder of a run, and the digits' autoencoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trained import SMALL
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads import create
from workflow.bench.workloads.base import Workload


@pytest.fixture
def place(tmp_path: Path) -> RunFolder:
    """The folder of a run."""
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="session")
def workload() -> Workload:
    """The small autoencoder."""
    return create(**SMALL)
