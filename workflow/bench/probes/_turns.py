"""Contenders that take turns: the one rig of every comparison of times.

A machine's speed drifts (other load, temperature, clock rates), so times are compared only within a round, in which
every contender had its turn. The order of the turns changes from round to round, since a contender that always follows
the same one finds the caches as that one left them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


def rounds(turns: Mapping[Key, Callable[[], Result]], number: int) -> Iterator[dict[Key, Result]]:
    """Yield what each contender's turn returned, by contender and in their given order, for ``number`` rounds.

    The order of a round's turns depends on the round alone, so that it is the same on every rank.
    """
    keys = list(turns)
    for index in range(number):
        order = random.Random(index).sample(keys, len(keys))
        results = {key: turns[key]() for key in order}
        yield {key: results[key] for key in keys}


def now(device: torch.device) -> float:
    """Return the time in seconds, once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def milliseconds(call: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Return the mean time of ``calls`` calls in milliseconds, from an idle device until it is idle again."""
    start = now(device)
    for _ in range(calls):
        call()
    return 1000 * (now(device) - start) / calls
