"""The training that the ranks of tests/mkor_core/test_schedule.py run; spawned processes import this module by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from baselines import KAISA
from mkor_core import Codec, Preconditioner, Schedule
from mkor_core.ranks import comm

STEPS = 5
METHODS: tuple[Literal["eigen", "inverse"], ...] = ("eigen", "inverse")
BOUND = 7
"""The dimension from which one rank decomposes a factor."""
APART = Schedule(startup=0, seconds_per_number=0, everywhere_below=BOUND)
"""Each factor travels alone: a message takes no time."""
TOGETHER = Schedule(startup=10, everywhere_below=1)
"""All factors travel in one message, and each is decomposed on one rank."""
SOME = Schedule(startup=2e-7, seconds_per_number=1e-9, packing_per_number=1e-8, everywhere_below=1000)
"""Some factors travel together, and all ranks decompose all of them."""
SCHEDULES: Mapping[str, Schedule | None] = {"plain": None, "apart": APART, "together": TOGETHER, "some": SOME}


class Branched(nn.Module):
    """A network with a layer that rank 0 alone uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh())
        self.head, self.branch = nn.Linear(6, 3), nn.Linear(6, 3)
        self.double()

    def forward(self, inputs: Tensor, *, with_branch: bool) -> Tensor:
        hidden = self.body(inputs)
        outputs: Tensor = self.head(hidden)
        return outputs + self.branch(hidden) if with_branch else outputs


def train(method: Literal["eigen", "inverse"], schedule: Schedule | None, codec: Codec | None = None) -> dict[str, Any]:
    """Train; return the weights, the bytes sent, and the numbers in each all-reduce of the first step."""
    torch.manual_seed(0)
    network = DistributedDataParallel(Branched(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    kaisa = KAISA(factor_update_period=1, inverse_update_period=2, compute_method=method)
    Preconditioner(network, kaisa, schedule=schedule, codec=codec).attach(optimizer)
    comm.reset_bytes_sent()
    sizes: list[int] = []
    all_reduce = dist.all_reduce
    for step in range(STEPS):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())).double()
        optimizer.zero_grad()
        network(inputs, with_branch=dist.get_rank() == 0).square().mean().backward()
        with mock.patch.object(dist, "all_reduce", side_effect=all_reduce) as launched:
            optimizer.step()
        if step == 0:
            sizes = [call.args[0].numel() for call in launched.call_args_list]
    weights = [parameter.detach() for parameter in network.parameters()]
    return {"weights": weights, "bytes": comm.bytes_sent(), "sizes": sizes}


def run(rank: int, world: int, folder: str) -> None:
    """Train on ``world`` gloo ranks, and write each rank's results to ``<folder>/<rank>.pt``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world)
    results = {f"{method}, {name}": train(method, SCHEDULES[name]) for method in METHODS for name in SCHEDULES}
    results["coded"] = train("eigen", TOGETHER, Codec())
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
