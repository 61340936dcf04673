"""The training of sharded models that the processes of a test run; spawned processes import this module by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from baselines import KAISA, Eva, HyLo
from baselines.natural.foof import FOOF
from baselines.natural.mac import MAC
from mkor_core import MKOR, MKORH, Method, Preconditioner
from mkor_core.engines import engine
from mkor_core.ranks import comm

BATCH, STEPS, FEW = 24, 12, 6
OPTIONS: dict[str, Mapping[str, Any]] = {
    "window": {"window": 4, "inverse_update_period": 1},
    "window, input side": {"window": 4, "inverse_update_period": 2, "sides": "input"},
    "window, norm of g": {"window": 4, "inverse_update_period": 1, "gradient_norm": 1.0},
    "window, not rescaled": {"window": 4, "inverse_update_period": 2, "rescale": False},
    "window, released": {"window": 4, "inverse_update_period": 1, "update_rule": "released"},
    "dense": {"inverse_update_period": 2},
    "window, scaled g": {"window": 4, "inverse_update_period": 1, "gradient_scale": 8.0},
    "dense, norm of g": {"inverse_update_period": 2, "gradient_norm": 1.0},
    "rank 2": {"inverse_update_period": 2, "rank": 2},
}
LONG = ("window", "dense")
"""Cases that are trained `STEPS` steps under `fully_shard`; otherwise it is `FEW`."""
NOT_TENSOR = ("rank 2", "kaisa", "hylo", "foof", "window, scaled g", "window, not rescaled", "window by owners")
"""Cases that tensor-parallel ranks cannot train: they need rows; and three of which blocks differ in nothing."""
CASES = (*OPTIONS, "window by owners", "eva", "eva by owners", "kaisa", "hylo", "mac", "foof")
ON_FOUR = ("window", "window, norm of g", "window, input side", "dense", "eva", "kaisa")
"""Cases that four ranks train."""


def method(case: str, world: int) -> Method:
    """Return the method of a case on some ranks."""
    case = case.removesuffix(" by owners")
    match case:
        case "eva":
            return Eva()
        case "kaisa":
            return KAISA(factor_update_period=1, inverse_update_period=2, grad_worker_fraction=1 / world)
        case "mac":
            return MAC(factor_update_period=1, inverse_update_period=2)
        case "foof":
            return FOOF(factor_update_period=1, inverse_update_period=2, grad_worker_fraction=1 / world)
        case "hylo":
            return HyLo(update_period=2, sample_fraction=0.4)
        case "follows loss":
            return MKORH(inverse_update_period=2, warmup_steps=7, knee_beta=1.0)
    return MKOR(**OPTIONS[case])


class Network(nn.Module):
    """A Conv2d, Linears with and without a bias, of odd and even widths and with a single row, and an unused one."""

    def __init__(self, *, even: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        hidden, inner = (8, 6) if even else (7, 5)
        self.convolution = nn.Conv2d(1, 3, (2, 3))
        self.first, self.second = nn.Linear(6, hidden), nn.Linear(hidden, inner)
        self.third, self.last = nn.Linear(inner, hidden, bias=False), nn.Linear(hidden, 1)
        self.unused = nn.Linear(3, 3)
        self.checkpoints = False
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        images = inputs.unflatten(-1, (2, 3))[:, None]
        hidden = inputs + self.convolution(images).flatten(1).repeat(1, 2)
        if self.checkpoints:
            hidden = checkpoint(lambda h: torch.tanh(self.first(h)), hidden, use_reentrant=False)
        else:
            hidden = torch.tanh(self.first(hidden))
        output: Tensor = self.last(torch.tanh(self.third(torch.tanh(self.second(hidden)))))
        return output


class DividedRows(ParallelStyle):
    """A layer that ranks share whole, and whose input rows they divide, so that each has a part of its gradient."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def divided(_: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> tuple[DTensor]:
            return (DTensor.from_local(inputs[0], mesh, [Replicate()]).redistribute(placements=[Shard(0)]),)

        def joined(_: nn.Module, output: Any, mesh: DeviceMesh) -> Tensor:
            rows: Tensor = output.redistribute(placements=[Replicate()]).to_local()
            return rows

        return distribute_module(module, device_mesh, None, divided, joined)


