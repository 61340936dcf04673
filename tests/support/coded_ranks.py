"""The training that the ranks of tests/mkor_core/test_codec.py run; spawned processes import this module by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from baselines import KAISA, HyLo
from mkor_core import MKOR, Codec, Method, Preconditioner
from mkor_core.ranks import comm

STEPS = 12
METHODS: Mapping[str, tuple[Method, bool | None]] = {
    "kaisa": (KAISA(factor_update_period=2, inverse_update_period=4), None),
    "kaisa inverse half": (
        KAISA(factor_update_period=2, inverse_update_period=4, compute_method="inverse", grad_worker_fraction=0.5),
        None,
    ),
    "kaisa mem": (KAISA(factor_update_period=2, inverse_update_period=4, grad_worker_fraction=0.25), None),
    "hylo": (HyLo(update_period=2, sample_fraction=0.4), None),
    "mkor owners": (MKOR(), True),
}
"""Methods, and whether their layers have owners."""
CODECS = {"plain": None, "8 bits": Codec(), "8 bits, drop": Codec(drop=0.02)}


class Training:
    """A small network in training on all ranks."""

    def __init__(self, name: str, codec: Codec | None) -> None:
        method, owners = METHODS[name]
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4)).double()
        self.network = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.preconditioner = Preconditioner(self.network, method, codec=codec, owners=owners).attach(self.optimizer)

    def run(self, first: int, last: int, poisoned: int | None = None) -> float:
        """Train some steps; in the poisoned one, an input of rank 1 is infinite. Return the last loss of this rank."""
        loss = torch.zeros(())
        for step in range(first, last):
            inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())).double()
            targets = inputs[:, :4].sin()
            self.optimizer.zero_grad()
            if step == poisoned and dist.get_rank() == 1:
                self.model[4].register_forward_pre_hook(_infinite)
            loss = (self.network(inputs) - targets).square().mean()
            loss.backward()
            if step == poisoned:
                for parameter in self.model.parameters():  # the statistics alone are infinite
                    parameter.grad = torch.ones_like(parameter)
            self.optimizer.step()
        return loss.item()

    @property
    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def _infinite(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    return inputs[0].index_fill(0, torch.tensor([3]), torch.inf)


def train(name: str, codec: Codec | None) -> dict[str, Any]:
    """Return the weights, the last loss, and the bytes sent."""
    training = Training(name, codec)
    start = training.weights
    comm.reset_bytes_sent()
    loss = training.run(0, STEPS)
    return {"start": start, "weights": training.weights, "loss": loss, "bytes": comm.bytes_sent()}


def resumed(name: str, codec: Codec) -> list[Tensor]:
    """Return the weights after a training that a new process would go on with from the middle."""
    first, second = Training(name, codec), Training(name, codec)
    first.run(0, STEPS // 2 - 1)
    first.preconditioner.consolidate()
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.run(STEPS // 2 - 1, STEPS)
    return second.weights


def poisoned(codec: Codec | None) -> tuple[list[Tensor], bool]:
    """Return the weights after HyLo has got infinite rows from rank 1, and whether the head kept its rows."""
    training = Training("hylo", codec)
    training.run(0, 2)
    before = training.preconditioner.state_dict()["layers"]["4"]["right"].clone()
    training.run(2, 3, poisoned=2)
    kept = torch.equal(training.preconditioner.state_dict()["layers"]["4"]["right"], before)
    return training.weights, kept


def run(rank: int, world: int, folder: str) -> None:
    """Train on ``world`` gloo ranks, and write each rank's results to ``<folder>/<rank>.pt``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world)
    results: dict[str, Any] = {
        f"{name}, {code}": train(name, codec) for name in METHODS for code, codec in CODECS.items()
    }
    for name in ("kaisa mem", "hylo"):
        results[f"{name}, resumed"] = resumed(name, Codec(drop=0.02))
    results["poisoned"] = {code: poisoned(codec) for code, codec in CODECS.items()}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
