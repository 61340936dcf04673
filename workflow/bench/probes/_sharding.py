"""Bytes and memory of a rank, by formulas, for methods under DistributedDataParallel and under ``fully_shard``.

A layer's D has ``[m, n (+1)]`` numbers of 4 bytes. A method is placed in one of three ways:

- ``replicated``: every rank preconditions all layers; under DistributedDataParallel only.
- ``blocks``: every rank preconditions the rows that ``fully_shard`` leaves it; windowed MKOR and Eva.
- ``owners``: a rank preconditions the layers that it owns, and keeps their state. Layers go, most costly first, to the
  least loaded rank.

State tensors are those that the method's own code makes on PyTorch's ``meta`` device. What happens in some steps only
counts with their share; methods with a period refresh in one step of 10. Activations, and the parameters that
``fully_shard`` gathers for a while, are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch

from mkor_core import Method
from mkor_core.capture.statistics import LayerShape
from mkor_core.method import Distributed, InPlaceMethod, KLClipping
from mkor_core.mkor import MKOR
from mkor_core.ranks.assignment import assign, make_grid
from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.probes._costs import FLOAT, CostedLayer
from workflow.bench.probes._counting import META
from workflow.bench.probes._models import PERIOD, method_of

Placement = Literal["replicated", "blocks", "owners"]
Layers = tuple[CostedLayer, ...]
FIRST_ORDER_NUMBERS: Final = 2
"""Numbers that LAMB and AdamW keep of each parameter."""
EVA_SUMS: Final = 4
"""Sums over a layer's blocks that Eva needs."""


@dataclass(frozen=True)
class Setup:
    """An optimizer, where its state is, and what divides the training among ranks."""

    label: str
    method: Method | None
    """None for the base optimizer alone."""
    is_sharded: bool
    """Whether ``fully_shard`` divides parameters, gradients and first-order state. Otherwise every rank has them."""
    placement: Placement

    @classmethod
    def of(cls, label: str, period: int = PERIOD) -> Setup:
        """Return the setup of a label: a variant of `_models`, to which suffixes may be added.

        ``_owners`` places it at owners, ``_sharded`` means ``fully_shard``, and ``_ddp`` nothing more. period: steps
        between refreshes.
        """
        is_sharded = label.endswith("_sharded")
        variant = label.removesuffix("_sharded").removesuffix("_ddp")
        method = method_of(variant.removesuffix("_owners"), period)
        # KAISA in MEM-OPT, where one rank preconditions a layer for all.
        has_owners = isinstance(method, Distributed) and (method.worker_fraction or 1.0) < 1
        at_owners = variant.endswith("_owners") or has_owners
        in_blocks = method is None or (isinstance(method, InPlaceMethod) and method.works_on_blocks)
        if at_owners or (is_sharded and not in_blocks):
            return cls(label, method, is_sharded, "owners")
        return cls(label, method, is_sharded, "blocks" if is_sharded else "replicated")


def numbers(layer: CostedLayer) -> int:
    """Return the numbers of D, the bias included."""
    return layer.m * (layer.n + layer.has_bias)


def statistic_numbers(method: Method, layer: CostedLayer, *, is_sharded: bool) -> int:
    """Return the numbers that a rank adds to the statistics' all-reduce for a layer.

    Means: n for the mean input row, 1 for the bias's input and one for the number of rows; and m for the mean gradient
    row, unless the gradient of the whole bias is on every rank. Moments: upper triangles and their number.
    """
    d_in = layer.n + layer.has_bias
    statistic = method.statistic
    if statistic.kind == "moment":
        return d_in * (d_in + 1) // 2 + layer.m * (layer.m + 1) // 2 * (statistic.sides == "both") + 1
    in_bias = layer.has_bias and statistic.clamp is None and statistic.examples is None
    return d_in + 1 + layer.m * (statistic.sides == "both" and (is_sharded or not in_bias))


@cache
def owned(method: Method, layers: Layers, ranks: int) -> Mapping[int, Layers]:
    """Return the layers of each rank that owns any: at most one rank a layer does.

    They are assigned by the cost of a refresh, if only owners refresh; else by that of ``J_L D J_R``.
    """
    costs = {}
    for index, layer in enumerate(layers):
        shape = LayerShape(layer.m, layer.n + layer.has_bias)
        products = float(numbers(layer) * sum(shape))
        costs[str(index)] = method.refresh_cost(shape) if isinstance(method, Distributed) else products
    number = min(ranks, len(layers))
    by_rank: dict[int, list[CostedLayer]] = {}
    for name, place in assign(costs, make_grid(number, 1 / number)).items():
        by_rank.setdefault(place.owner, []).append(layers[int(name)])
    return {rank: tuple(own) for rank, own in by_rank.items()}


@cache
def statistic_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes that a rank hands to the all-reduce of a step with statistics."""
    assert setup.method is not None
    return FLOAT * sum(statistic_numbers(setup.method, layer, is_sharded=setup.is_sharded) for layer in layers)


@cache
def block_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes that a rank hands to all-reduces in every step, because it preconditions blocks.

    A window of w columns adds up ``U_L^T D``, w rows like D's, and the norms of D and V; Eva four inner products.
    """
    method = setup.method
    if method is None or setup.placement != "blocks":
        return 0
    if not isinstance(method, MKOR) or method.window is None:
        return FLOAT * EVA_SUMS * len(layers)
    products = sum(layer.n + layer.has_bias for layer in layers) * method.window * (method.sides == "both")
    return FLOAT * (products + 2 * method.rescale * len(layers))


