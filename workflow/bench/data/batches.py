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

_TUNING_SEED = 0  # every trial has the same split


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
            # A generator for each epoch: to resume needs no draws of the epochs before.
            order, ordered = np.random.default_rng([seed, epoch]).permutation(examples), epoch
        yield k, order[position * batch_size : (position + 1) * batch_size]


def tuning_split(examples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of four in five training examples, and those of the fifth that a search is judged by.

    They are the same in every trial, drawn at random, because files hold one class after the other.
    """
    order = np.random.RandomState(_TUNING_SEED).permutation(examples)
    used, held_out = np.split(order, [examples * 4 // 5])
    return np.sort(used), np.sort(held_out)


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator for the block, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
