"""How a global batch is divided: into the parts of ranks, and into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mkor_core import comm
from workflow.bench.data.batches import Batch
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.training.ranks import Ranks
from workflow.bench.workloads.base import Workload


@dataclass(frozen=True)
class Share:
    """A rank's part of every step: its examples of the global batch, and its micro-batches.

    A micro-batch belongs to one rank, or to several that have equal parts of it.
    """

    rows: slice
    micro_batches: int
    """Of this rank, in a step."""
    owners: int
    """Ranks that have a part of each micro-batch."""
    number: int
    """The micro-batch that this rank's examples are a part of, where it shares one."""
    of: int
    """Micro-batches of the global batch."""


def share_of(run: Run, ranks: Ranks) -> Share:
    """Return the part of a run's batches that a rank trains on.

    Raises `ConfigError` where the ranks cannot have equal parts.
    """
    size, batch, parts = ranks.size, run.spec["workload"]["batch_size"], run.accumulation_steps
    if why := run.why_not_on(size):
        raise ConfigError(f"{run.describe()}: {why}")
    mine = batch // size
    rows = slice(ranks.rank * mine, (ranks.rank + 1) * mine)
    if parts >= size:
        return Share(rows, parts // size, 1, 0, parts)
    owners = size // parts
    return Share(rows, 1, owners, ranks.rank // owners, parts)


def share_batches(workload: Workload, seed: int, start: int, share: Share, device: torch.device) -> Iterator[Batch]:
    """Yield this rank's part of a workload's batches from ``start`` on.

    Where ranks share a micro-batch and its loss is a mean over something else than examples (predicted tokens, say),
    a rank's ``loss_weight`` makes the mean of the ranks' losses the loss of the whole.
    """
    for batch in workload.sliced_batches(seed, start, share.rows):
        terms = workload.loss_terms(batch) if share.owners > 1 else None
        if terms is None:
            yield batch
        else:
            counts = torch.zeros(share.of, device=device)
            counts[share.number] = terms.to(device)
            (total,) = comm.sum_across_ranks([counts])
            yield batch | {"loss_weight": counts[share.number] * share.owners / total[share.number]}


def micro_batches(batch: Batch, number: int) -> Sequence[Batch]:
    """Return ``batch`` cut into ``number`` equal parts along its examples, the first axis of each tensor.

    Raises `ValueError` where ``number`` does not divide the examples, or tensors have not as many of them.
    """
    if number == 1:
        return (batch,)
    lengths = {len(tensor) for tensor in batch.values()}
    if len(lengths) != 1 or (examples := lengths.pop()) % number:
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        raise ValueError(f"a batch with the shapes {shapes} cannot be cut into {number} equal parts.")
    parts = [tensor.split(examples // number) for tensor in batch.values()]
    return [dict(zip(batch, part, strict=True)) for part in zip(*parts, strict=True)]
