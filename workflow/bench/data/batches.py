"""Batches: tensors by name, and the order in which examples are drawn, which a seed fixes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Batch = dict[str, Tensor]


def shuffled_indices(seed: int, start: int, examples: int, batch_size: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (k, indices of batch k) for k = ``start``, ``start + 1``, ... without end.

    Batch k depends on ``seed`` and k alone. Each epoch is a new order of all examples, cut into whole batches; the
    examples that do not fill a batch are left out of that epoch.

    Raises:
        ValueError: a batch would hold more examples than there are.
    """
    per_epoch = examples // batch_size
    if not per_epoch:
        raise ValueError(f"{batch_size=} must be at most the number of training examples, {examples}.")
    ordered = -1
    for k in count(start):
        epoch, position = divmod(k, per_epoch)
        if epoch != ordered:
            order, ordered = np.random.default_rng([seed, epoch]).permutation(examples), epoch
        yield k, order[position * batch_size : (position + 1) * batch_size]


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator for the block, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
