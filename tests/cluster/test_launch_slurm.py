"""The Slurm profile's launch script, with a stand-in for srun that shows GPUs to tasks as Slurm does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from workflow.bench.support.config import ROOT
from workflow.bench.training.launcher import launched_rank

LAUNCH = ROOT / "profiles" / "slurm" / "launch"

SRUN = """#!/bin/bash
# Starts tasks one after the other. --gpus-per-task hides from a task the GPUs of the others, by cgroup.
hidden=no visible=
while [[ $1 == --* ]]; do
    case $1 in
        --nodes=*) nodes=${1#*=} ;;
        --ntasks=*) tasks=${1#*=} ;;
        --gpus-per-task=*) hidden=yes ;;
        --gpus-per-node=*) visible=$(seq -s, 0 $((${1#*=} - 1))) ;;
    esac
    shift
done
each=$((tasks / nodes))
for ((task = 0; task < tasks; task++)); do
    export SLURM_PROCID=$task SLURM_STEP_NUM_TASKS=$tasks SLURM_LOCALID=$((task % each))
    export SLURM_STEP_NODELIST="n[1-$nodes]"
    if [ "$hidden" = yes ]; then visible=0; fi
    CUDA_VISIBLE_DEVICES=$visible "$@" || exit
done
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a job script on a cluster whose commands are stand-ins."""
    for name, text in (("srun", SRUN), ("squeue", "#!/bin/sh\necho 1:00:00\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


def launched(environment: dict[str, str]) -> list[dict[str, str]]:
    """Return the variables of the eight ranks that the script starts on two nodes, in the order of ranks."""
    options = "--nodes 2 --ranks 8 --cores 32 --minutes 60 --margin 12"
    command = f"{LAUNCH} {options} sh -c 'env; echo; echo options: $@' tell"
    said = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.count("options: --minutes 48.000\n") == 8
    ranks = said.split("options: ")[:-1]
    return [dict(line.split("=", 1) for line in rank.splitlines() if "=" in line) for rank in ranks]


@pytest.mark.parametrize("name", ["SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"])
def test_every_rank_sees_all_gpus_of_its_node_and_has_a_number_of_its_own(environment: dict[str, str], name: str):
    """Truth: NCCL must see all GPUs of a node to use the links between them (NVIDIA/nccl, issue 1066)."""
    ranks = launched({**environment, name: "4"})
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in ranks] == ["0,1,2,3"] * 8
    assert [(launched_rank(rank).rank, launched_rank(rank).local_rank) for rank in ranks] == [
        (rank, rank % 4) for rank in range(8)
    ]
    assert {rank["OMP_NUM_THREADS"] for rank in ranks} == {"8"}


def test_a_job_without_gpus_asks_for_none(environment: dict[str, str]):
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in launched(environment)] == [""] * 8
