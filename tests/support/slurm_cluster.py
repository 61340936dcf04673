"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd in a folder of their own.

``python -m tests.support.slurm_cluster FOLDER`` starts one, prints the environment that makes ``sbatch`` find it, and
stops it at the end of its input (Ctrl-D).  Needs Debian's ``slurm-wlm`` and ``munge``, and root, as slurmd does.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scontrol", "scancel", "sinfo")
#: Seconds that daemons have to come up, and to end.
PATIENCE: Final = 30

_CONFIGURATION: Final = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
JobRequeue=0
KillWait=10
InactiveLimit=0
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={megabytes} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why no Slurm can be started here, or None where it can."""
    path = _search_path()
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd wants root"


@contextmanager
def cluster(folder: Path, cores: int = 2) -> Iterator[Mapping[str, str]]:
    """Yield the environment variables that point Slurm's commands to a cluster of one node, and stop it afterwards.

    folder: an empty one that only its owner may write to; holds the daemons' state and logs.
    Raises RuntimeError, with the last lines of the logs, where the node does not come up.
    """
    folder.chmod(0o755)
    for name in ("bin", "state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            folder=folder,
            host=host,
            user="root",
            cores=min(cores, os.cpu_count() or 1),
            megabytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 // 2,
            controller_port=_free_port(),
            node_port=_free_port(),
        )
    )
    # Snakemake's job steps drop Slurm's variables, and commands inside would look for the system's configuration.
    shims = folder / "bin"
    for name in ("squeue", "srun", "scontrol"):
        (shims / name).write_text(
            f'#!/bin/sh\nSLURM_CONF={configuration} exec {shutil.which(name, path=_search_path())} "$@"\n'
        )
        (shims / name).chmod(0o755)
    environment = {"SLURM_CONF": str(configuration), "PATH": f"{shims}{os.pathsep}{_search_path()}"}
    munge = [f"--{option}={folder}/munge.{option.partition('-')[0]}" for option in ("socket", "pid-file", "log-file")]
    daemons = (
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--seed-file={folder}/munge.seed", *munge],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", host],
    )
    with ExitStack() as stack:
        for command in daemons:
            stack.enter_context(_daemon(command, folder, environment))
            if command[0] == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), folder, "munged")
        _wait(lambda: _state(environment) == "idle", folder, "the node")
        yield environment


@contextmanager
def _daemon(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a daemon in the foreground of a child process, its output in ``<name>.log``."""
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _state(environment: Mapping[str, str]) -> str:
    """The node's state, or nothing as long as nobody answers."""
    command = ["sinfo", "--noheader", "--format=%T"]
    asked = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _wait(ready, folder: Path, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            logs = "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in sorted(folder.glob("*.log")))
            raise RuntimeError(f"{what} did not come up within {PATIENCE} s\n{logs}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _search_path() -> str:
    """PATH with the folders of daemons, which a user's own often lacks."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def main() -> int:
    """Start a cluster in the folder of the command line until the input ends."""
    if (reason := missing()) is not None:
        print(reason, file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with cluster(folder) as environment:
        for name, value in environment.items():
            print(f"export {name}={value}", flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
