"""The rank of a process, read from the environments of several launchers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.training.launcher import LaunchedRank, launched_rank


def placed(rank: str, size: str, local_rank: str, **more: str) -> dict[str, str]:
    """Return the environment of rank 5 of 8, the second one on its machine, by the names of a launcher's variables."""
    return {rank: "5", size: "8", local_rank: "1", "MASTER_PORT": "1234", **more}


MASTER = {"MASTER_ADDR": "node7"}
RESTARTED = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
TORCHRUN = placed("RANK", "WORLD_SIZE", "LOCAL_RANK", **MASTER, **RESTARTED)
MPIEXEC = placed("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", **MASTER)
PALS = placed("PALS_RANKID", "WORLD_SIZE", "PALS_LOCAL_RANKID", **MASTER)
OPEN_MPI = placed(*(f"OMPI_COMM_WORLD_{word}" for word in ("RANK", "SIZE", "LOCAL_RANK")), **MASTER)
SRUN = placed("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", SLURM_STEP_NODELIST="node[7-8]")


@pytest.mark.parametrize("environment", [MPIEXEC, PALS, OPEN_MPI, SRUN])
def test_every_launcher_gives_the_same_place(environment: dict[str, str]):
    assert launched_rank(environment) == LaunchedRank(rank=5, size=8, local_rank=1, host="node7", port=1234)


def test_torchrun_has_a_store_and_may_restart():
    assert launched_rank(TORCHRUN) == LaunchedRank(5, 8, 1, "node7", 1234, has_store=True, attempt="2")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"},
        # A Slurm job script with eight tasks that does not call srun.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"},
    ],
)
def test_a_process_without_a_launcher_is_alone(environment: dict[str, str]):
    assert launched_rank(environment) == LaunchedRank()


@pytest.mark.parametrize(
    ("nodes", "host"), [("node[03-08,11],other", "node03"), ("a1,b[2-3]", "a1"), ("n[5]-ib", "n5-ib"), ("solo", "solo")]
)
def test_the_first_host_of_a_slurm_step_is_used(nodes: str, host: str):
    assert launched_rank({**SRUN, "SLURM_STEP_NODELIST": nodes}).host == host


def test_unset_host_and_port_come_from_the_job(tmp_path: Path):
    nodes = tmp_path / "nodes"
    nodes.write_text("x1.site\nx2.site\n")
    bare = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_LOCAL_RANK": "0", "PBS_NODEFILE": str(nodes), "PBS_JOBID": "12.pbs"}
    derived = launched_rank(bare)
    assert derived.host == "x1.site"
    assert 20000 <= derived.port < 30000
    assert launched_rank(bare) == derived  # on every rank
    assert launched_rank({**bare, "PBS_JOBID": "13.pbs"}).port != derived.port
    on_one_machine = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "2"}
    assert launched_rank(on_one_machine) == LaunchedRank(0, 2, 0, "127.0.0.1", 29500)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "8"}, "RANK = 8: must be less than WORLD_SIZE = 8"),
        ({"RANK": "-1"}, "RANK = '-1': must be a whole number"),
        ({"RANK": "one"}, "RANK = 'one': must be a whole number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE = '0': must be a whole number, at least 1"),
        ({"WORLD_SIZE": None}, "RANK = 5: WORLD_SIZE is not set"),
        ({"RANK": None}, "WORLD_SIZE = 8: RANK is not set"),
        ({"LOCAL_RANK": None}, "LOCAL_RANK is not set"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT = 99999: must be at most 65535"),
    ],
)
def test_a_wrong_variable_is_named(changes: dict[str, Any], message: str):
    environment = {key: value for key, value in {**TORCHRUN, **changes}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        launched_rank(environment)


def test_launcher_and_stop_signals_import_no_torch():
    """They are needed before torch is imported, which takes seconds."""
    code = "import sys; from workflow.bench.training import launcher, stop_signals; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
