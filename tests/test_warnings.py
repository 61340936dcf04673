"""The controller of parallel tests survives any warning of its workers."""

from __future__ import annotations

import subprocess
import sys

from workflow.bench.support.config import ROOT

MODULE = """
import os
if "PYTEST_XDIST_WORKER" not in os.environ:
    raise RuntimeError("this module can be imported in a worker only")
class WorkerWarning(UserWarning):
    pass
"""
TEST = """
import warnings
def test_warns():
    import in_workers_only
    warnings.warn("look here", in_workers_only.WorkerWarning)
"""


def test_a_warning_whose_module_the_controller_cannot_import_is_reported(tmp_path):
    """Truth: the same two tests without this repository's conftest, where the controller dies."""
    (tmp_path / "in_workers_only.py").write_text(MODULE)
    (tmp_path / "test_warning.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-q"]
    where = {"cwd": tmp_path, "env": {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": ""}}
    plain = subprocess.run(command, capture_output=True, text=True, check=False, **where)
    assert plain.returncode != 0, "pytest-xdist survives it by itself now: the hook in conftest.py can go"
    ours = subprocess.run([*command, "-p", "tests.conftest"], capture_output=True, text=True, check=False, **where)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    assert "UserWarning: WorkerWarning: look here" in ours.stdout
