"""pyproject.toml, requirements.lock, environment.yml and the installed packages say the same versions."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions, requires, version

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from workflow.bench.support.config import ROOT


def pins(lines: list[str]) -> dict[str, str]:
    """Return ``{name: version}`` of lines that must each be ``name==version`` and no name twice."""
    matches = [re.fullmatch(r"([A-Za-z0-9._-]+)==([^;+\s]+)", line) for line in lines]
    loose = [line for line, match in zip(lines, matches, strict=True) if match is None]
    assert not loose, f"not exact pins without a build label: {loose}"
    found = [(canonicalize_name(match[1]), match[2]) for match in matches if match is not None]
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), "a package is pinned twice"
    return dict(found)


def lock() -> dict[str, str]:
    """Return requirements.lock's pins."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return pins([line for line in lines if line and not line.startswith("#")])


def project() -> dict:
    """Return pyproject.toml's ``project`` table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def direct() -> dict[str, str]:
    """Return the pins of what the pipeline and its developers use directly."""
    extras = project()["optional-dependencies"]
    return pins([*extras["bench"], *extras["dev"]])


def test_direct_dependencies_are_pinned_as_in_the_lock():
    """Each of pyproject.toml's pins stands in the lock with the same version."""
    locked = lock()
    assert direct() == {name: locked.get(name) for name in direct()}


@pytest.mark.parametrize("folder", [".ci", "mkor_core", "baselines", "workflow", "benchmarks", "docs", "tests"])
def test_every_import_is_a_direct_dependency(folder):
    """What the code imports must not be there by another package's grace alone."""
    imported = set()
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                imported.add(node.module.partition(".")[0])
    outside = {name for name in imported - set(sys.stdlib_module_names) if not (ROOT / name).is_dir()}
    # The extra is pinned apart: it is not in the lock, and only code that its users choose imports it.
    outside -= pins(project()["optional-dependencies"]["kernels"]).keys()
    distributions = packages_distributions()
    assert {name: distributions.get(name) for name in outside if not provided(name, distributions, set(direct()))} == {}


def provided(module: str, distributions: Mapping[str, list[str]], direct: set[str]) -> bool:
    """Tell whether one of the packages that hold a module is a direct dependency."""
    return any(canonicalize_name(name) in direct for name in distributions.get(module, []))


def test_the_lock_holds_what_a_package_needs_with_the_extras_that_another_asks_for():
    """Lightning asks for fsspec[http], which torch asks for bare."""
    locked = lock()
    asked = [Requirement(line) for name in locked if name != "torch" for line in requires(name) or []]
    asked = [(need.name, extra) for need in asked if applies(need, "") for extra in need.extras]
    assert ("fsspec", "http") in asked
    needs = {(name, extra): [Requirement(line) for line in requires(name) or []] for name, extra in asked}
    brought = {need.name for (_, extra), listed in needs.items() for need in listed if applies(need, extra)}
    assert {canonicalize_name(name) for name in brought} <= set(locked)


def applies(requirement: Requirement, extra: str) -> bool:
    """Tell whether a package asks for another here, with one of its extras."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_every_extra_is_pinned():
    """The lock leaves the Slurm executor out; pyproject.toml still says which one."""
    for lines in project()["optional-dependencies"].values():
        assert pins(lines)


def test_conda_environment_holds_the_same_pins():
    """environment.yml: one pip section with exactly the lock's pins, and the project's Python."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    by_pip = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    assert [pins(lines) for lines in by_pip] == [lock()]
    assert Requirement("python" + project()["requires-python"]) in {
        Requirement(entry) for entry in dependencies if isinstance(entry, str)
    }


def test_installed_packages_are_the_locked_ones():
    """A build label such as +cpu is the machine's own; everything else is the lock's."""
    locked = lock()
    assert {name: Version(version(name)).public for name in locked} == locked


def test_the_recipe_for_a_cpu_build_names_the_pinned_torch_and_torchvision_together():
    page = ROOT / "docs" / "training_loops.md"
    (recipe,) = re.findall(r"pip install (torch==.*) --index-url", page.read_text())
    assert pins(recipe.split()) == {name: lock()[name] for name in ("torch", "torchvision")}
