"""What the tests of the bench share: a configuration folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.experiments import make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration folder without experiments, beside which the results lie (`experiments.load`)."""
    return make_folder(tmp_path / "config")
