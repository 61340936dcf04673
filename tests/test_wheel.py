"""The library's wheel and sdist: what they hold and need, and the front page's five lines outside the checkout."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import mkor_core
from workflow.bench.support.config import ROOT
from workflow.bench.support.source_code import reachable

SOURCES = ["pyproject.toml", "MANIFEST.in", "LICENSE", "CITATION.cff", "docs/library.md", "mkor_core", "baselines"]
LOOP = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
rows = torch.randn(8, 4)
exec({before!r})
loss = model(rows).square().mean()
exec({after!r})
import baselines
import mkor_core
print(preconditioner.layers, mkor_core.__version__, mkor_core.__file__)
"""


def snippet(page: str) -> str:
    """Return the five lines of a page, its first example."""
    found, *_ = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, made from a copy of their sources: a build writes beside them."""
    folder = tmp_path_factory.mktemp("library")
    for name in SOURCES:
        (folder / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_something.py").touch()
    code = "from setuptools import build_meta as made; made.build_wheel('dist'); made.build_sdist('dist')"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((folder / "dist").glob("*.whl")), next((folder / "dist").glob("*.tar.gz"))


def test_the_wheel_needs_torch_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    needs = [Requirement(line) for line in metadata.get_all("Requires-Dist") or []]
    assert [str(need) for need in needs if need.marker is None] == ["torch>=2.6"]
    assert all("extra" in str(need.marker) for need in needs if need.marker is not None)
    assert metadata["Version"] == mkor_core.__version__
    links = [link.partition(", ")[2] for link in metadata.get_all("Project-URL") or []]
    assert links == ["https://arxiv.org/abs/2306.01685", "https://github.com/Mohammad-Mozaffari/mkor"]


def test_the_archives_hold_the_typed_packages_and_no_tests(built):
    with zipfile.ZipFile(built[0]) as wheel, tarfile.open(built[1]) as sdist:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        sources = {name.partition("/")[2] for name in sdist.getnames()}
    files = {
        path.relative_to(ROOT).as_posix()
        for folder in ("mkor_core", "baselines")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    files = {file for file in files if "__pycache__" not in file}
    assert {"mkor_core/py.typed", "mkor_core/VERSION", "baselines/py.typed"} <= files
    assert packed == files
    assert files | {"pyproject.toml", "LICENSE", "CITATION.cff", "docs/library.md"} <= sources
    assert not [name for name in sources if name.startswith("tests")]


def test_the_five_lines_run_where_only_torch_is_installed(built, tmp_path):
    """The new process sees the wheel and the packages that torch's metadata names, and nothing else."""
    site = tmp_path / "site"
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(site)
    for file in needed_files("torch"):
        if not (site / file.name).exists():
            (site / file.name).symlink_to(file)
    before, after = snippet("README.md").split("loss.backward()")
    code = f"import sys; sys.path.append({str(site)!r})" + LOOP.format(before=before, after="loss.backward()" + after)
    done = subprocess.run([sys.executable, "-ISc", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["('0',", "'2')", mkor_core.__version__, str(site / "mkor_core" / "__init__.py")]


def needed_files(name: str) -> set[Path]:
    """Return the top-level folders and modules of an installed package and of all that it needs."""
    waiting, packages = [name], set[str]()
    while waiting:
        package = waiting.pop()
        if package not in packages:
            packages.add(package)
            needs = [Requirement(line) for line in requires(package) or []]
            waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return {
        Path(str(distribution(package).locate_file(file.parts[0])))
        for package in packages
        for file in distribution(package).files or []
        if file.parts[0] not in ("..", "__pycache__")
    }


def test_the_front_pages_show_the_same_lines():
    assert snippet("README.md") == snippet("docs/library.md")


def test_the_page_names_the_files_that_need_more_than_torch():
    """Those that import a package of their own, directly or through another file."""
    within = ["mkor_core", "baselines"]
    page = (ROOT / "docs" / "library.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| (\w+) \|$", page, re.MULTILINE)
    stated = {(name, package) for names, package in rows for name in re.findall(r"`(\w+)`", names)}
    found = set()
    for file in (ROOT / "baselines").rglob("*.py"):
        for used in reachable([file], within, stop_at=[ROOT / "baselines" / "__init__.py"]):
            imported = re.findall(
                r"^\s*(?:from|import) (timm|pytorch_optimizer|singd)\b", used.read_text(), re.MULTILINE
            )
            found |= {(file.stem, package) for package in imported}
    assert stated == {(name, package) for name, package in found if not name.startswith("_")}
