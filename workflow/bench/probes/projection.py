"""A model of training on 8 to 1,024 GPUs: seconds of a step, bytes sent and memory of a rank. Nothing is measured.

``python -m workflow.bench.probes.projection --tier embedded --out projection.csv`` writes one row for each system,
model, optimizer and number of GPUs. The systems' speeds are published ones, ``workflow/systems.yaml``; so a row says
what formulas give, not what a run would take. Columns:

- source: ``model`` in every row.
- system, gpu, gpu_memory_bytes.
- workload: ``bert_large``, the paper's second phase of pre-training with its global batch of 32,768 x 512 tokens; or
  ``gpt_7b``, layers as Llama 2's with 6.7 billion parameters, 1,024 x 4,096 tokens.
- optimizer: a variant of the probes; with ``_sharded`` under ``fully_shard``, otherwise under DistributedDataParallel;
  with ``_owners`` each layer's dense factors at one rank. ``lamb`` and ``adamw`` are the base optimizers alone.
- workers: GPUs, over which the global batch is divided (strong scaling).
- step_ms, at the floor: what must be computed, read and written at least. It is the sum of: compute_ms, forward and
  backward in bfloat16; capture_ms; factor_ms; precondition_ms; communication_ms, the method's collectives; update_ms,
  of the base optimizer; gradients_ms, the exchange of gradients, and under ``fully_shard`` of parameters. Nothing
  overlaps. Methods with a period refresh in one step of 10.
- step_ms_counted: step_ms with factor_ms_counted, precondition_ms_counted and update_ms_counted in place of the three
  floors: the kernels of this version's code, counted on meta tensors. It is as much of a model as step_ms.
- bytes_floor, bytes_counted: that these three pieces read and write in a mean step, on the rank that has most to do.
- memory_bytes: parameters, gradients and all optimizer state of the rank that keeps most, without activations;
  state_bytes: the method's part.
- sent_bytes: that the busiest rank hands to the method's collectives in a step; gradient_bytes: the tensors that the
  exchange of gradients and parameters combines.

`_costs` has the operations and bytes of the pieces of a step at the floor, `_counted_steps` those of the code,
`_sharding` those of ranks, `_links` the collectives.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from baselines import KAISA
from mkor_core import MKOR, Method
from mkor_core.method import Distributed
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _costs, _counted_steps, _links, _sharding
from workflow.bench.probes._costs import FLOAT, CostedLayer, LayerCost, MachineModel
from workflow.bench.probes._counted_steps import CountedWork
from workflow.bench.probes._links import System
from workflow.bench.probes._models import BASE
from workflow.bench.probes._sharding import Setup

USES_GPU: Final = False
FILES: Final = ("workflow/systems.yaml",)
WORKERS: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
OPTIMIZERS: Final = (
    "base",
    "mkor",
    "mkor_owners_ddp",
    "mkor_windowed",
    "eva",
    "kaisa",
    "kaisa_mem_opt",
    "base_sharded",
    "mkor_owners_sharded",
    "mkor_windowed_sharded",
    "eva_sharded",
    "kaisa_mem_opt_sharded",
)
BUCKET: Final = 25 * 2**20
"""Bytes that DistributedDataParallel reduces in one message."""
HALF: Final = 2
"""Bytes of a number in bfloat16, in which ``fully_shard`` gathers parameters."""


class Row(NamedTuple):
    """One optimizer on one number of GPUs of a system."""

    source: str
    system: str
    gpu: str
    gpu_memory_bytes: float
    workload: str
    optimizer: str
    workers: int
    step_ms: float
    compute_ms: float
    capture_ms: float
    factor_ms: float
    precondition_ms: float
    communication_ms: float
    update_ms: float
    gradients_ms: float
    memory_bytes: float
    state_bytes: float
    sent_bytes: float
    gradient_bytes: float
    step_ms_counted: float
    factor_ms_counted: float
    precondition_ms_counted: float
    update_ms_counted: float
    bytes_floor: float
    bytes_counted: float


class Model(NamedTuple):
    """A transformer and its global batch."""

    name: str
    base: str
    """The base optimizer."""
    layers: tuple[CostedLayer, ...]
    """Those that are preconditioned."""
    parameters: int
    depth: int
    """Blocks, which ``fully_shard`` gathers one at a time, and the rest in one more."""
    width: int
    vocabulary: int
    sequences: int
    tokens: int
    """Of a sequence."""

    @property
    def operations(self) -> float:
        """Operations of a step's forward and backward pass.

        For each token three products with each weight, those with the vocabulary included, and with all keys and values
        of the sequence.
        """
        weights = sum(layer.m * layer.n for layer in self.layers) + self.width * self.vocabulary
        attention = 2 * self.depth * self.tokens * self.width
        return 6.0 * self.sequences * self.tokens * (weights + attention)


def bert_large() -> Model:
    """Return BERT-Large-Uncased with both heads of pre-training, which share the vocabulary's weight."""
    width, vocabulary, positions, depth = 1024, 30522, 512, 24
    norm = 2 * width
    of_layers = sum(layer.m * layer.n + layer.m for layer in _costs.BERT_LARGE)
    embeddings = (vocabulary + positions + 2) * width + norm
    heads = norm + vocabulary + 2 * width + 2
    layers = tuple(layer._replace(has_bias=True) for layer in _costs.BERT_LARGE)
    parameters = of_layers + embeddings + 2 * depth * norm + heads
    return Model("bert_large", "lamb", layers, parameters, depth, width, vocabulary, sequences=32768, tokens=512)


