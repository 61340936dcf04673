"""Memory of a run: its peak, on the GPU or of the process when it trains on a CPU, and whether it ran out."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

STATUS_FILE: Final = Path("/proc/self/status")
RESET_FILE: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"
"""The value that resets the peak resident size when written to `RESET_FILE` (man 5 proc)."""


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak, so that each of several runs in one process gets its own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Only Linux has the file, and sandboxes and setuid programs may not write it: the peak then spans all runs.
    with suppress(OSError):
        RESET_FILE.write_text(_RESET_PEAK)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak since the reset: allocated tensors on a GPU, resident memory of the process on a CPU.

    Resident memory includes the interpreter and the libraries. If the system cannot reset it, the peak counts from the
    start of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        peak = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS_FILE.read_text(), re.MULTILINE)
        if peak:
            return int(peak[1]) * 1024
    max_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max_rss if sys.platform == "darwin" else max_rss * 1024  # bytes on macOS, kilobytes elsewhere


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether memory ran out: on a GPU, in Python, or in torch's CPU allocator."""
    if isinstance(problem, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU allocator's error has no type of its own.
    return isinstance(problem, RuntimeError) and "can't allocate memory" in str(problem)