def sharded(model: Network, kind: str, world: int, **options: Any) -> nn.Module:
    """Return a model under a kind of parallelism."""
    match kind:
        case "ddp":
            return DistributedDataParallel(model, find_unused_parameters=True)
        case "fsdp" | "hsdp":
            names = ("replicate", "shard")
            mesh = None if kind == "fsdp" else init_device_mesh("cpu", (2, world // 2), mesh_dim_names=names)
            for part in (model.first, model.second, model):  # of the first two, hooks run before they are whole again
                fully_shard(part, mesh=mesh, **options)
        case "tensor" | "2d":
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
            by_rows, by_columns = ColwiseParallel(), RowwiseParallel()
            plan = {"first": by_rows, "second": by_columns, "third": by_rows, "last": by_columns}
            parallelize_module(model, mesh["tensor"], plan)
            if kind == "2d":
                for part in (model.first, model):
                    fully_shard(part, mesh=mesh["data"], **options)
        case "rows":
            parallelize_module(
                model, init_device_mesh("cpu", (world,)), {"first": DividedRows(), "third": DividedRows()}
            )
    return model


class Training:
    """A network, its optimizer and its preconditioner on one rank.

    Args:
        case: the method.
        kind: the kind of parallelism.
        rank: this process.
        world: the number of ranks.
        even: whether tensor parallelism can divide the network's widths.
        freezes: whether the unused layer is frozen.
        accumulation_steps: the micro-batches that the preconditioner expects.
        options: of `fully_shard`.
    """

    def __init__(
        self,
        case: str,
        kind: str,
        rank: int = 0,
        world: int = 1,
        *,
        even: bool = False,
        freezes: bool = False,
        accumulation_steps: int = 1,
        **options: Any,
    ) -> None:
        self.model = Network(even=even)
        self.model.unused.requires_grad_(not freezes)
        self.network = sharded(self.model, kind, world, **options)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.preconditioner = Preconditioner(
            self.network,
            method(case, world),
            owners=True if case.endswith(" by owners") else None,
            accumulation_steps=accumulation_steps,
        ).attach(self.optimizer)
        ranks_of_a_batch = 2 if kind in ("tensor", "2d", "rows") else 1
        self.share, self.shares = rank // ranks_of_a_batch, world // ranks_of_a_batch

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this rank's part of a global batch."""
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
        targets = torch.randn(BATCH, 1, generator=generator, dtype=torch.float64)
        part = slice(self.share * BATCH // self.shares, (self.share + 1) * BATCH // self.shares)
        return inputs[part], targets[part]

    def step(self, step: int, *, micro_batches: int = 1, syncs: bool = True, begins_twice: bool = False) -> None:
        """Take a step.

        Args:
            step: its number.
            micro_batches: the parts of its batch.
            syncs: whether gradients are reduced in every micro-batch, or in the last alone.
            begins_twice: whether it is given up after another batch, and begun anew.
        """
        self.optimizer.zero_grad()
        if begins_twice:
            inputs, targets = self.batch(step + STEPS)
            (self.network(inputs) - targets).square().mean().backward()
            self.optimizer.zero_grad(set_to_none=False)
        parts = [tensor.chunk(micro_batches) for tensor in self.batch(step)]
        for index, (inputs, targets) in enumerate(zip(*parts, strict=True), start=1):
            if not syncs:
                self.network.set_requires_gradient_sync(index == micro_batches)
            loss = (self.network(inputs) - targets).square().mean() / micro_batches
            loss.backward()
        self.optimizer.step()

    def train(self, first: int, last: int, **options: Any) -> list[Tensor]:
        """Take steps; return the whole parameters."""
        for step in range(first, last):
            self.step(step, **options)
        return self.weights()

    def weights(self) -> list[Tensor]:
        """Return the whole parameters."""
        return [whole(parameter) for parameter in self.model.parameters()]


def whole(parameter: Any) -> Tensor:
    """Return all of a parameter, sharded or not."""
    tensor: Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return tensor.detach().clone()


def cases_for(kind: str, world: int) -> list[str]:
    """Return the cases that are trained under a kind of parallelism."""
    if kind == "rows":
        return ["window", "dense"]  # Eva takes the first examples, which ranks do not number when they divide them
    if kind == "ddp":  # test_distributed.py has the others
        return [case for case in CASES if case.endswith(" by owners")]
    chosen = CASES if world == 2 else ON_FOUR
    return [case for case in chosen if not (kind in ("tensor", "2d") and case in NOT_TENSOR)]


def train(case: str, kind: str, rank: int = 0, world: int = 1, *, even: bool) -> dict[str, Any]:
    """Train a case; return the weights after `FEW` steps and at the end, the bytes sent and those of the state."""
    training = Training(case, kind, rank, world, even=even)
    comm.reset_bytes_sent()
    weights = training.train(0, FEW)
    sent, memory = comm.bytes_sent(), training.preconditioner.memory_bytes()
    is_long = case in LONG and kind in ("alone", "fsdp")
    end = training.train(FEW, STEPS) if is_long else weights
    return {"weights": weights, "bytes": sent, "memory": memory, "end": end}


SAVED = ("window", "dense", "eva by owners")
"""Cases that are resumed."""
IN_WAYS = ("window", "dense", "eva")
"""Cases that are trained with micro-batches, checkpointing and mixed precision."""


def run_kinds(rank: int, world: int, kinds: Sequence[str]) -> dict[tuple[str, str], Any]:
    """Train the cases under kinds of parallelism."""
    runs = [(kind, case) for kind in kinds for case in cases_for(kind, world)]
    return {(kind, case): train(case, kind, rank, world, even=kind in ("tensor", "2d")) for kind, case in runs}


def run_ways(rank: int, world: int) -> dict[str, Any]:
    """Train with accumulation, mixed precision, activation checkpointing and in two parts under `fully_shard`."""
    results: dict[str, Any] = {"by columns": refusal(lambda p: Shard(1) if p.dim() > 1 else Shard(0))}
    results["live"] = live_bytes()
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    for case in IN_WAYS:
        for way, syncs, twice in (("synchronized", True, False), ("at last", False, False), ("twice", True, True)):
            training = Training(case, "fsdp", rank, world, accumulation_steps=2)
            weights = training.train(0, FEW, micro_batches=2, syncs=syncs, begins_twice=twice)
            results[f"{case}, {way}"] = weights
        training = Training(case, "fsdp", rank, world)
        training.model.checkpoints = True
        results[f"{case}, checkpointing"] = training.train(0, FEW)
        results[f"{case}, mixed"] = Training(case, "fsdp", rank, world, mp_policy=policy).train(0, FEW)
        # As on a GPU, where the gradients of a stack are gathered.
        with mock.patch.object(engine, "goes_alone", return_value=False):
            results[f"{case}, gathered"] = Training(case, "fsdp", rank, world).train(0, FEW)
    return results | {f"{case}, resumed": resumed(case, rank, world) for case in SAVED}


def refusal(placement: Callable[[nn.Parameter], Shard]) -> str:
    """Return why a model is refused whose parameters `fully_shard` places in another way than by rows."""
    model = fully_shard(nn.Linear(6, 7), shard_placement_fn=placement)
    try:
        Preconditioner(model, MKOR())
    except TypeError as refused:
        return str(refused)
    return ""


class LiveBytes(TorchDispatchMode):
    """The most bytes of new tensors that were alive at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._storages: dict[StorageWeakRef, int] = {}
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if type(t) is Tensor}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if type(tensor) is Tensor and tensor.untyped_storage().data_ptr() not in before:
                self._storages[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        self._storages = {ref: size for ref, size in self._storages.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self._storages.values()))
        return result


def live_bytes() -> dict[str, int]:
    """Return the most bytes that a step of a windowed preconditioner takes on two ranks, and those of all gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    preconditioner = Preconditioner(model, MKOR(window=4, inverse_update_period=1))
    model(torch.randn(8, 128)).square().mean().backward()
    with LiveBytes() as live:
        preconditioner.step()
    return {"peak": live.peak, "gradients": sum(4 * parameter.numel() for parameter in model.parameters())}


def resumed(case: str, rank: int, world: int) -> dict[str, Any]:
    """Go on after half of the steps; with new objects from state dicts, without and with what rank 0 has gathered.

    The first run's state is gathered before its first step too, when each owner has its own layers alone.
    """
    runs = {name: Training(case, "fsdp", rank, world, freezes=True) for name in ("on", "sharded", "whole")}
    first = runs["on"]
    first.preconditioner.consolidate()
    first.preconditioner.state_dict()
    memory = first.preconditioner.memory_bytes()
    first.train(0, FEW // 2)
    model, optimizer = copy.deepcopy(get_state_dict(first.model, first.optimizer))
    first.preconditioner.consolidate()
    for name in ("sharded", "whole"):
        run = runs[name]
        set_state_dict(run.model, run.optimizer, model_state_dict=model, optim_state_dict=copy.deepcopy(optimizer))
    gathered = [copy.deepcopy(first.preconditioner.state_dict()) if rank == 0 else None]
    dist.broadcast_object_list(gathered, 0)
    runs["whole"].preconditioner.load_state_dict(gathered[0] or {})
    return {"memory": memory, **{name: run.train(FEW // 2, FEW) for name, run in runs.items()}}
