"""The provenance of a number: machine, code and package versions. Imports no torch."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from workflow.bench.support.config import ROOT, ConfigError, check, shown_path
from workflow.bench.support.files import write_json
from workflow.bench.support.names import LONGEST_NAME
from workflow.bench.support.reading import read_json
from workflow.bench.support.source_code import code_fingerprint

_SAVED_NAMES: Final = {"type": "object", "additionalProperties": {"type": "string", "format": "hardware"}}
"""The schema of the file in which a results folder keeps this machine's names, by device."""

NO_GPU: Final = "no-gpu"
"""The hardware name in the plan of a GPU tier on a machine without a GPU."""

# Those that compute or read data: a number may change with any of them.
_PACKAGES: Final = (
    *("torch", "torchvision", "transformers", "tokenizers", "timm", "torchmetrics", "pytorch_optimizer", "singd"),
    *("scikit-learn", "scipy", "numpy", "pandas", "snakemake"),
)


def machine_name(results: Path, device: str) -> str:
    """Return this machine's name in ``[a-z0-9-]+``: the one that its results folder keeps, else its `hardware_name`.

    Raises:
        ConfigError: the file of names is damaged.
        UnreadableError: it cannot be read.
    """
    return _saved_names(results / "hardware").get(device) or hardware_name(device)


def save_machine_name(results: Path, device: str, name: str) -> None:
    """Save this machine's name in its results folder if it has none, so that it stays while results accumulate there.

    `NO_GPU` is not saved: it is enough to plan.

    Raises:
        ConfigError: the folder is not writable, or the file of names is damaged.
        UnreadableError: the file of names cannot be read.
    """
    file = results / "hardware"
    names = _saved_names(file)
    if device not in names and name != NO_GPU:
        try:
            write_json(file, {**names, device: name})
        except OSError as problem:
            must = f"cannot be written: {problem.strerror}; give a writable folder as 'results'"
            raise ConfigError(f"{shown_path(file)}: {must}") from None


def _saved_names(file: Path) -> dict[str, str]:
    """Return the names of this machine by device that a file holds; none if there is no such file."""
    try:
        names: dict[str, str] = read_json(file)
    except FileNotFoundError:
        return {}
    check(names, _SAVED_NAMES, file)
    return names


def hardware_name(device: str) -> str:
    """Return the name of this process's GPUs for the device ``cuda`` (without any: `NO_GPU`), else of its CPU."""
    if device != "cuda":
        return _slug(f"{cpu_name()} {os.cpu_count()} cores")
    gpus = gpu_names()
    if not gpus:
        return NO_GPU
    return _slug(f"{len(gpus)}x {gpus[0]}" if len(gpus) > 1 else gpus[0])


def _slug(name: str) -> str:
    # "Intel(R) Xeon(R) CPU E5-2680 @ 2.40GHz 8 cores" becomes "intel-xeon-e5-2680-8-cores".
    without_trade_marks = re.sub(r"\((r|tm|c)\)|\bcpu\b|\bprocessor\b|@.*?ghz", " ", name.lower())
    # It names folders, and stands in commands.
    slug = re.sub(r"[^a-z0-9]+", "-", without_trade_marks).strip("-")
    return slug[:LONGEST_NAME].rstrip("-") or "unknown"


@cache
def cpu_name() -> str:
    """Return the CPU's model name."""
    # `platform.processor` is empty on most Linux systems.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


class _Gpu(NamedTuple):
    """A GPU, or the MIG slice of one that a process has in its place."""

    name: str
    uuid: str
    driver: str
    memory: str
    """That of the whole GPU."""


def gpu_names() -> tuple[str, ...]:
    """Return the names of the NVIDIA GPUs that CUDA shows this process: nvidia-smi lists all of the machine."""
    return tuple(gpu.name for gpu in _visible_gpus())


@cache
def _visible_gpus() -> tuple[_Gpu, ...]:
    """Return the GPUs, or the MIG slice, that a process with this environment may use, as CUDA numbers them."""
    # From the right, since a name may contain a comma.
    rows = [line.rsplit(", ", 3) for line in _nvidia_smi("--query-gpu=name,uuid,driver_version,memory.total")]
    gpus = [_Gpu(*row) for row in rows if len(row) == 4]
    slices = _mig_slices(gpus)
    known = [*gpus, *chain.from_iterable(slices.values())]
    # CUDA shows the fastest first, nvidia-smi goes by bus: the numbers agree if a machine's GPUs are of one kind.
    chosen = gpus
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        chosen = []
        for entry in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
            # An entry is a number, or a UUID or the beginning of one.
            named = entry.strip()
            if named.isdecimal():
                found = gpus[int(named) :][:1]
            else:
                found = [gpu for gpu in known if named.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(named)]
            if len(found) != 1:
                break  # as CUDA does: it shows what comes before the first entry that names none
            chosen += found
    # A GPU in MIG mode cannot be used as a whole. A process gets at most one slice, the first, and no GPU beside it.
    used = [slices.get(gpu.uuid, [gpu])[0] for gpu in chosen]
    return tuple(next(([gpu] for gpu in used if gpu.uuid.startswith("MIG-")), used))


def _mig_slices(gpus: Sequence[_Gpu]) -> dict[str, list[_Gpu]]:
    """Return the slices of the GPUs in MIG mode by their UUID, in nvidia-smi's order."""
    slices: dict[str, list[_Gpu]] = {}
    parent: _Gpu | None = None
    for line in _nvidia_smi("--list-gpus"):
        uuid = re.search(r"\(UUID: ([^)]+)\)", line)
        profile = re.match(r"\s+MIG (\S+)", line)
        if uuid and profile and parent:
            name = f"{parent.name} MIG {profile[1]}"  # profile[1] is such as 3g.20gb
            slices.setdefault(parent.uuid, []).append(parent._replace(name=name, uuid=uuid[1]))
        elif uuid:
            parent = next((gpu for gpu in gpus if gpu.uuid == uuid[1]), None)
    return slices


def _nvidia_smi(query: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    format_options = ["--format=csv,noheader"] if query.startswith("--query") else []
    # Without a driver it ends with an error: then there are no GPUs to use.
    process = subprocess.run(["nvidia-smi", query, *format_options], capture_output=True, text=True, check=False)
    return process.stdout.rstrip().splitlines() if process.returncode == 0 else []


def git_state(root: Path = ROOT) -> tuple[str | None, bool | None]:
    """Return the commit and whether tracked files differ from it, or (None, None) outside a git checkout."""
    # A copy without git, such as an unpacked archive, has neither.
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    # Results and configurations of one's own are untracked, and change no code.
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, changes != ""


def _git(root: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return process.stdout.strip() if process.returncode == 0 else None


@cache
def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that numbers depend on."""
    versions = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Return this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def machine() -> dict[str, Any]:
    """Return this machine's CPU, cores, memory in bytes and operating system, and the GPUs that this process may use.

    A GPU's text is its name, driver and memory; of a MIG slice, the memory is that of its GPU.
    """
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "gpus": [f"{gpu.name}, {gpu.driver}, {gpu.memory}" for gpu in _visible_gpus()],
        "system": platform.platform(),
    }


def collect(specs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the provenance part of a run.json.

    specs: as in `code_fingerprint`.
    """
    return {"code_fingerprint": code_fingerprint(specs), **_of_process()}


@cache
def _of_process() -> dict[str, Any]:
    """Return the part that stays the same during a process, whose code was loaded at its start."""
    commit, dirty = git_state()
    return {
        "git_commit": commit,
        "git_dirty": dirty,
        "python": platform.python_version(),
        "packages": package_versions(),
        "machine": machine(),
    }
