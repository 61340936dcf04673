"""Division of a global batch among ranks and into micro-batches.

Example: ``batch_size`` 128 on 4 ranks. Each rank trains on 32 rows of every batch. With a ``micro_batch_size`` of 16,
the global batch has 8 micro-batches, of which each rank owns 2. With one of 64 it has 2, and each is shared by 2 ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mkor_core.ranks import comm
from workflow.bench.data.batches import Batch
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.training.ranks import Ranks
from workflow.bench.workloads.base import Workload


@dataclass(frozen=True)
class Share:
    """The rows and micro-batches of every global batch that one rank trains on.

    A micro-batch belongs to one rank, or is shared equally by several.
    """

    rows: slice
    """Rows of the global batch."""
    micro_batches: int
    """Micro-batches of this rank in a step; 1 if it shares one."""
    ranks_per_micro_batch: int
    """Number of ranks that share each micro-batch; 1 if each rank has its own."""
    micro_batch_index: int
    """Position, in the global batch, of the micro-batch that this rank shares; 0 if it shares none."""
    global_micro_batches: int
    """Micro-batches of the global batch."""


def share_of(run: Run, ranks: Ranks) -> Share:
    """Return the share of this rank in a run's batches.

    Raises:
        ConfigError: the batch cannot be divided equally among the ranks.
    """
    batch_size, micro_batches = run.spec["workload"]["batch_size"], run.accumulation_steps
    if why := run.split_problem(ranks.size):
        raise ConfigError(f"{run.describe()}: {why}")
    rows_per_rank = batch_size // ranks.size
    rows = slice(ranks.rank * rows_per_rank, (ranks.rank + 1) * rows_per_rank)
    if micro_batches >= ranks.size:
        return Share(rows, micro_batches // ranks.size, 1, 0, micro_batches)
    ranks_per_micro_batch = ranks.size // micro_batches
    return Share(rows, 1, ranks_per_micro_batch, ranks.rank // ranks_per_micro_batch, micro_batches)


def share_batches(workload: Workload, seed: int, start: int, share: Share, device: torch.device) -> Iterator[Batch]:
    """Yield this rank's rows of a workload's batches from batch ``start`` on.

    If ranks share a micro-batch and its loss is a mean over terms other than examples (predicted tokens, for example),
    each batch gets a ``loss_weight``: with it, the mean of the ranks' losses is the loss of the whole micro-batch.
    """
    for batch in workload.sliced_batches(seed, start, share.rows):
        terms = workload.loss_terms(batch) if share.ranks_per_micro_batch > 1 else None
        if terms is None:
            yield batch
        else:
            # counts: [global_micro_batches]. Two ranks with 30 and 50 tokens of one micro-batch get the weights
            # 30 * 2 / 80 and 50 * 2 / 80: the mean of their weighted losses is the mean over all 80 tokens.
            index = share.micro_batch_index
            counts = torch.zeros(share.global_micro_batches, device=device)
            # A number, so that nothing is copied to the device: the batch lies on the CPU.
            counts[index] = int(terms)
            (total,) = comm.sum_across_ranks([counts])
            yield batch | {"loss_weight": counts[index] * share.ranks_per_micro_batch / total[index]}


def micro_batches(batch: Batch, number: int) -> Sequence[Batch]:
    """Return ``batch`` cut into ``number`` equal parts along the examples, the first axis of every tensor.

    Raises:
        ValueError: ``number`` does not divide the examples, or the tensors differ in their number of examples.
    """
    if number == 1:
        return (batch,)
    lengths = {len(tensor) for tensor in batch.values()}
    if len(lengths) != 1 or (examples := lengths.pop()) % number:
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        raise ValueError(f"a batch with the shapes {shapes} cannot be cut into {number} equal parts.")
    parts = [tensor.split(examples // number) for tensor in batch.values()]
    return [dict(zip(batch, part, strict=True)) for part in zip(*parts, strict=True)]
