"""What accelerate and Lightning save of FSDP2 on two ranks, and resume. Truth: the uninterrupted run, bit for bit."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing import assert_close

from mkor_core import torchvision_operators  # noqa: F401  (before lightning, which imports torchvision)

# isort: split
import lightning
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.utils.data import DataLoader, TensorDataset

from baselines import KAISA
from mkor_core import MKOR, Method, Preconditioner
from tests.support.rank_processes import run_ranks
from tests.support.sharded_ranks import whole
from tests.support.train_ranks import free_port

RANKS, EPOCH, BATCH = 2, 5, 4
"""Steps of an epoch, after which a run is interrupted, and examples of a rank's batch."""
METHODS: dict[str, Method] = {
    "dense": MKOR(inverse_update_period=2),
    "window": MKOR(window=3, inverse_update_period=2),
    "kaisa": KAISA(factor_update_period=1, inverse_update_period=2, grad_worker_fraction=1 / RANKS),
}
FORMS = {"sharded": "SHARDED_STATE_DICT", "full": "FULL_STATE_DICT"}
Weights = list[Tensor]


def network() -> nn.Sequential:
    """Return the network before it is sharded."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def weights(model: nn.Module) -> Weights:
    return [whole(parameter) for parameter in model.parameters()]


class Accelerated:
    """A run under accelerate's FSDP2."""

    def __init__(self, method: Method, form: str) -> None:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, state_dict_type=FORMS[form], auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False
        )
        self.accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        # accelerate shards on GPUs alone; what it does then is the same on CPUs.
        state = self.accelerator.state
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
        state.fsdp_plugin = plugin
        model = network()
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05))
        self.preconditioner = Preconditioner(self.model, method).attach(self.optimizer)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            generator = torch.Generator().manual_seed(RANKS * step + dist.get_rank())
            self.optimizer.zero_grad()
            inputs = torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)
            self.accelerator.backward((self.model(inputs) - 1).square().mean())
            self.optimizer.step()


def accelerate_runs(method: Method, form: str, folder: str) -> tuple[Weights, Weights]:
    """Return the weights of a run that goes on after it has been saved, and those of one resumed from there."""
    first = Accelerated(method, form)
    first.train(0, EPOCH)
    first.accelerator.save_state(folder)
    first.train(EPOCH, 2 * EPOCH)
    end = weights(first.model)
    first.accelerator.free_memory()
    second = Accelerated(method, form)
    second.accelerator.load_state(folder)
    assert second.preconditioner.state_dict()["step"] == EPOCH
    second.train(EPOCH, 2 * EPOCH)
    second.accelerator.free_memory()
    return end, weights(second.model)


class Module(lightning.LightningModule):
    """A network that Lightning's strategy for FSDP2 shards."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.network, self.method = network(), method

    def configure_model(self) -> None:
        assert self.device_mesh is not None
        fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return (self.network(batch[0]) - 1).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=0.05)
        self.preconditioner = Preconditioner(self.network, self.method).attach(optimizer)
        return optimizer


def fit(method: Method, form: str, epochs: int, checkpoint: str | None = None) -> tuple[lightning.Trainer, Module]:
    """Train by Lightning to the end of an epoch, from a checkpoint on if there is one."""
    module = Module(method)
    strategy = ModelParallelStrategy(
        data_parallel_size=RANKS,
        tensor_parallel_size=1,
        save_distributed_checkpoint=form == "sharded",
        process_group_backend="gloo",
    )
    quiet = dict.fromkeys(("enable_checkpointing", "enable_model_summary", "enable_progress_bar", "logger"), False)
    options = {"strategy": strategy, "max_epochs": epochs, "plugins": [LightningEnvironment()], **quiet}
    trainer = lightning.Trainer(accelerator="cpu", devices=RANKS, **options)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(EPOCH * RANKS * BATCH, 5, generator=generator, dtype=torch.float64))
    trainer.fit(module, DataLoader(data, BATCH), ckpt_path=checkpoint, weights_only=False)
    return trainer, module


def lightning_runs(method: Method, form: str, folder: str) -> tuple[Weights, Weights]:
    """Return the weights of an uninterrupted run, and those of one resumed after the first epoch."""
    trainer, _ = fit(method, form, 1)
    trainer.save_checkpoint(f"{folder}/one.ckpt")
    _, resumed = fit(method, form, 2, f"{folder}/one.ckpt")
    assert resumed.preconditioner.state_dict()["step"] == 2 * EPOCH
    _, whole_run = fit(method, form, 2)
    return weights(whole_run.network), weights(resumed.network)


TRAINERS = {"accelerate": accelerate_runs, "lightning": lightning_runs}


def train_on_rank(rank: int, world: int, folder: str, port: int) -> None:
    """Train, save and resume every method by both trainers in both forms; write the weights of the first rank."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    numbers |= {"MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ.update({key: str(value) for key, value in numbers.items()})
    # gloo serves no GPUs.
    os.environ.update(MASTER_ADDR="127.0.0.1", CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="true")
    results: dict[tuple[str, str, str], tuple[Weights, Weights]] = {}
    for trainer, runs in TRAINERS.items():
        for name, method in METHODS.items():
            for form in FORMS:
                place = Path(folder) / f"{trainer}-{name}-{form}"
                place.mkdir(exist_ok=True)
                results[trainer, name, form] = runs(method, form, str(place))
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Any]:
    """The weights at the end, uninterrupted and resumed, by trainer, method and form of the checkpoint."""
    folder = tmp_path_factory.mktemp("trainers")
    run_ranks(RANKS, train_on_rank, str(folder), free_port())
    results: dict[tuple[str, str, str], Any] = torch.load(folder / "results.pt")
    return results


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_resumed_run_is_the_uninterrupted_one(ends, trainer, name, form):
    """Sharded and full checkpoints; of dense MKOR and KAISA each rank keeps some layers alone."""
    whole_run, resumed = ends[trainer, name, form]
    assert_close(resumed, whole_run, rtol=0, atol=0)
