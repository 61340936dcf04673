"""Whether the ranks that train together still have the same weights and factors, to the last bit.

Each rank steps its own copy of the model. The copies begin alike and get the same gradients, so they stay alike, unless
an algorithm gives other bits on another rank: then they drift apart, and nothing else would tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from workflow.bench.training.build import Parts
from workflow.bench.training.ranks import Ranks

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers that hold the bytes of a number, by its size."""
_NUMBERS_AT_ONCE: Final = 2**18
_FACTOR: Final = 0x1E3779B97F4A7C15
"""An odd number without a pattern in its bits."""
_MOST_NAMED: Final = 8


def difference(parts: Parts, ranks: Ranks) -> str | None:
    """Return which ranks differ in which weights or factors; None if no two of them do. All ranks make the same call.

    Compared are the model's parameters, and the tensors of the preconditioner's state that several ranks hold. Buffers,
    such as running means, are each rank's own.
    """
    if ranks.size == 1:
        return None
    own = _digests(parts)
    # As a rule all ranks hold the same, and a few bytes from each of them say so.
    whole = hashlib.sha256(repr(sorted(own.items())).encode()).hexdigest()
    if len({*ranks.gathered(whole)}) == 1:
        return None
    return _described(ranks.gathered(own))


def digest(tensor: Tensor) -> Tensor:
    """Return 64 bits, as an int64 scalar on the tensor's device, that depend on all of its bytes and their places.

    The change of any one number changes them.
    """
    numbers = tensor.detach().reshape(-1)
    numbers = numbers.view(_INTEGERS[numbers.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    places = torch.arange(min(len(numbers), _NUMBERS_AT_ONCE), device=tensor.device) * _FACTOR
    for part in numbers.split(_NUMBERS_AT_ONCE):
        # Each step maps different integers to different ones, modulo 2^64. A number of few digits, such as 1.0, has all
        # of its bits at the upper end, and a product moves bits only up: so they are brought down first.
        mixed = _folded(part.to(torch.int64)) * _FACTOR + places[: len(part)]
        total = total * _FACTOR + _folded(_folded(mixed) * _FACTOR).sum()
    return total


def _folded(integers: Tensor) -> Tensor:
    """Return 64-bit integers with their upper half added, modulo 2, to the lower one."""
    return integers ^ (integers >> 32 & 0xFFFFFFFF)


def _digests(parts: Parts) -> dict[str, int]:
    """Return the digests of this rank's weights and factors by what a message calls them."""
    tensors = {f"the weights {name}": tensor for name, tensor in parts.model.named_parameters()}
    if parts.preconditioner is not None:
        for layer, state in parts.preconditioner.state_dict()["layers"].items():
            tensors |= {f"the factor '{key}' of {layer or 'the model'}": tensor for key, tensor in state.items()}
    # A consolidated state is in host memory. All numbers are computed before the first one is waited for.
    device = next(parts.model.parameters()).device
    found = torch.stack([digest(tensor).to(device) for tensor in tensors.values()])
    return dict(zip(tensors, found.tolist(), strict=True))


def _described(by_rank: Sequence[Mapping[str, int]]) -> str | None:
    """Return the first tensor that differs, and on which ranks; those that a rank does not hold are not compared."""
    names = dict.fromkeys(name for digests in by_rank for name in digests)
    differing: list[tuple[str, list[list[int]]]] = []
    for name in names:
        groups: dict[int, list[int]] = {}
        for rank, digests in enumerate(by_rank):
            if name in digests:
                groups.setdefault(digests[name], []).append(rank)
        if len(groups) > 1:
            # The most ranks first; of two groups of one size, that of the lowest rank.
            differing.append((name, sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))))
    if not differing:
        return None
    name, (most, *others) = differing[0]
    odd = sorted(rank for group in others for rank in group)
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    return f"ranks differ in {name}{more}: {_named(odd)} from {_named(most)}"


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_NAMED]))
    rest = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{rest}"
