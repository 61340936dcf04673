"""Peak memory of a run on a CPU."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from workflow.bench.training import peak_memory

CPU = torch.device("cpu")


def test_the_peak_covers_an_array_that_was_allocated_and_freed():
    peak_memory.reset_peak_memory(CPU)
    before = peak_memory.peak_memory_bytes(CPU)
    # A mapping of its own: an allocator may serve an array from memory that earlier tests have freed to it.
    with mmap.mmap(-1, 2**28) as array:
        array[:] = bytes(2**28)
    # Not all of it: the system may meanwhile reclaim memory that this process does not use.
    assert peak_memory.peak_memory_bytes(CPU) - before >= 2**27


@pytest.mark.parametrize("name", [".", "absent/clear_refs"], ids=["not writable", "absent"])
def test_a_peak_that_cannot_be_reset_is_no_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Truth: writing to a folder is an OSError for every user, as writing clear_refs is in a sandbox."""
    monkeypatch.setattr(peak_memory, "RESET_FILE", tmp_path / name)
    peak_memory.reset_peak_memory(CPU)
    assert peak_memory.peak_memory_bytes(CPU) > 0
