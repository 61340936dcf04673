"""Which rank of how many this process is, as its launcher tells it in the environment.  Imports no torch."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workflow.bench.support.config import ConfigError

# By torchrun (or a wrapper that speaks its language), by MPICH's mpiexec and the sites' built on it, by Open MPI's, by
# srun. A job script of Slurm has SLURM_PROCID too; only inside a step is there a number of tasks.
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
_HERE: Final = "127.0.0.1"
_PORTS: Final = (20000, 10000)  # the first, and how many, to derive one from a job's id
_PORT: Final = 29500


class MeetingError(ConfigError):
    """A process that does not find the others: each says so for itself, since rank 0 may not be there."""


@dataclass(frozen=True)
class Place:
    """A process among those that train together; by default it is alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Its number on its machine, which chooses its GPU."""
    host: str = _HERE
    """Where rank 0 listens."""
    port: int = _PORT
    has_store: bool = False
    """Whether torchrun listens there already, in rank 0's place."""
    attempt: str = "0"
    """Tells a start of the same processes under the same torchrun from the one before it."""


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """Return this process's place.

    Rank, number of ranks and rank on the machine come from torchrun, an mpiexec (PMI, PALS, Open MPI) or srun;
    ``MASTER_ADDR`` and ``MASTER_PORT`` from the same, or else the first host of the job and a port made of its id.
    Raises `ConfigError` where they contradict each other or one is missing.
    """
    size_name, size = _number(environment, _SIZE, least=1)
    if size is None or size == 1:
        name, rank = _number(environment, _RANK, least=0)
        # srun's rank without its step is that of a job script, which is alone.
        if size is None and rank is not None and name != "SLURM_PROCID":
            raise ConfigError(f"{name} = {rank}: of how many? WORLD_SIZE is not set")
        return Place()
    name, rank = _number(environment, _RANK, least=0)
    if rank is None:
        raise ConfigError(f"{size_name} = {size}: which of them is this process? RANK is not set")
    if rank >= size:
        raise ConfigError(f"{name} = {rank}: must be less than {size_name} = {size}")
    local_rank = _number(environment, _LOCAL_RANK, least=0)[1]
    if local_rank is None:
        raise ConfigError(f"{size_name} = {size}: which rank on its machine is this process? LOCAL_RANK is not set")
    return Place(
        rank=rank,
        size=size,
        local_rank=local_rank,
        host=_host(environment, size),
        port=_port(environment),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def prepare(place: Place) -> None:
    """Set what torch reads of the environment as it is imported: of a lost rank we tell in one line, not in stacks."""
    if place.size > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _number(environment: Mapping[str, str], names: tuple[str, ...], *, least: int) -> tuple[str, int | None]:
    """Return the first of ``names`` that is set, and its value."""
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
    if environment.get("SLURM_STEP_NODELIST"):
        return _first_host(environment["SLURM_STEP_NODELIST"])
    if _number(environment, _LOCAL_SIZE, least=1)[1] == size:
        return _HERE
    raise ConfigError("MASTER_ADDR is not set: it must name the host of rank 0 (on one machine: 127.0.0.1)")


def _first_host(nodes: str) -> str:
    """Return ``node03`` for ``node[03-08,11],other``."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if found is None:
        raise ConfigError(f"SLURM_STEP_NODELIST = '{nodes}': no host in it; set MASTER_ADDR")
    return "".join(part or "" for part in found.groups())


def _port(environment: Mapping[str, str]) -> int:
    name, port = _number(environment, ("MASTER_PORT",), least=1)
    if port is not None:
        if port > 65535:
            raise ConfigError(f"{name} = {port}: must be at most 65535")
        return port
    job = ".".join(environment[key] for key in _JOB if key in environment)
    first, number = _PORTS
    return first + zlib.crc32(job.encode()) % number if job else _PORT
