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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch

from mkor_core import Method
from mkor_core.assignment import assign, make_grid
from mkor_core.method import LayerShape, StackedMethod
from mkor_core.mkor import MKOR
from workflow.bench.probes._costs import FLOAT, Layer
from workflow.bench.probes._optimizers import PERIOD, method_of
from workflow.bench.probes._state_bytes import META

Placement = Literal["replicated", "blocks", "owners"]
Layers = tuple[Layer, ...]
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
    def of(cls, label: str) -> Setup:
        """Return the setup of a label: a variant of `_optimizers`, to which suffixes may be added.

        ``_owners`` places it at owners, ``_sharded`` means ``fully_shard``, and ``_ddp`` nothing more.
        """
        is_sharded = label.endswith("_sharded")
        variant = label.removesuffix("_sharded").removesuffix("_ddp")
        method = method_of(variant.removesuffix("_owners"), PERIOD)
        at_owners = variant.endswith("_owners") or (method is not None and method.worker_fraction < 1)
        return cls(label, method, is_sharded, "owners" if at_owners else "blocks" if is_sharded else "replicated")


def numbers(layer: Layer) -> int:
    """Return the numbers of D, the bias included."""
    return layer.m * (layer.n + layer.has_bias)


def statistic_numbers(method: Method, layer: Layer, *, is_sharded: bool) -> int:
    """Return the numbers that a rank adds to the statistics' all-reduce for a layer.

    Means: n for the mean input row, 1 for the bias's input and one for the number of rows; and m for the mean gradient
    row, unless the gradient of the whole bias is on every rank. Moments: two upper triangles and their number.
    """
    d_in = layer.n + layer.has_bias
    statistic = method.statistic
    if statistic.kind == "moment":
        return d_in * (d_in + 1) // 2 + layer.m * (layer.m + 1) // 2 + 1
    in_bias = layer.has_bias and statistic.clamp is None and statistic.examples is None
    return d_in + 1 + layer.m * (statistic.sides == "both" and (is_sharded or not in_bias))


def block_numbers(method: Method, layer: Layer) -> int:
    """Return the numbers that a rank adds to sums over a layer's blocks in every step.

    A window of w columns: ``U_L^T D``, w rows like D's, and the norms of D and V; Eva: four inner products.
    """
    if isinstance(method, MKOR) and method.window is not None:
        return method.window * (layer.n + layer.has_bias) * (method.sides == "both") + 2 * method.rescale
    return EVA_SUMS


def owned(method: Method, layers: Layers, ranks: int) -> tuple[Layers, ...]:
    """Return the layers of each rank that owns any: at most one rank a layer does."""
    return _owned(method, layers, min(ranks, len(layers)))


@cache
def _owned(method: Method, layers: Layers, ranks: int) -> tuple[Layers, ...]:
    costs = {str(index): owner_cost(method, layer) for index, layer in enumerate(layers)}
    by_rank: dict[int, list[Layer]] = {}
    for index, place in assign(costs, make_grid(ranks, 1 / ranks)).items():
        by_rank.setdefault(place.owner, []).append(layers[int(index)])
    return tuple(map(tuple, by_rank.values()))


def owner_cost(method: Method, layer: Layer) -> float:
    """Return the cost by which a layer is assigned: of a refresh, or, where that is cheap, of preconditioning D."""
    if isinstance(method, StackedMethod):
        return float(layer.m * layer.n * (layer.m + layer.n))
    return method.refresh_cost(LayerShape(layer.m, layer.n + layer.has_bias))


def statistic_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes that a rank hands to the all-reduce of a step with statistics."""
    assert setup.method is not None
    return FLOAT * sum(statistic_numbers(setup.method, layer, is_sharded=setup.is_sharded) for layer in layers)


def block_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes that a rank hands to all-reduces in every step, because it preconditions blocks."""
    if setup.method is None or setup.placement != "blocks":
        return 0
    return FLOAT * sum(block_numbers(setup.method, layer) for layer in layers)


def refreshed_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes of some layers that their owners broadcast in a step that refreshes."""
    method = setup.method
    if method is None or setup.placement != "replicated":
        return 0
    return sum(state_by_tensor(method, layers).get(name, 0) for name in method.refreshed)


def update_bytes(setup: Setup, layers: Layers) -> int:
    """Return the bytes of some layers' updates that their owners broadcast in every step, as gradients are whole."""
    return FLOAT * sum(map(numbers, layers)) if setup.placement == "owners" and not setup.is_sharded else 0


def exchanged_bytes(setup: Setup, layers: Layers, own: Layers, ranks: int) -> float:
    """Return the bytes that a rank hands to all-to-alls in every step.

    They are its rows of D, to the owners of the other layers, and the others' rows of V of its own layers. Its rows are
    taken as the whole over the number of ranks.
    """
    if setup.placement != "owners" or not setup.is_sharded:
        return 0.0
    of_own = sum(map(numbers, own))
    return FLOAT * ((sum(map(numbers, layers)) - of_own) / ranks + of_own * (ranks - 1) / ranks)


def sent_bytes(setup: Setup, layers: Layers, ranks: int) -> float:
    """Return the bytes that the busiest rank hands to the method's collectives in a step, on average."""
    method = setup.method
    if method is None or ranks == 1:
        return 0.0
    same = statistic_bytes(setup, layers) * share_of_steps(method.accumulates) + block_bytes(setup, layers)
    refreshes = share_of_steps(method.refreshes)
    return same + max(
        refreshed_bytes(setup, own) * refreshes + update_bytes(setup, own) + exchanged_bytes(setup, layers, own, ranks)
        for own in owned(method, layers, ranks)
    )


def share_of_steps(happens: Callable[[int], bool]) -> float:
    """Return the share of steps, of a cycle of refreshes, in which something happens."""
    return sum(map(happens, range(PERIOD))) / PERIOD


@cache
def state_by_tensor(method: Method, layers: Layers) -> Mapping[str, int]:
    """Return the bytes of a method's state by tensor, of some layers together."""
    sizes: dict[str, int] = {}
    for layer in layers:
        for name, size in _layer_state(method, LayerShape(layer.m, layer.n + layer.has_bias)).items():
            sizes[name] = sizes.get(name, 0) + size
    return sizes


@cache
def _layer_state(method: Method, shape: LayerShape) -> Mapping[str, int]:
    state = method.initial_state(shape, torch.float32, META)
    return {name: tensor.numel() * tensor.element_size() for name, tensor in state.items()}


def state_bytes(setup: Setup, layers: Layers, ranks: int) -> int:
    """Return the bytes of the method's state on the rank that keeps most.

    Under DistributedDataParallel a method that refreshes at owners (KAISA) keeps its statistics on every rank.
    """
    method = setup.method
    if method is None:
        return 0
    if setup.placement != "owners":
        return sum(state_by_tensor(method, layers).values())
    by_rank = [state_by_tensor(method, of_rank) for of_rank in owned(method, layers, ranks)]
    if setup.is_sharded or not method.refreshed:
        return max(sum(sizes.values()) for sizes in by_rank)
    everywhere = {name: size for name, size in state_by_tensor(method, layers).items() if name not in method.refreshed}
    return sum(everywhere.values()) + max(sum(sizes[name] for name in method.refreshed) for sizes in by_rank)


def model_bytes(parameters: int, ranks: int, *, is_sharded: bool) -> float:
    """Return the bytes of parameters, gradients and first-order state on a rank, all in float32."""
    return FLOAT * parameters * (2 + FIRST_ORDER_NUMBERS) / (ranks if is_sharded else 1)
