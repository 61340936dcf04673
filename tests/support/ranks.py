"""The training that the processes of a distributed test run; spawned processes import this module by name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from baselines import KAISA, Eva, HyLo, available, build, build_optimizer, limits, method_class
from mkor_core import MKOR, Preconditioner
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import mean_locations
from mkor_core.capture.statistics import MOMENT, LayerShape, Sums
from mkor_core.capture.sums import Capture
from mkor_core.method import Method, put
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Codec, Coder
from mkor_core.ranks.exchange import exchange
from mkor_core.ranks.kaisa import Sharing

STEPS, BATCH = 5, 8
WITH_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "mkor": ("mkor", {"inverse_update_period": 2}),
    "mkor released": ("mkor", {"inverse_update_period": 2, "update_rule": "released"}),
    "mkor rank 2": ("mkor", {"inverse_update_period": 2, "rank": 2}),
    "mkor window": ("mkor", {"inverse_update_period": 1, "window": 2}),
    "mkor_h": ("mkor_h", {"inverse_update_period": 1, "warmup_steps": 2, "knee_beta": 9.0}),
    "kaisa": ("kaisa", {"factor_update_period": 1, "inverse_update_period": 2}),
    "kaisa half": ("kaisa", {"inverse_update_period": 2, "grad_worker_fraction": 0.5, "compute_method": "inverse"}),
    "kaisa mem": ("kaisa", {"inverse_update_period": 2, "grad_worker_fraction": 0.25}),
    "eva": ("eva", {}),
    "hylo": ("hylo", {"update_period": 2, "sample_fraction": 0.4}),
    "hylo KID": ("hylo", {"update_period": 2, "sample_fraction": 0.4, "variant": "KID"}),
    "shampoo": ("shampoo", {"inverse_update_period": 2}),
    "cgfac": ("cgfac", {"iterations": 3, "damping": 1.0}),  # more iterations amplify the rounding of sums
    # The factors of the first gradients are singular: with a smaller eps, their roots show the order of summation.
    "distributed_shampoo": (
        "distributed_shampoo",
        {"inverse_update_period": 2, "first_inverse_update": 2, "eps": 1e-3},
    ),
    "newton_muon": ("newton_muon", {"update_period": 2, "correction": "rescale"}),
    # Divided by lambda, 0.001, its rate is 1000 times as large as that of the others.
    "adafisher": ("adafisher", {"lr": 1e-4, "factor_update_period": 2}),
    "mkor_muon": ("mkor_muon", {"inverse_update_period": 2}),
    "rs_kfac": ("rs_kfac", {"factor_update_period": 1, "inverse_update_period": 2}),
    "mac": ("mac", {"factor_update_period": 1, "inverse_update_period": 2}),
    "foof": ("foof", {"factor_update_period": 1, "inverse_update_period": 2, "damping": 0.1}),
    "foof half": ("foof", {"factor_update_period": 1, "damping": 0.1, "grad_worker_fraction": 0.5}),
    "b_kfac": ("b_kfac", {"factor_update_period": 2, "max_rows": 5}),
}
CASES = WITH_OPTIONS | {
    name: (name, {})
    for name in available()
    if "data_parallel" not in limits(name) and name not in {chosen for chosen, _ in WITH_OPTIONS.values()}
}
IN_MICRO_BATCHES = ("mkor", "mkor released", "mkor rank 2", "kaisa", "eva", "hylo")
"""Cases that two ranks also train with two micro-batches each, the first under DDP's ``no_sync``."""
IN_LOSSES = ("mkor", "mkor rank 2", "kaisa", "hylo")
"""Cases that two ranks also train with two backward passes per step that the preconditioner does not expect."""
IN_PAIRS = ("mkor", "kaisa", "kaisa half")
"""Cases that four ranks also train as two independent pairs."""


