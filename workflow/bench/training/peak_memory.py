"""Peak memory of a run: the GPU's where it computes on one, else that of the process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
#: What Linux takes for: start the peak anew (man 5 proc).
_RESET_PEAK = "5"


def reset_peak_memory(device: torch.device) -> None:
    """Start measuring anew, so that a process that trains many runs tells the peak of each."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR.exists():
        _CLEAR.write_text(_RESET_PEAK)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak since the reset: allocated tensors on a GPU; the process's resident memory on a CPU.

    The latter holds the interpreter and the libraries too.  Where the system cannot reset it, it is the peak since
    the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kilobytes elsewhere