def clip_bytes(setup: Setup) -> int:
    """Return the bytes that a rank hands to an all-reduce in every step for kl_clip, whose terms only owners have."""
    return FLOAT * (isinstance(setup.method, KLClipping) and setup.placement == "owners" and setup.is_sharded)


def refreshed_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes of some layers that their owners broadcast in a step that refreshes."""
    method = setup.method
    if not isinstance(method, Distributed) or setup.placement != "replicated":
        return 0
    return sum(state_by_tensor(method, layers).get(name, 0) for name in method.refreshed)


def update_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes of some layers' updates that their owners broadcast in every step, as gradients are whole."""
    return FLOAT * sum(map(numbers, layers)) if setup.placement == "owners" and not setup.is_sharded else 0


def shard_rows(rows: int, ranks: int, rank: int) -> int:
    """Return the rows of a parameter that ``fully_shard`` leaves a rank: equal parts, rounded up, and a rest."""
    part = math.ceil(rows / ranks)
    return max(0, min(part, rows - rank * part))


def exchanged_bytes(setup: Setup, layers: Layers, own: Layers, ranks: int, rank: int) -> int:
    """Return the bytes that a rank hands to all-to-alls in every step.

    They are its rows of D, to the owners of the other layers, and the others' rows of V of its own layers.
    """
    if setup.placement != "owners" or not setup.is_sharded:
        return 0
    mine = {layer: shard_rows(layer.m, ranks, rank) * (layer.n + layer.has_bias) for layer in layers}
    return FLOAT * (sum(mine[layer] for layer in layers) + sum(numbers(layer) - 2 * mine[layer] for layer in own))


def sent_bytes(setup: Setup, layers: Layers, ranks: int, rank: int, step: int) -> dict[str, int]:
    """Return the bytes that a rank hands to the method's collectives in a step; refreshes begin with step 0."""
    method = setup.method
    if method is None or ranks == 1:
        return {}
    own = owned(method, layers, ranks).get(rank, ())
    statistics = statistic_bytes(setup, layers) * method.accumulates(step)
    sizes = {
        "all_reduce": statistics + block_bytes(setup, layers) + clip_bytes(setup),
        "broadcast": refreshed_bytes(setup, own) * method.refreshes(step) + update_bytes(setup, own),
        "all_to_all": exchanged_bytes(setup, layers, own, ranks, rank),
    }
    return {collective: size for collective, size in sizes.items() if size}


def busy_ranks(setup: Setup, layers: Layers, ranks: int) -> list[int]:
    """Return ranks among which is the one that keeps and sends most: of those with the same layers the first.

    Its shards have at least as many rows as the others'.
    """
    if setup.method is None:
        return [0]
    by_rank = owned(setup.method, layers, ranks)
    return list({own: rank for rank, own in sorted(by_rank.items(), reverse=True)}.values())


def most_sent_bytes(setup: Setup, layers: Layers, ranks: int) -> float:
    """Return the bytes of all collectives, in a mean step, of the rank that sends most."""
    steps = 0, 1  # one of a cycle refreshes, the others are alike
    sent = [
        [sum(sent_bytes(setup, layers, ranks, rank, step).values()) for step in steps]
        for rank in busy_ranks(setup, layers, ranks)
    ]
    return max(cycle_mean(refresh, other, PERIOD) for refresh, other in sent)


def share_of_steps(happens: Callable[[int], bool]) -> float:
    """Return the share of steps, of a cycle of refreshes, in which something happens."""
    return sum(map(happens, range(PERIOD))) / PERIOD


@cache
def state_by_tensor(method: Method, layers: Layers) -> Mapping[str, int]:
    """Return the bytes of a method's state by tensor, of some layers together."""
    sizes: Counter[str] = Counter()
    # Many layers are equal, and making states takes time even without memory.
    for layer, number in Counter(layers).items():
        state = method.initial_state(LayerShape(layer.m, layer.n + layer.has_bias), torch.float32, META)
        sizes.update({name: number * tensor.nbytes for name, tensor in state.items()})
    return sizes


def state_bytes(setup: Setup, layers: Layers, ranks: int, rank: int) -> int:
    """Return the bytes of the method's state on a rank.

    A method that refreshes at owners (KAISA) keeps the tensors that it accumulates on every rank.
    """
    method = setup.method
    if method is None:
        return 0
    everywhere = state_by_tensor(method, layers)
    if setup.placement != "owners":
        return sum(everywhere.values())
    own = state_by_tensor(method, owned(method, layers, ranks).get(rank, ()))
    if not isinstance(method, Distributed):
        return sum(own.values())
    return sum(own.get(name, 0) if name in method.refreshed else size for name, size in everywhere.items())


def most_state_bytes(setup: Setup, layers: Layers, ranks: int) -> int:
    """Return the bytes of the method's state on the rank that keeps most."""
    return max(state_bytes(setup, layers, ranks, rank) for rank in busy_ranks(setup, layers, ranks))


def model_bytes(parameters: float, first_order: int = FIRST_ORDER_NUMBERS) -> float:
    """Return the bytes of a rank's parameters, their gradients and first-order state, all in float32.

    parameters: the rank's; first_order: numbers that the base optimizer keeps of each.
    """
    return FLOAT * parameters * (2 + first_order)