class Branched(nn.Module):
    """A network with a layer that only the flagged examples of a batch go through."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 3, 3)
        self.hidden, self.branch, self.head = nn.Linear(48, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.double()

    def forward(self, inputs: Tensor, flags: Tensor) -> Tensor:
        hidden = self.hidden(torch.relu_(self.convolution(inputs)).flatten(1))
        if flags.any():
            hidden = hidden.index_add(0, flags.nonzero()[:, 0], self.branch(hidden[flags]))
        return self.head(hidden)


def batch(step: int, rank: int, world: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a rank's part of a global batch; only its first half, so only the first ranks, is flagged."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 1, 6, 6, generator=generator, dtype=torch.float64)
    targets = torch.randn(BATCH, 2, generator=generator, dtype=torch.float64)
    part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    return inputs[part], targets[part], (torch.arange(BATCH) < BATCH // 2)[part]


def train(
    name: str,
    options: Mapping[str, Any],
    rank: int = 0,
    world: int = 1,
    *,
    micro_batches: int = 1,
    announced: bool = True,
    begins_twice: bool = False,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Train ``STEPS`` steps; return the weights, the bytes sent and, for a second-order method, its state.

    Args:
        name: the optimizer.
        options: its hyperparameters.
        rank: this process's rank, within the group if one is given.
        world: the number of ranks, of the group if one is given.
        micro_batches: backward passes per step.
        announced: whether the preconditioner is told their number, and only the last exchanges gradients.
        begins_twice: whether each step is given up after a micro-batch of another batch, and begun anew.
        group: the ranks that train together; None means all.
    """
    model: nn.Module = Branched()
    network: Any = model
    if world > 1:
        network = DistributedDataParallel(model, process_group=group, find_unused_parameters=True)
    optimizer: torch.optim.Optimizer
    preconditioner: Preconditioner | None
    if group is None:
        steps = micro_batches if announced else 1
        optimizer, preconditioner = build(name, network, {"lr": 0.05, **options}, accumulation_steps=steps)
    else:
        method = method_class(name)
        assert method is not None
        optimizer = build_optimizer("sgd", network, {"lr": 0.05})
        preconditioner = Preconditioner(network, method(**options), process_group=group).attach(optimizer)
    comm.reset_bytes_sent()
    for step in range(STEPS):
        optimizer.zero_grad()
        if begins_twice:
            inputs, targets, flags = batch(step + STEPS, rank, world)
            with network.no_sync():
                (network(inputs, flags) - targets).square().mean().backward()
            optimizer.zero_grad(set_to_none=False)
        parts = zip(*(tensor.chunk(micro_batches) for tensor in batch(step, rank, world)), strict=True)
        for part, (inputs, targets, flags) in enumerate(parts, start=1):
            with network.no_sync() if announced and part < micro_batches else nullcontext():
                loss = (network(inputs, flags) - targets).square().mean() / micro_batches
                loss.backward()
            if preconditioner is not None:
                preconditioner.observe(loss)
        optimizer.step()
    weights, sent = [parameter.detach() for parameter in model.parameters()], comm.bytes_sent()
    if preconditioner is None:
        return {"weights": weights, "bytes": sent}
    size = preconditioner.memory_bytes()
    preconditioner.consolidate()
    return {
        "weights": weights,
        "bytes": sent,
        "memory": size,
        "switch_step": preconditioner.switch_step,
        "state": {k: dict(v) for k, v in preconditioner.state_dict()["layers"].items()},
    }


def cases_for(world: int) -> list[str]:
    """Return the cases that have at least one gradient worker on ``world`` ranks."""
    return [case for case, (_, options) in CASES.items() if world * options.get("grad_worker_fraction", 1) >= 1]


def run_all(rank: int, world: int) -> dict[str, Any]:
    """Train every case on some ranks."""
    results = {case: train(*CASES[case], rank, world) for case in cases_for(world)}
    if world == 2:
        results["mkor bfloat16"] = train("mkor", {"inverse_update_period": 2, "factor_dtype": "bfloat16"}, rank, world)
        for case in IN_MICRO_BATCHES:
            for way, twice in (("micro-batches", False), ("begun twice", True)):
                results[f"{case}, {way}"] = train(*CASES[case], rank, world, micro_batches=2, begins_twice=twice)
        for case in IN_LOSSES:
            results[f"{case}, losses"] = train(*CASES[case], rank, world, micro_batches=2, announced=False)
    if world == 4:
        pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        for case in IN_PAIRS:
            results[f"{case}, pair"] = train(*CASES[case], rank % 2, 2, group=pair)
    return results


EXCHANGES: dict[str, Method] = {
    "mean": MKOR(),
    "half precision": MKOR(factor_dtype=torch.bfloat16),
    "moment": KAISA(kl_clip=None),
    "rows": HyLo(),
}
"""Methods that exchange their statistics in different ways."""


ROWS: dict[str, Method] = {
    "kaisa global": KAISA(factor_decay=0.5, kl_clip=None),
    "kaisa rank": KAISA(factor_decay=0.5, kl_clip=None, rows="rank"),
    "eva global": Eva(kl_clip=None),
    "eva rank": Eva(kl_clip=None, rows="rank"),
}
"""Methods that use rows of the global mean loss, or of each rank's own."""


