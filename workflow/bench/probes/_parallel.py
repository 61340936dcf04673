"""Models and their preconditioners for training on all ranks, whole or sharded."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mkor_core import Preconditioner
from mkor_core.method import Distributed
from mkor_core.ranks import comm
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes._timed_loop import SAFE_RATE


def parallelize(model: nn.Module, *, is_sharded: bool) -> nn.Module:
    """Return the model for training on all ranks: by ``fully_shard``, as a whole, or in DistributedDataParallel."""
    if not is_sharded:
        return DistributedDataParallel(model)
    # They take a second to import, which only a sharded model should cost.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (comm.world_size(),)))
    return model


def preconditioner_of(setup: Setup, network: nn.Module) -> Preconditioner:
    """Return the preconditioner of a model that `parallelize` returned."""
    assert setup.method is not None
    # KAISA shares layers out by itself unless their gradients are sharded.
    by_owners = setup.placement == "owners" and not isinstance(setup.method, Distributed)
    return Preconditioner(network, setup.method, lr=SAFE_RATE, owners=True if by_owners else None)
