"""Pin the direct dependencies of pyproject.toml and all packages they need, in three files.

requirements.lock and environment.yml, for pip and for conda, have the development tools too. The environment of the
workflow's rules, workflow/envs/runtime.yaml, does without them.

``make lock`` runs it in ``.venv`` after installing the direct dependencies. Other packages that were installed there by
hand are not pinned.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent

LOCK_HEADER = """\
# Every package of the harness, pinned. Made by `make lock` from the direct dependencies in pyproject.toml.
# PyTorch's pin has no build label, so a CPU build and a CUDA build both satisfy it. A CUDA build pins its own CUDA
# packages.
"""

ENVIRONMENT_HEADER = """\
# The pins of requirements.lock for conda: `conda env create -f environment.yml`. Made by `make lock`.
name: mkor-harness
"""
RUNTIME_HEADER = """\
# What the workflow's rules need, for `snakemake --software-deployment-method conda`. Made by `make lock`.
"""
DEPENDENCIES = """\
dependencies:
  - python>=3.11
  - pip
  - pip:
"""


def direct_requirements(*names: str) -> list[str]:
    """Return the pins of extras in pyproject.toml: ``bench``, and ``dev`` for the development tools."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [line for name in names for line in extras[name]]


def needed_by(name: str, extras: set[str]) -> Iterator[Requirement]:
    """Yield the requirements of an installed package, without those of one platform's build of PyTorch."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is None:
            applies = True
        elif name == "torch":  # its CUDA packages, which it pins itself and not every platform has
            applies = False
        else:
            applies = any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""})
        if applies:
            yield requirement


def closure(requirements: list[str]) -> list[str]:
    """Return the pins of the requirements and of all packages that they need, as installed."""
    pins: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        package = distribution(requirement.name)
        name, extras = package.metadata["Name"], frozenset(requirement.extras)
        if (name, extras) not in seen:  # a package may be required both with and without an extra
            seen.add((name, extras))
            pins[name] = Version(package.version).public
            waiting.extend(needed_by(name, set(extras)))
    return sorted((f"{name}=={version}" for name, version in pins.items()), key=str.lower)


def environment(pins: list[str]) -> str:
    """Return the dependencies of a conda environment."""
    return DEPENDENCIES + "".join(f"      - {pin}\n" for pin in pins)


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    os.replace(file.name, path)


def main() -> None:
    """Write the files."""
    pins = closure(direct_requirements("bench", "dev"))
    write(ROOT / "requirements.lock", LOCK_HEADER + "".join(f"{pin}\n" for pin in pins))
    write(ROOT / "environment.yml", ENVIRONMENT_HEADER + environment(pins))
    runtime = environment(closure(direct_requirements("bench")))
    write(ROOT / "workflow" / "envs" / "runtime.yaml", RUNTIME_HEADER + runtime)


if __name__ == "__main__":
    main()
