"""This process's rank among those that train together, read from the launcher's environment variables.

Imports no torch.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workflow.bench.support.config import ConfigError

# In this order: torchrun (or a wrapper that sets the same), MPICH's mpiexec and variants of it, Open MPI, srun.
# A Slurm job script has SLURM_PROCID too, but the number of tasks is set only inside a step of srun.
_RANK: Final = ("RANK", "PMI_RANK", "PALS_RANKID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_SIZE: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_RANK: Final = (
    "LOCAL_RANK",
    "PMI_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
_LOCAL_SIZE: Final = ("LOCAL_WORLD_SIZE", "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
_JOB: Final = ("PBS_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PALS_APID")
_LOCALHOST: Final = "127.0.0.1"
_JOB_PORTS: Final = range(20000, 30000)
"""Ports from which one is chosen by the job's id."""
_DEFAULT_PORT: Final = 29500


class MeetingError(ConfigError):
    """A process did not find the others. Every rank prints this error, because rank 0 may be the missing one."""


@dataclass(frozen=True)
class LaunchedRank:
    """A process among those that train together; by default it is the only one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Number on its machine, which selects its GPU."""
    host: str = _LOCALHOST
    """Host of rank 0."""
    port: int = _DEFAULT_PORT
    has_store: bool = False
    """Whether torchrun already listens at ``host`` and ``port``, so that rank 0 need not."""
    attempt: str = "0"
    """Distinguishes restarts of the same processes by the same torchrun."""


def launched_rank(environment: Mapping[str, str] = os.environ) -> LaunchedRank:
    """Return what this process was launched as.

    torchrun, mpiexec (PMI, PALS, Open MPI) or srun sets rank, number of ranks and rank on the machine. If
    ``MASTER_ADDR`` and ``MASTER_PORT`` are not set, the first host of the job and a port derived from its id are used.

    Raises:
        ConfigError: a variable is missing, or two contradict each other.
    """
    size_name, size = _number(environment, _SIZE, least=1)
    if size is None or size == 1:
        name, rank = _number(environment, _RANK, least=0)
        # SLURM_PROCID without a step belongs to a job script, which is a single process.
        if size is None and rank is not None and name != "SLURM_PROCID":
            raise ConfigError(f"{name} = {rank}: WORLD_SIZE is not set; it must give the number of ranks")
        return LaunchedRank()
    name, rank = _number(environment, _RANK, least=0)
    if rank is None:
        raise ConfigError(f"{size_name} = {size}: RANK is not set; it must give the rank of this process")
    if rank >= size:
        raise ConfigError(f"{name} = {rank}: must be less than {size_name} = {size}")
    local_rank = _number(environment, _LOCAL_RANK, least=0)[1]
    if local_rank is None:
        raise ConfigError(f"{size_name} = {size}: LOCAL_RANK is not set; it must give the rank on its machine")
    return LaunchedRank(
        rank=rank,
        size=size,
        local_rank=local_rank,
        host=_host(environment, size),
        port=_port(environment),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def prepare(place: LaunchedRank, *, deterministic: bool = False) -> None:
    """Set environment variables that torch and CUDA read when they are loaded.

    A lost rank is then one line, not stack traces. deterministic: give cuBLAS a workspace that makes its sums repeat.
    """
    if deterministic:
        # One of the two values that torch accepts; a user may have chosen the other.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if place.size > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _number(environment: Mapping[str, str], names: tuple[str, ...], *, least: int) -> tuple[str, int | None]:
    """Return the first of ``names`` that is set, and its value; the first name and None if none is set."""
    for name in names:
        if name in environment:
            text = environment[name]
            if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
                raise ConfigError(f"{name} = '{text}': must be a whole number, at least {least}")
            return name, int(text)
    return names[0], None


def _host(environment: Mapping[str, str], size: int) -> str:
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    nodes = environment.get("PBS_NODEFILE")
    if nodes and Path(nodes).is_file():
        return Path(nodes).read_text().split()[0]
    if nodes := environment.get("SLURM_STEP_NODELIST"):
        # Slurm compresses the list: the first host of node[03-08,11],other is node03.
        match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
        if match is None:
            raise ConfigError(f"SLURM_STEP_NODELIST = '{nodes}': contains no host; set MASTER_ADDR")
        return "".join(part or "" for part in match.groups())
    if _number(environment, _LOCAL_SIZE, least=1)[1] == size:
        return _LOCALHOST
    raise ConfigError("MASTER_ADDR is not set: it must name the host of rank 0 (on one machine: 127.0.0.1)")


def _port(environment: Mapping[str, str]) -> int:
    name, port = _number(environment, ("MASTER_PORT",), least=1)
    if port is not None:
        if port > 65535:
            raise ConfigError(f"{name} = {port}: must be at most 65535")
        return port
    job = ".".join(environment[key] for key in _JOB if key in environment)
    # All ranks of a job compute the same port; two jobs on one machine rarely do.
    return _JOB_PORTS[zlib.crc32(job.encode()) % len(_JOB_PORTS)] if job else _DEFAULT_PORT