def gpt_7b() -> Model:
    """Return a GPT-like model with the layers of Llama 2's 7B model (Touvron et al., 2023), and its batch."""
    width, inner, vocabulary, depth = 4096, 11008, 32000, 32
    square = CostedLayer(width, width)
    shared = square._replace(shares_input=True)
    block = (
        *(square, shared, shared, square),
        *(CostedLayer(inner, width), CostedLayer(inner, width, shares_input=True), CostedLayer(width, inner)),
    )
    layers = depth * block
    parameters = sum(layer.m * layer.n for layer in layers) + 2 * vocabulary * width + (2 * depth + 1) * width
    return Model("gpt_7b", "adamw", layers, parameters, depth, width, vocabulary, sequences=1024, tokens=4096)


def machine(system: System) -> MachineModel:
    """Return a GPU's assumed rates, of TF32 products and of its memory."""
    gpu, assumed = system.gpu, system.assumed
    return MachineModel(gpu.name, gpu.bandwidth * assumed.memory, gpu.tf32 * assumed.products)


def compute_ms(model: Model, system: System, ranks: int) -> float:
    """Return the time of forward and backward pass of a rank's part of the batch."""
    return 1000 * model.operations / ranks / (system.gpu.bfloat16 * system.assumed.products)


def capture_ms(method: Method | None, model: Model, system: System, ranks: int) -> float:
    """Return the mean time in which a rank reduces its rows to statistics; Eva takes few examples of the batch."""
    if method is None:
        return 0.0
    rows = model.tokens * min(model.sequences // ranks, method.statistic.examples or model.sequences)
    cost = _costs.capture_moments if method.statistic.kind == "moment" else _costs.capture_means
    whole = _costs.least_ms((cost(layer, rows) for layer in model.layers), machine(system))
    return whole * _sharding.share_of_steps(method.accumulates)


def refresh_costs(method: Method, layer: CostedLayer) -> Sequence[LayerCost]:
    """Return the least costs of the periodic work on one layer."""
    if isinstance(method, MKOR):
        return _costs.both_updates(layer, method.window)
    return [_costs.decompose_kaisa(layer)] if isinstance(method, KAISA) else []


def layer_cost(method: Method, layer: CostedLayer) -> LayerCost:
    """Return the least cost of making one layer's V of D."""
    if isinstance(method, MKOR) and method.window is not None:
        return _costs.precondition_windowed(layer, method.window)
    if isinstance(method, MKOR):
        return _costs.precondition_dense(layer)
    return _costs.precondition_kaisa(layer) if isinstance(method, KAISA) else _costs.precondition_eva(layer)


class Amounts(NamedTuple):
    """Functions that return milliseconds or bytes of work on one layer, and of the base optimizer's."""

    refresh: Callable[[Method, CostedLayer], float]
    precondition: Callable[[Method, CostedLayer, int], float]
    """Of so many rows of the layer."""
    update: Callable[[int], float]
    """Of so many parameters."""


def of_pieces(setup: Setup, model: Model, ranks: int, amounts: Amounts) -> dict[str, float]:
    """Return the mean amounts of a step in the pieces factor, precondition and update, of the rank that has most.

    A rank preconditions all layers, its own, or its rows of all. KAISA's refreshes are divided among ranks wherever its
    state is.
    """
    found = {"factor": 0.0, "precondition": 0.0}
    if setup.method is not None:
        method, layers = setup.method, model.layers
        at_owners, everywhere = _sharding.owned(method, layers, ranks), {0: layers}
        parts = ranks if setup.placement == "blocks" else 1
        # Many layers are equal: each kind is computed once.
        refresh = {layer: amounts.refresh(method, layer) for layer in set(layers)}
        whole = {layer: amounts.precondition(method, layer, math.ceil(layer.m / parts)) for layer in set(layers)}
        has_owners = setup.placement == "owners"
        refreshing = at_owners if has_owners or isinstance(method, Distributed) else everywhere
        preconditioning = at_owners if has_owners else everywhere
        most = max(sum(refresh[layer] for layer in own) for own in refreshing.values())
        found["factor"] = most * _sharding.share_of_steps(method.refreshes)
        found["precondition"] = max(sum(whole[layer] for layer in own) for own in preconditioning.values())
    parameters = math.ceil(model.parameters / ranks) if setup.is_sharded else model.parameters
    return {**found, "update": amounts.update(parameters)}


def at_floor(measure: Callable[[LayerCost], float]) -> Amounts:
    """Return the least amounts, as ``measure`` returns them of a cost; LAMB's update is taken as AdamW's."""
    return Amounts(
        lambda method, layer: sum(map(measure, refresh_costs(method, layer))),
        lambda method, layer, rows: measure(layer_cost(method, layer._replace(m=rows))),
        lambda parameters: measure(_costs.adamw(CostedLayer(parameters, 1))),
    )


def floor_ms(system: System) -> Amounts:
    """Return the times at the floor; decompositions have a rate of their own."""
    amounts = at_floor(partial(LayerCost.milliseconds, machine=machine(system)))

    def refresh(method: Method, layer: CostedLayer) -> float:
        if not isinstance(method, KAISA):
            return amounts.refresh(method, layer)
        operations = _costs.decompose_kaisa(layer).operations
        return 1000 * operations / (system.gpu.float32 * system.assumed.decompositions)

    return amounts._replace(refresh=refresh)


def counted(model: Model, measure: Callable[[CountedWork], float]) -> Amounts:
    """Return the amounts by the kernels of the code, as ``measure`` returns milliseconds or bytes of a work.

    A layer's rows on a rank are counted as that share of the layer.
    """

    def refresh(method: Method, layer: CostedLayer) -> float:
        step = _counted_steps.of_layer(method, layer)
        return max(0.0, measure(step.update) - measure(step.plain))

    def precondition(method: Method, layer: CostedLayer, rows: int) -> float:
        return measure(_counted_steps.of_layer(method, layer).plain) * rows / layer.m

    return Amounts(refresh, precondition, lambda number: measure(_counted_steps.of_base(model.base)) * number)


def gradient_bytes(setup: Setup, model: Model) -> float:
    """Return the bytes of the tensors that the exchange of gradients and parameters combines in a step.

    Gradients in float32; ``fully_shard`` gathers the parameters in bfloat16 for the forward and the backward pass.
    """
    return model.parameters * (FLOAT + (2 * HALF if setup.is_sharded else 0))


def gradients_ms(setup: Setup, model: Model, system: System, ranks: int) -> float:
    """Return the time of the exchange of gradients, and under ``fully_shard`` of parameters."""
    size = FLOAT * model.parameters
    if not setup.is_sharded:
        return 1000 * _links.all_reduce_seconds(system, ranks, size, math.ceil(size / BUCKET))
    messages = model.depth + 1
    gathers = 2 * _links.gather_seconds(system, ranks, HALF * model.parameters, messages)
    return 1000 * (gathers + _links.gather_seconds(system, ranks, size, messages))


def communication_ms(setup: Setup, model: Model, system: System, ranks: int) -> float:
    """Return the mean time of the method's collectives."""
    method, layers = setup.method, model.layers
    if method is None:
        return 0.0
    statistics = _links.all_reduce_seconds(system, ranks, _sharding.statistic_bytes(setup, layers))
    seconds = statistics * _sharding.share_of_steps(method.accumulates)
    # The products with the columns, then the norms; Eva's sums alone are one message, which costs no more.
    seconds += _links.all_reduce_seconds(system, ranks, _sharding.block_bytes(setup, layers), messages=2)
    by_rank = _sharding.owned(method, layers, ranks)
    refreshed = _links.broadcast_seconds(system, ranks, _sharding.refreshed_bytes(setup, layers), len(by_rank))
    seconds += refreshed * _sharding.share_of_steps(method.refreshes)
    seconds += _links.broadcast_seconds(system, ranks, _sharding.update_bytes(setup, layers), len(by_rank))
    if setup.placement == "owners" and setup.is_sharded:
        # Who owns most receives most rows of D, and sends most rows of V.
        most = FLOAT * max(sum(map(_sharding.numbers, own)) for own in by_rank.values())
        seconds += 2 * _links.exchange_seconds(system, ranks, most)
    return 1000 * seconds


def rows_of(setup: Setup, model: Model, ranks: int) -> Iterator[Row]:
    """Yield the rows of one optimizer on one number of GPUs of every system."""
    state = _sharding.most_state_bytes(setup, model.layers, ranks)
    parameters = model.parameters / (ranks if setup.is_sharded else 1)
    pieces = partial(of_pieces, setup, model, ranks)
    sizes = {
        "memory_bytes": _sharding.model_bytes(parameters) + state,
        "state_bytes": state,
        "sent_bytes": _sharding.most_sent_bytes(setup, model.layers, ranks),
        "gradient_bytes": gradient_bytes(setup, model),
        "bytes_floor": sum(pieces(at_floor(lambda cost: cost.bytes)).values()),
        "bytes_counted": sum(pieces(counted(model, lambda work: work.bytes)).values()),
    }
    for system in _links.systems():
        floor = pieces(floor_ms(system))
        parts = {
            "compute_ms": compute_ms(model, system, ranks),
            "capture_ms": capture_ms(setup.method, model, system, ranks),
            "factor_ms": floor["factor"],
            "precondition_ms": floor["precondition"],
            "communication_ms": communication_ms(setup, model, system, ranks),
            "update_ms": floor["update"],
            "gradients_ms": gradients_ms(setup, model, system, ranks),
        }
        by_code = pieces(counted(model, partial(CountedWork.milliseconds, system=system)))
        above = sum(ms - floor[piece] for piece, ms in by_code.items())
        yield Row(
            source="model",
            system=system.name,
            gpu=system.gpu.name,
            gpu_memory_bytes=system.gpu.memory,
            workload=model.name,
            optimizer=setup.label,
            workers=ranks,
            step_ms=sum(parts.values()),
            step_ms_counted=sum(parts.values()) + above,
            **{f"{piece}_ms_counted": ms for piece, ms in by_code.items()},
            **parts,
            **sizes,
        )


def measure(plan: Plan, workers: Sequence[int] = WORKERS) -> Iterator[Row]:
    """Yield the rows of all models, optimizers and systems, which are the same at every tier."""
    del plan
    for model in (bert_large(), gpt_7b()):
        for label in OPTIMIZERS:
            setup = replace(Setup.of(label), label=label.replace(BASE, model.base))
            for ranks in workers:
                yield from rows_of(setup, model, ranks)


if __name__ == "__main__":
    sys.exit(_command.run("projection", measure, uses_gpu=USES_GPU))
