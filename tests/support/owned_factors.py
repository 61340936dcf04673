"""The step that ranks take in the test of DP-KFAC; spawned processes import this module by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from baselines import build
from mkor_core.ranks import comm

OPTIONS: dict[str, Any] = {"factor_decay": 0.7, "damping": 0.1, "kl_clip": None}
RATE, EXAMPLES = 0.1, 8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def batch(rank: int, world: int) -> torch.Tensor:
    inputs = torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return inputs.chunk(world)[rank]


def step(rank: int, world: int, folder: str) -> None:
    """Take a step and save the weights, the factors and the bytes sent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(stepped(rank, world), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def stepped(rank: int, world: int) -> dict[str, Any]:
    """Return what a rank has after a step.

    The wrapped model ends with this function, before the group. If it were the last to hold the group, it would wait
    for gloo's threads while it holds Python's lock, which they may need.
    """
    model = network()
    wrapped = DistributedDataParallel(model)
    optimizer, _ = build("dp_kfac", wrapped, {"lr": RATE, "momentum": 0.0, **OPTIONS})
    comm.reset_bytes_sent()
    wrapped(batch(rank, world)).square().mean().backward()
    optimizer.step()
    return {
        "weights": [parameter.detach() for parameter in model.parameters()],
        "layers": optimizer.state_dict()["dp_kfac"]["layers"],
        "bytes": comm.bytes_sent(),
    }
