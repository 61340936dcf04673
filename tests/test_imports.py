"""The code points one way: a file may be understood from the files to its left."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("mkor_core", "baselines", "workflow")
LAYERS = [
    {"linalg", "capture", "comm", "assignment"},
    {"method", "discovery", "losses"},
    {"exchange", "sharing", "knee"},
    {"preconditioner", "mkor"},
    {"mkor_h"},
    {"__init__"},
]
"""mkor_core's files: each may import those of earlier rows only."""


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("mkor_core", {"mkor_core"}), ("baselines", {"mkor_core", "baselines"}), ("workflow", set(PACKAGES))],
)
def test_packages_import_only_leftward(package, allowed):
    files = sources(package)
    assert files
    for file in files:
        used = {name.split(".")[0] for name in imports(file)} & {*PACKAGES, "tests", "benchmarks"}
        assert used <= allowed, f"{file.relative_to(ROOT)} imports {used - allowed}"


def test_the_core_needs_torch_and_the_standard_library_only():
    for file in sources("mkor_core"):
        used = {name.split(".")[0] for name in imports(file)}
        foreign = used - {"torch", "mkor_core"} - sys.stdlib_module_names
        assert not foreign, f"{file.name} imports {foreign}"


def test_files_of_the_core_import_only_earlier_ones():
    rank = {name: i for i, row in enumerate(LAYERS) for name in row}
    files = sources("mkor_core")
    assert {file.stem for file in files} == set(rank)
    for file in files:
        for name in imports(file):
            parts = name.split(".")
            if parts[0] == "mkor_core" and len(parts) > 1 and parts[1] in rank:
                assert rank[parts[1]] < rank[file.stem], f"{file.name} imports {name}"


def test_planning_imports_no_torch():
    code = "import sys, workflow.bench.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
