"""Collectives that send flat buffers, one for each dtype, and count the bytes handed to them.

On one process every function returns its input, so callers never branch on the number of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_bytes: Counter[str] = Counter()


def bytes_sent() -> dict[str, int]:
    """Return the payload bytes that this process has handed to each collective since `reset_bytes_sent`."""
    return dict(_bytes)


def reset_bytes_sent() -> None:
    """Start counting from zero."""
    _bytes.clear()


def count_bytes(collective: str, tensor: Tensor) -> None:
    """Add one call's payload to `bytes_sent`."""
    _bytes[collective] += tensor.numel() * tensor.element_size()


def is_distributed() -> bool:
    """Return whether the default process group is initialized."""
    return dist.is_available() and dist.is_initialized()


def world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of ranks in ``group`` (default: all), 1 without a process group."""
    return dist.get_world_size(group) if is_distributed() else 1


def rank(group: ProcessGroup | None = None) -> int:
    """Return this process's rank in ``group`` (default: all), 0 without a process group."""
    return dist.get_rank(group) if is_distributed() else 0


def sum_across_ranks(tensors: Sequence[Tensor], group: ProcessGroup | None = None) -> list[Tensor]:
    """Return every tensor summed over the ranks, by one flat all-reduce for each dtype."""
    if world_size(group) == 1 or not tensors:
        return list(tensors)
    summed: dict[int, Tensor] = {}
    # Sorted by dtype, in the same order on every rank: tensors of one dtype share a buffer.
    by_dtype = sorted(range(len(tensors)), key=lambda i: str(tensors[i].dtype))
    for _, group_of_indices in groupby(by_dtype, key=lambda i: tensors[i].dtype):
        indices = list(group_of_indices)
        parts = [tensors[i] for i in indices]
        flat = torch.cat([part.reshape(-1) for part in parts])
        dist.all_reduce(flat, group=group)
        count_bytes("all_reduce", flat)
        for i, part in zip(indices, flat.split([part.numel() for part in parts]), strict=True):
            summed[i] = part.view(tensors[i].shape)
    return [summed[i] for i in range(len(tensors))]


def gather_rows(rows: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the rows ``[n, d]`` of all ranks, in rank order; n may differ between ranks, which makes the host wait."""
    world = world_size(group)
    if world == 1:
        return rows
    number = torch.tensor([rows.shape[0]], device=rows.device)
    numbers = [torch.empty_like(number) for _ in range(world)]
    dist.all_gather(numbers, number, group=group)
    # all_gather needs the same shape from every rank: pad to the most rows, and cut the padding off afterwards.
    most = max(int(n) for n in numbers)
    padded = torch.nn.functional.pad(rows, (0, 0, 0, most - rows.shape[0])).contiguous()
    gathered = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(gathered, padded, group=group)
    count_bytes("all_gather", padded)
    return torch.cat([part[: int(n)] for part, n in zip(gathered, numbers, strict=True)])


def broadcast(tensors: Sequence[Tensor], source: int, group: ProcessGroup | None = None) -> list[Tensor]:
    """Return the tensors of the global rank ``source``, in one flat broadcast.

    All ranks pass tensors of the same shapes and one dtype. Bytes are counted on the source only.
    """
    if world_size(group) == 1 or not tensors:
        return list(tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.broadcast(flat, source, group=group)
    if dist.get_rank() == source:
        count_bytes("broadcast", flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def pack_symmetric(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric ``[d, d]`` matrix as ``[d (d + 1) / 2]``."""
    return matrix[_upper_triangle(len(matrix), matrix.device)]


def unpack_symmetric(triangle: Tensor, dimension: int) -> Tensor:
    """Return the symmetric ``[d, d]`` matrix of an upper triangle that `pack_symmetric` returned."""
    matrix = triangle.new_zeros(dimension, dimension)
    matrix[_upper_triangle(dimension, triangle.device)] = triangle
    return matrix + matrix.triu(1).T


def _upper_triangle(dimension: int, device: torch.device) -> Tensor:
    return torch.ones(dimension, dimension, dtype=torch.bool, device=device).triu()
