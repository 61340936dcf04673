"""Pin the direct dependencies of pyproject.toml and all packages they need, in requirements.lock and environment.yml.

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
dependencies:
  - python>=3.11
  - pip
  - pip:
"""


def direct_requirements() -> list[str]:
    """Return the pins in pyproject.toml of the harness and of the development tools."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [*extras["bench"], *extras["dev"]]


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


def closure(requirements: list[str]) -> dict[str, str]:
    """Return ``{name: version}`` of the requirements and of all packages that they need, as installed."""
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
    return pins


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    os.replace(file.name, path)


def main() -> None:
    """Write both files."""
    pins = [f"{name}=={version}" for name, version in closure(direct_requirements()).items()]
    pins.sort(key=str.lower)
    write(ROOT / "requirements.lock", LOCK_HEADER + "".join(f"{pin}\n" for pin in pins))
    write(ROOT / "environment.yml", ENVIRONMENT_HEADER + "".join(f"      - {pin}\n" for pin in pins))


if __name__ == "__main__":
    main()
