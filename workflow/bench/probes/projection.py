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
- step_ms, the sum of: compute_ms, forward and backward in bfloat16; capture_ms; factor_ms; precondition_ms;
  communication_ms, the method's collectives; update_ms, of the base optimizer; gradients_ms, the exchange of gradients,
  and under ``fully_shard`` of parameters. Nothing overlaps. Methods with a period refresh in one step of 10.
- memory_bytes: parameters, gradients and all optimizer state of the rank that keeps most, without activations;
  state_bytes: the method's part.
- sent_bytes: that the busiest rank hands to the method's collectives in a step; gradient_bytes: the tensors that the
  exchange of gradients and parameters combines.

`_costs` has the operations and bytes of the pieces of a step, `_sharding` those of ranks, `_links` the collectives.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from baselines import KAISA
from mkor_core import MKOR, Method
from mkor_core.method import Distributed
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _costs, _links, _sharding
from workflow.bench.probes._costs import FLOAT, Layer, Machine
from workflow.bench.probes._links import System
from workflow.bench.probes._optimizers import BASE
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


class Model(NamedTuple):
    """A transformer and its global batch."""

    name: str
    base: str
    """The base optimizer."""
    layers: tuple[Layer, ...]
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
    square = Layer(width, width)
    shared = square._replace(shares_input=True)
    block = (
        *(square, shared, shared, square),
        *(Layer(inner, width), Layer(inner, width, shares_input=True), Layer(width, inner)),
    )
    layers = depth * block
    parameters = sum(layer.m * layer.n for layer in layers) + 2 * vocabulary * width + (2 * depth + 1) * width
    return Model("gpt_7b", "adamw", layers, parameters, depth, width, vocabulary, sequences=1024, tokens=4096)


def machine(system: System) -> Machine:
    """Return a GPU's assumed rates, of TF32 products and of its memory."""
    gpu, assumed = system.gpu, system.assumed
    return Machine(gpu.name, gpu.bandwidth * assumed.memory, gpu.tf32 * assumed.products)


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


def refresh_ms(method: Method, layer: Layer, system: System) -> float:
    """Return the time of the periodic work on one layer."""
    if isinstance(method, MKOR):
        return _costs.least_ms(_costs.both_updates(layer, method.window), machine(system))
    if isinstance(method, KAISA):
        operations = _costs.decompose_kaisa(layer).operations
        return 1000 * operations / (system.gpu.float32 * system.assumed.decompositions)
    return 0.0


def layer_ms(method: Method, layer: Layer, system: System) -> float:
    """Return the time in which one layer's D becomes V."""
    if isinstance(method, MKOR) and method.window is not None:
        cost = _costs.precondition_windowed(layer, method.window)
    elif isinstance(method, MKOR):
        cost = _costs.precondition_dense(layer)
    else:
        cost = _costs.precondition_kaisa(layer) if isinstance(method, KAISA) else _costs.precondition_eva(layer)
    return cost.milliseconds(machine(system))


def slowest_ms(setup: Setup, model: Model, ranks: int, ms: Callable[[Layer], float], *, by_owners: bool) -> float:
    """Return the time of the rank with most work; ms: that of one layer."""
    assert setup.method is not None
    of_layer = {layer: ms(layer) for layer in set(model.layers)}
    by_rank = _sharding.owned(setup.method, model.layers, ranks) if by_owners else {0: model.layers}
    return max(sum(of_layer[layer] for layer in own) for own in by_rank.values())


def factor_ms(setup: Setup, model: Model, system: System, ranks: int) -> float:
    """Return the mean time of the periodic work; KAISA's is divided among ranks wherever its state is."""
    method = setup.method
    if method is None:
        return 0.0
    by_owners = setup.placement == "owners" or isinstance(method, Distributed)
    ms = slowest_ms(setup, model, ranks, lambda layer: refresh_ms(method, layer, system), by_owners=by_owners)
    return ms * _sharding.share_of_steps(method.refreshes)


def precondition_ms(setup: Setup, model: Model, system: System, ranks: int) -> float:
    """Return the time in which a rank preconditions its layers, or its rows of all layers."""
    method = setup.method
    if method is None:
        return 0.0
    rows = ranks if setup.placement == "blocks" else 1

    def ms(layer: Layer) -> float:
        return layer_ms(method, layer._replace(m=math.ceil(layer.m / rows)), system)

    return slowest_ms(setup, model, ranks, ms, by_owners=setup.placement == "owners")


def update_ms(setup: Setup, model: Model, system: System, ranks: int) -> float:
    """Return the time of the base optimizer's step; LAMB's is taken as AdamW's."""
    parameters = math.ceil(model.parameters / ranks) if setup.is_sharded else model.parameters
    return _costs.adamw(Layer(parameters, 1)).milliseconds(machine(system))


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
    sizes = {
        "memory_bytes": _sharding.model_bytes(parameters) + state,
        "state_bytes": state,
        "sent_bytes": _sharding.most_sent_bytes(setup, model.layers, ranks),
        "gradient_bytes": gradient_bytes(setup, model),
    }
    for system in _links.systems():
        parts = {
            "compute_ms": compute_ms(model, system, ranks),
            "capture_ms": capture_ms(setup.method, model, system, ranks),
            **{
                piece.__name__: piece(setup, model, system, ranks)
                for piece in (factor_ms, precondition_ms, communication_ms, update_ms, gradients_ms)
            },
        }
        yield Row(
            source="model",
            system=system.name,
            gpu=system.gpu.name,
            gpu_memory_bytes=system.gpu.memory,
            workload=model.name,
            optimizer=setup.label,
            workers=ranks,
            step_ms=sum(parts.values()),
            **parts,
            **sizes,
        )


def rows(workers: Iterable[int] = WORKERS) -> Iterator[Row]:
    """Yield the rows of all models, optimizers and systems."""
    for model in (bert_large(), gpt_7b()):
        for label in OPTIMIZERS:
            setup = Setup.of(label)
            setup = replace(setup, label=label.replace(BASE, model.base))
            for ranks in workers:
                yield from rows_of(setup, model, ranks)


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows, which are the same at every tier."""
    del plan
    return rows()


if __name__ == "__main__":
    sys.exit(_command.run("projection", measure, uses_gpu=USES_GPU))
