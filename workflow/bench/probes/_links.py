"""Systems of GPUs with their published speeds, and the seconds of collectives on them by formulas.

The speeds are those of ``workflow/systems.yaml``. A collective costs its messages' hops, one after the other, and its
bytes over the slowest link that they pass: a GPU's link to its node, or all network adapters of a node together, which
rings and trees share. Nothing else runs meanwhile. Sizes are those of the tensors that a collective combines.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.support.config import ROOT, check, error, read_mapping, schema

SYSTEMS: Final = ROOT / "workflow" / "systems.yaml"


class Gpu(NamedTuple):
    """A GPU's peaks: operations and bytes a second, and bytes."""

    name: str
    bfloat16: float
    tf32: float
    float32: float
    """Without tensor cores."""
    memory: float
    bandwidth: float
    """Of the memory, read and written together."""
    link: float
    """Sent to the other GPUs of the node."""


_PEAKS: Final = {
    **dict.fromkeys(("bfloat16_tflops", "tf32_tflops", "float32_tflops"), 1e12),
    **dict.fromkeys(("memory_gb", "memory_gb_per_s", "link_gb_per_s"), 1e9),
}
"""The file's names of a GPU's peaks, in the order of `Gpu`, and their units."""


class Messages(NamedTuple):
    """The cost of messages along a ring or a tree, in seconds."""

    start: float
    """Of a collective."""
    link: float
    """A hop inside a node."""
    network: float
    """A hop between nodes."""
    share: float
    """The part of a link's bandwidth that carries data."""


class Assumed(NamedTuple):
    """The shares of peaks that training is assumed to reach."""

    products: float
    memory: float
    decompositions: float


class System(NamedTuple):
    """Nodes of GPUs and the network between them."""

    name: str
    gpu: Gpu
    gpus_per_node: int
    network: float
    """Bytes a second that a node sends."""
    ring: Messages
    tree: Messages
    assumed: Assumed

    def nodes(self, gpus: int) -> int:
        """Return the number of nodes that some GPUs fill."""
        return -(-gpus // self.gpus_per_node)

    def bandwidth(self, gpus: int) -> float:
        """Return the bytes a second of a ring or tree through all GPUs."""
        return self.gpu.link if self.nodes(gpus) == 1 else min(self.gpu.link, self.network)


@cache
def systems(file: Path = SYSTEMS) -> tuple[System, ...]:
    """Return the systems of a file, in its order.

    Raises:
        ConfigError: the file breaks its schema, or names a GPU that it lacks.
    """
    content = read_mapping(file)
    check(content, schema("systems"), file)
    gpus = {
        name: Gpu(name, *(unit * peaks[key] for key, unit in _PEAKS.items())) for name, peaks in content["gpus"].items()
    }
    ring, tree = (
        Messages(
            1e-6 * costs["start_us"], 1e-6 * costs["link_us"], 1e-6 * costs["network_us"], costs["bandwidth_share"]
        )
        for costs in (content["messages"][shape] for shape in ("ring", "tree"))
    )
    assumed, found = Assumed(**content["assumed"]), []
    for name, system in content["systems"].items():
        gpu, network = system["gpu"], 1e9 * system["network_gb_per_s"]
        if gpu not in gpus:
            raise error(file, ("systems", name, "gpu"), gpu, f"must be one of {', '.join(gpus)}")
        found.append(System(name, gpus[gpu], system["gpus_per_node"], network, ring, tree, assumed))
    return tuple(found)


def all_reduce_seconds(system: System, gpus: int, size: float, messages: int = 1) -> float:
    """Return the time of all-reduces of ``size`` bytes together: of the faster of rings and trees.

    A ring passes ``2 (p - 1)`` parts of ``n / p`` bytes on; a tree n bytes up and down.
    """
    if gpus == 1 or not size:
        return 0.0
    # The start counts once, the way to the last GPU twice.
    around = 2 * _ring_latency(system, gpus) - system.ring.start
    levels = 2 * _tree_latency(system, gpus) - system.tree.start
    bandwidth = system.bandwidth(gpus)
    return min(
        messages * around + 2 * (gpus - 1) / gpus * size / (bandwidth * system.ring.share),
        messages * levels + 2 * size / (bandwidth * system.tree.share),
    )


def gather_seconds(system: System, gpus: int, size: float, messages: int = 1) -> float:
    """Return the time of all-gathers, or reduce-scatters, whose whole tensors have ``size`` bytes together.

    A ring passes ``p - 1`` parts of ``n / p`` bytes on.
    """
    if gpus == 1 or not size:
        return 0.0
    passed = (gpus - 1) / gpus * size / (system.bandwidth(gpus) * system.ring.share)
    return messages * _ring_latency(system, gpus) + passed


def broadcast_seconds(system: System, gpus: int, size: float, messages: int = 1) -> float:
    """Return the time of broadcasts of ``size`` bytes together, from one rank each: down a tree, in small pieces."""
    if gpus == 1 or not size:
        return 0.0
    return messages * _tree_latency(system, gpus) + size / (system.bandwidth(gpus) * system.tree.share)


def exchange_seconds(system: System, gpus: int, size: float) -> float:
    """Return the time of one all-to-all; size: bytes that the busiest rank has for all ranks, itself included.

    Each rank sends to the others in turn, in equal parts; GPUs of a node share its network adapters.
    """
    if gpus == 1 or not size:
        return 0.0
    inside = min(gpus, system.gpus_per_node)
    near, far = inside - 1, gpus - inside
    latency = system.ring.start + near * system.ring.link + far * system.ring.network
    adapters = system.network / system.gpus_per_node
    return latency + size / gpus * (near / system.gpu.link + far / adapters) / system.ring.share


def _ring_latency(system: System, gpus: int) -> float:
    """Return the time in which an empty message passes all GPUs of a ring but the first."""
    between = system.nodes(gpus) - 1
    return system.ring.start + (gpus - 1 - between) * system.ring.link + between * system.ring.network


def _tree_latency(system: System, gpus: int) -> float:
    """Return the time in which an empty message reaches all GPUs: along each node's GPUs, down a tree of nodes."""
    inside, nodes = min(gpus, system.gpus_per_node), system.nodes(gpus)
    return system.tree.start + (inside - 1) * system.tree.link + math.ceil(math.log2(nodes)) * system.tree.network