def one_step(method: Method, rank: int) -> tuple[Preconditioner, Tensor, Tensor]:
    """Take a step on a rank's twelve examples; return X and the rows of its own mean loss too."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    preconditioner = Preconditioner(model, method)
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(rank + 1), dtype=torch.float64)
    output = model(inputs)
    output.retain_grad()
    output.square().mean().backward()
    preconditioner.step()
    assert output.grad is not None
    return preconditioner, torch.cat([inputs, inputs.new_ones(12, 1)], 1), output.grad


def captured(kind: str, rank: int) -> dict[str, Sums]:
    """Return a rank's statistics of a float64 layer ``both`` that two ranks use, and of one that only rank 1 uses.

    Their numbers are ``rank + 1``; all entries are small whole numbers, so that bfloat16 holds their means and sums.
    """
    number = torch.tensor(float(rank + 1))
    if kind == "moment":
        x, g = torch.ones(3, 3) * (rank + 1), torch.tensor([[2.0, 1.0], [1.0, 4.0]]) * (rank + 1)
    elif kind == "rows":
        x, g = torch.ones(rank + 1, 3) * (rank + 1), torch.ones(rank + 1, 2) * (rank + 2)
    else:
        x, g = torch.tensor([3.0, 6.0, 12.0]) * (2 * rank + 1), torch.tensor([1.0, 2.0]) * (rank + 1)
    both = Sums(x.double(), g.double(), number.double())
    return {"both": both} if rank == 0 else {"both": both, "one": Sums(x, g, number)}


def with_biases(method: Method, rank: int) -> dict[str, Sums]:
    """Exchange the statistics of layers whose biases have g: rank 0 uses the convolution, on 4 locations an example.

    Rank 1 uses it on one location, and the Linear. Each counts half of an image of 4 locations that they share.
    """
    layers = [
        Layer("linear", nn.Linear(2, 2)),
        Layer("convolution", nn.Conv2d(1, 2, 2)),
        Layer("no", nn.Conv2d(1, 2, 2)),
        Layer("shared", nn.Conv2d(1, 2, 2)),
    ]
    number, half = torch.tensor(2.0 - rank), torch.tensor(0.5)
    convolution = Sums(torch.arange(5.0) * number, None, number, torch.tensor(4.0 - 3 * rank))
    shared = Sums(torch.arange(5.0) * half, None, half, mean_locations(torch.tensor(2.0), half))
    local = {"convolution": convolution, "linear": Sums(torch.ones(3), None, number), "shared": shared}
    if rank == 0:
        del local["linear"]
    return exchange(layers, local, None, statistic=method.statistic, group=None)[0]


def moments_of_inputs(rank: int) -> dict[str, Sums]:
    """Exchange second moments of inputs alone: rank 0 uses the convolution, on several locations, rank 1 the Linear."""
    layers = [Layer("convolution", nn.Conv2d(1, 2, 2)), Layer("linear", nn.Linear(2, 2))]
    own = Capture({layer.name: layer for layer in layers}, MOMENT.of_inputs(), shares=2)
    layers[rank].module(torch.ones(2, 1, 3, 3) if rank == 0 else torch.ones(2, 2)).sum().backward()
    return exchange(layers, own.take(), None, statistic=MOMENT.of_inputs(), group=None)[0]


def consolidated(rank: int) -> list[set[str]]:
    """Return the names of the tensors in MEM-OPT's state.

    Consolidated on both ranks, after another step, loaded again, and consolidated on rank 1.
    """
    preconditioner, *_ = one_step(KAISA(kl_clip=None, grad_worker_fraction=0.5), rank)
    keys = lambda: set(preconditioner.state_dict()["layers"][""])  # noqa: E731
    preconditioner.consolidate()
    state, held = preconditioner.state_dict(), [keys()]
    preconditioner.step()
    held.append(keys())
    preconditioner.consolidate()
    preconditioner.load_state_dict(state)
    held.append(keys())
    preconditioner.consolidate(1)
    held.append(keys())
    with pytest.raises(ValueError, match="rank=2 is not one of the 2 ranks"):
        preconditioner.consolidate(2)
    return held


def gathered(rank: int) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Return a layer's gathered tensors with their strides; rank 0 has them, as refreshes leave them in its state."""
    method, layer = KAISA(grad_worker_fraction=0.5), Layer("one", nn.Linear(2, 2))
    sharing = Sharing([layer], method, None)
    blank = method.initial_state(LayerShape(2, 3), torch.float32, torch.device("cpu"))
    own = {key: tensor.clone() for key, tensor in blank.items()}
    put(own, None, left_vectors=torch.arange(4.0).view(2, 2).T, right_vectors=torch.arange(9.0).view(3, 3))
    assert sharing.owns("one") == (rank == 0)
    whole = sharing.gather({"one": sharing.local_part("one", own)}, lambda name: dict(blank), None)["one"]
    return {name: (tensor, tensor.stride()) for name, tensor in whole.items()}


