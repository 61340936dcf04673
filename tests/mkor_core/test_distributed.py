"""Truth: the full batch on one process. Two and four gloo ranks under DDP, with a layer that later ranks never use."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from baselines import available, build, build_optimizer, limits, method_class
from mkor_core import Preconditioner
from mkor_core.ranks import comm
from tests.support.hyperparameters import FAST
from tests.support.rank_processes import results_of

STEPS, BATCH = 5, 8
WITH_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "mkor released": ("mkor", {"inverse_update_period": 2, "update_rule": "released"}),
    "mkor rank 2": ("mkor", {"inverse_update_period": 2, "rank": 2}),
    "mkor window": ("mkor", {"inverse_update_period": 1, "window": 2}),
    "mkor_h": ("mkor_h", {"inverse_update_period": 1, "warmup_steps": 2, "knee_beta": 9.0}),
    "kaisa half": ("kaisa", {"inverse_update_period": 2, "grad_worker_fraction": 0.5, "compute_method": "inverse"}),
    "kaisa mem": ("kaisa", {"inverse_update_period": 2, "grad_worker_fraction": 0.25}),
    "hylo": ("hylo", {"update_period": 2, "sample_fraction": 0.4}),
    "hylo KID": ("hylo", {"update_period": 2, "sample_fraction": 0.4, "variant": "KID"}),
    "cgfac": ("cgfac", {"iterations": 3, "damping": 1.0}),  # more iterations amplify the rounding of sums
    # The factors of the first gradients are singular: with a smaller eps, their roots show the order of summation.
    "distributed_shampoo": (
        "distributed_shampoo",
        {"inverse_update_period": 2, "first_inverse_update": 2, "eps": 1e-3},
    ),
    "newton_muon": ("newton_muon", {"update_period": 2, "correction": "rescale"}),
    # Divided by lambda, 0.001, its rate is 1000 times as large as that of the others.
    "adafisher": ("adafisher", {"lr": 1e-4, "factor_update_period": 2}),
    "foof half": ("foof", {"factor_update_period": 1, "damping": 0.1, "grad_worker_fraction": 0.5}),
    "b_kfac": ("b_kfac", {"factor_update_period": 2, "max_rows": 5}),
}
CASES = {name: (name, FAST.get(name, {})) for name in available() if "data_parallel" not in limits(name)} | WITH_OPTIONS
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


UNSUPPORTED = {name: limits(name)["data_parallel"] for name in available() if "data_parallel" in limits(name)}
D_OUT_IN = {"convolution": (3, 10), "hidden": (6, 49), "branch": (6, 7), "head": (2, 7)}


@pytest.fixture(scope="module")
def trained() -> dict[int, list[dict[str, Any]]]:
    """Every case's results by number of ranks and rank."""
    alone = {case: train(name, options) for case, (name, options) in CASES.items()}
    on_two, on_four = results_of((2, run_all, ()), (4, run_all, ()))
    return {1: [alone], 2: on_two, 4: on_four}


@pytest.mark.parametrize(
    ("world", "case"),
    [
        *[(world, case) for world in (2, 4) for case in cases_for(world)],
        *[pytest.param(2, n, marks=pytest.mark.skip(f"{n}: {reason}")) for n, reason in UNSUPPORTED.items()],
    ],
)
def test_ranks_train_like_one_process(trained, world, case):
    alone = trained[1][0][case]
    for result in (trained[world][rank][case] for rank in range(world)):
        assert_close(result["weights"], alone["weights"], rtol=1e-9, atol=1e-12)
        assert result.get("switch_step") == alone.get("switch_step")


@pytest.mark.parametrize("way", ["micro-batches", "begun twice"])
@pytest.mark.parametrize("case", IN_MICRO_BATCHES)
def test_micro_batches_on_ranks_train_like_the_full_batch_on_one_process(trained, case, way):
    """Two ranks, two micro-batches each, the first under no_sync; statistics are exchanged once per step.

    Steps may be given up after a first micro-batch and begun anew.
    """
    alone = trained[1][0][case]
    for result in trained[2]:
        accumulated = result[f"{case}, {way}"]
        assert_close(accumulated["weights"], alone["weights"], rtol=1e-9, atol=1e-12)
        assert accumulated["bytes"] == result[case]["bytes"]


@pytest.mark.parametrize("case", IN_LOSSES)
def test_two_losses_in_turn_on_ranks_train_like_their_sum_on_one_process(trained, case):
    """Each backward pass exchanges its gradients, which writes to those of the pass before."""
    for result in trained[2]:
        weights = result[f"{case}, losses"]["weights"]
        assert_close(weights, trained[1][0][case]["weights"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", IN_PAIRS)
def test_a_process_group_of_some_ranks_trains_like_one_process(trained, case):
    """Four ranks in two pairs, each pair on the full batch."""
    for result in trained[4]:
        assert_close(result[f"{case}, pair"]["weights"], trained[1][0][case]["weights"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ["kaisa half", "kaisa mem"])
def test_a_consolidated_state_is_whole_on_every_rank(trained, case):
    alone = trained[1][0][case]["state"]
    for result in trained[4]:
        state = result[case]["state"]
        assert {name: set(tensors) for name, tensors in state.items()} == {
            name: set(tensors) for name, tensors in alone.items()
        }
        if case == "kaisa half":  # inverses are unique, eigenvectors only up to their signs
            assert_close(state, alone, rtol=1e-9, atol=1e-12)


def test_fewer_gradient_workers_hold_less(trained):
    whole, half, mem = (max(r[case]["memory"] for r in trained[4]) for case in ("kaisa", "kaisa half", "kaisa mem"))
    assert mem < whole
    assert half < whole


def test_mkor_sends_the_vectors_and_nothing_else(trained):
    """One all-reduce at steps 0, 2 and 4: d_in numbers and a count for each layer, two for the Conv2d, in float64."""
    numbers = sum(d_in + 1 for _, d_in in D_OUT_IN.values()) + 1
    assert trained[2][0]["mkor"]["bytes"] == {"all_reduce": 3 * 8 * numbers}
    assert trained[1][0]["mkor"]["bytes"] == {}


def test_mkor_sends_half_in_half_precision_and_trains_nearly_alike(trained):
    """Each number of a vector takes 2 bytes; the counts are sent separately before them, in float64."""
    result, exact, start = trained[2][0]["mkor bfloat16"], trained[1][0]["mkor"], Branched()
    numbers = sum(d_in for _, d_in in D_OUT_IN.values())
    assert result["bytes"] == {"all_reduce": 3 * (2 * numbers + 8 * (len(D_OUT_IN) + 1))}
    for near, true, first in zip(result["weights"], exact["weights"], start.parameters(), strict=True):
        assert (near - true).norm() < 0.1 * (true - first).norm()


def test_kaisa_sends_triangles_of_the_factors(trained):
    """Factors are sent every step; every rank owns some layers and sends their decompositions at steps 0, 2 and 4."""
    triangles = sum(d * (d + 1) // 2 for shape in D_OUT_IN.values() for d in shape) + len(D_OUT_IN)
    sent = trained[2][0]["kaisa"]["bytes"]
    assert sent["all_reduce"] == 5 * 8 * triangles
    decompositions = sum(d * d + d for shape in D_OUT_IN.values() for d in shape)
    assert sum(trained[2][rank]["kaisa"]["bytes"]["broadcast"] for rank in range(2)) == 3 * 8 * decompositions
