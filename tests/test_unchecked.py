"""The line that ends a run of the tests: what was not checked, by pytest's reasons."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.conftest import APART
from tests.support.unchecked import unchecked
from workflow.bench.support.config import ROOT

SKIPPED = """
import pytest

@pytest.mark.skipif(True, reason="no Chromium on the PATH")
@pytest.mark.parametrize("page", [1, 2])
def test_page(page): ...

def test_kernels():
    pytest.importorskip("no_such_module", reason="Triton is an extra")

def test_that_runs(): ...
"""


def report(nodeid: str, reason: str) -> SimpleNamespace:
    return SimpleNamespace(nodeid=nodeid, longrepr=("file.py", 3, f"Skipped: {reason}"))


def test_reasons_are_counted_and_those_that_methods_declare_counted_together():
    found = [
        *(report(f"a.py::test_page[{number}]", "no browser") for number in range(3)),
        *(report(f"b.py::test_contract[{name}]", f"{name} cannot") for name in ("sgd", "soap")),
        report("c.py", "Triton is an extra"),
    ]
    line = unchecked(found, "b.py::", ["test-slurm"])
    assert line == (
        "not checked: 3 x no browser; 2 x limits that methods declare; 1 x Triton is an extra; all of make test-slurm"
    )


def test_nothing_is_said_where_everything_was_checked():
    assert unchecked([], "b.py::") == ""


def test_many_or_long_reasons_stay_one_line():
    line = unchecked([report("a.py", f"{number} {'x' * 500}\nmore") for number in range(50)], "b.py::")
    assert line.endswith("; 42 for other reasons")
    assert "\n" not in line
    assert len(line) < 1000


def test_a_run_ends_with_the_line(tmp_path: Path):
    """Truth: a run of tests of which three are skipped, for two reasons, on processes of pytest-xdist too."""
    (tmp_path / "test_some.py").write_text(SKIPPED)
    for more in ([], ["--numprocesses", "2"]):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            f"--rootdir={tmp_path}",
            *more,
            str(tmp_path),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        last = done.stdout.splitlines()[-1]
        assert last == "not checked: 2 x no Chromium on the PATH; 1 x Triton is an extra"


def test_what_a_run_of_all_tests_leaves_out_are_targets_of_make():
    targets = set(re.findall(r"^(test-[a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(APART) == targets - {"test-kernels"}, "kernels are skipped with a reason"