def phases(rank: int) -> list[str]:
    """Return the phases that a step names."""
    model, names = nn.Linear(3, 2), list[str]()
    preconditioner = Preconditioner(model, MKOR())

    def phase(name: str) -> AbstractContextManager[None]:
        names.append(name)
        return nullcontext()

    preconditioner.phases = phase
    model(torch.ones(4, 3) + rank).square().mean().backward()
    preconditioner.step()
    return sorted({*names})


def unused_state(method: Method, rank: int) -> dict[str, Tensor]:
    """Return the state of a layer that no rank uses in a step, in which the other is."""
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    preconditioner = Preconditioner(model, method)
    model[0](torch.ones(3, 2) + rank).square().mean().backward()
    preconditioner.step()
    return preconditioner.state_dict()["layers"]["1"]


def everyones(rank: int, large: int, codec: Codec | None = None) -> list[list[Tensor]]:
    """Return what three messages of rank 0 and one of rank 1 have brought, in rounds from ``large`` bytes on."""
    sent = [[torch.arange(6.0).view(3, 2).T, torch.tensor(7.0), torch.ones(4, 1)], [torch.full((1, 2), 9.0)]]
    targets = [[torch.empty_like(tensor) for tensor in of_rank] for of_rank in sent]
    with mock.patch.object(comm, "LARGE", large):
        comm.broadcast_all(sent[rank], targets, coding=Coder(codec).coding("all", rank))
        comm.broadcast_all([], [[], []])  # makes no call
    return targets


def communicate(rank: int, _: int) -> dict[str, Any]:
    """Call collectives and exchange statistics on two ranks; return the results, each with the bytes sent."""
    calls: dict[str, Any] = {
        "sum": lambda: comm.sum_across_ranks(
            [torch.ones(2, 2) * (rank + 1), torch.tensor(rank + 5), torch.arange(3.0), torch.empty(0)]
        ),
        "nothing": lambda: [comm.sum_across_ranks([]), comm.broadcast([], 0)],
        "gather": lambda: comm.gather_rows(
            [torch.full((3 - 2 * rank, 2), float(rank)), torch.full((rank, 3), 7.0), torch.empty(0, 1)]
        ),
        "broadcast": lambda: comm.broadcast([torch.ones(2, 2) * rank, torch.ones(()) * (rank + 1)], 1),
    }
    for large in (0, 10**9):
        calls[f"broadcast from all, {large}"] = lambda large=large: everyones(rank, large)
        calls[f"coded broadcast from all, {large}"] = lambda large=large: everyones(rank, large, Codec(drop=0.2))
    modules = {"both": nn.Linear(3, 2, bias=False).double(), "one": nn.Linear(3, 2, bias=False)}
    modules["none"] = nn.Linear(3, 2, bias=False)
    layers = [Layer(name, module) for name, module in modules.items()]
    for kind, method in EXCHANGES.items():
        calls[kind] = lambda kind=kind, method=method: exchange(
            layers, captured(kind, rank), torch.tensor(rank + 1.0), statistic=method.statistic, group=None
        )
    for kind, method in ROWS.items():
        calls[kind] = lambda method=method: one_step(method, rank)[0].state_dict()["layers"][""]
    for kind in ("mean", "moment"):
        calls[f"{kind} of an unused layer"] = lambda kind=kind: unused_state(EXCHANGES[kind], rank)
    for kind in ("mean", "half precision"):
        calls[f"{kind} with biases"] = lambda kind=kind: with_biases(EXCHANGES[kind], rank)
    calls["moments of inputs"] = lambda: moments_of_inputs(rank)
    calls["consolidated"] = lambda: consolidated(rank)
    calls["gathered"] = lambda: gathered(rank)
    calls["phases"] = lambda: phases(rank)
    results: dict[str, Any] = {}
    for name, call in calls.items():
        comm.reset_bytes_sent()
        results[name] = (call(), comm.bytes_sent())
    return results
