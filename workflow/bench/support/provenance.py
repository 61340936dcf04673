"""Where a number comes from: machine, code, packages.  Imports no torch."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from workflow.bench.support.config import ROOT, ConfigError, shown_path
from workflow.bench.support.files import write_json
from workflow.bench.support.source_code import code_fingerprint

#: The hardware of a tier that computes on a GPU, planned on a machine that has none.
NO_GPU: Final = "no-gpu"

PACKAGES: Final = (
    "torch",
    "torchvision",
    "transformers",
    "tokenizers",
    "timm",
    "torchmetrics",
    "pytorch_optimizer",
    "singd",
    "scikit-learn",
    "scipy",
    "numpy",
    "pandas",
    "snakemake",
)


def hardware_slug(results: Path, device: str) -> str:
    """Return this machine's name in ``[a-z0-9-]+``: its GPU's for the device ``cuda``, else its CPU's.

    The name is kept in the file ``hardware`` of the results folder from the first call on, so that it does not
    change while results gather under it.  Where there is no GPU it is `NO_GPU`, and nothing is kept: that much is
    enough to plan.  Raises `ConfigError` where the folder is unwritable.
    """
    file = results / "hardware"
    try:
        known = json.loads(file.read_text()) if file.is_file() else {}
        if device not in known:
            if device == "cuda" and not gpu_names():
                return NO_GPU
            known[device] = _gpu_slug() if device == "cuda" else _cpu_slug()
            write_json(file, known)
        return str(known[device])
    except OSError as problem:
        raise ConfigError(
            f"{shown_path(file)}: cannot be used: {problem.strerror}; give a writable folder as 'results'"
        ) from None
    except ValueError as problem:
        raise ConfigError(f"{shown_path(file)}: is no valid JSON: {problem}; delete it") from None


def _gpu_slug() -> str:
    gpus = gpu_names()
    return _slug(f"{len(gpus)}x {gpus[0]}" if len(gpus) > 1 else gpus[0])


def _cpu_slug() -> str:
    return _slug(f"{cpu_name()} {os.cpu_count()} cores")


def _slug(name: str) -> str:
    trade_marks = re.sub(r"\((r|tm|c)\)|\bcpu\b|\bprocessor\b|@.*?ghz", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", trade_marks).strip("-") or "unknown"


@cache
def cpu_name() -> str:
    """Return the CPU's model name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


@cache
def gpu_names() -> tuple[str, ...]:
    """Return the names of this machine's NVIDIA GPUs, as their driver tells them."""
    return tuple(line.split(", ")[0] for line in _nvidia_smi("name"))


def _nvidia_smi(query: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    called = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return called.stdout.strip().splitlines() if called.returncode == 0 else []


def git_state(root: Path = ROOT) -> tuple[str | None, bool | None]:
    """Return the commit, and whether tracked files differ from it; (None, None) outside a git checkout."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, changes != ""


def _git(root: Path, *arguments: str) -> str | None:
    try:
        called = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return called.stdout.strip() if called.returncode == 0 else None


@cache
def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that numbers depend on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


@cache
def machine() -> dict[str, Any]:
    """Return this machine's hardware: CPU, cores, memory in bytes, GPUs with driver and memory."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _nvidia_smi("name,driver_version,memory.total"),
        "system": platform.platform(),
    }


def collect(specs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the provenance part of a run.json; ``specs`` as in `code_fingerprint`."""
    return {"code_fingerprint": code_fingerprint(specs), **_of_process()}


@cache
def _of_process() -> dict[str, Any]:
    """Return what does not change while a process lives; later edits of its files do not matter to it."""
    commit, dirty = git_state()
    return {
        "git_commit": commit,
        "git_dirty": dirty,
        "python": platform.python_version(),
        "packages": package_versions(),
        "machine": machine(),
    }
