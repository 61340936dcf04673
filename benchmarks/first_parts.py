"""What `benchmarks.gpu` measures first and nothing else does: a product by its rows' stride, and a profile of steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import torch

from benchmarks.methods import methods
from benchmarks.whole_steps import PERIOD, contenders
from workflow.bench.probes import _turns
from workflow.bench.probes._models import ProbeModel
from workflow.bench.probes._timed_loop import TimedLoop
from workflow.bench.training.clocks import Clock

STRIDES: Final = (1024, 1025, 1032)
"""Entries from row to row of a 1024 x 1024 factor: packed; beside a bias's column; that, rounded up to 16 bytes."""
PRODUCTS: Final = 50
ROUNDS: Final = 15
PROFILED: Final = ("base", "mkor_w4", "eva")
"""Labels of `benchmarks.whole_steps` whose steps are profiled."""
LARGEST: Final = 60
"""Kernels and operators of a profile that are kept, those that take the device longest."""


class StrideRow(NamedTuple):
    """Products ``D J`` with a factor whose rows lie ``stride`` entries apart; the ratio is within rounds."""

    dtype: str
    stride: int
    rows: int
    size: int
    ms: float
    tflops: float
    of_aligned: float
    """The ratio to the largest stride, of which all rows begin at a multiple of 16 bytes."""
    device: str
    hardware: str
    torch: str


def stride_rows(device: torch.device, hardware: str, *, quick: bool) -> Iterator[StrideRow]:
    """Yield the times of products in TF32 and in bfloat16."""
    size, rows, products = (16, 16, 2) if quick else (STRIDES[0], 4 * STRIDES[0], PRODUCTS)
    strides = tuple(size + stride - STRIDES[0] for stride in STRIDES)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for dtype in (torch.float32, torch.bfloat16):
            turns = {stride: _product(rows, size, stride, products, dtype, device) for stride in strides}
            for turn in turns.values():
                turn()  # chooses the kernel
            times = list(_turns.rounds(turns, 2 if quick else ROUNDS))
            for stride in strides:
                ms = median(one[stride] for one in times)
                yield StrideRow(
                    str(dtype).removeprefix("torch."),
                    stride,
                    rows,
                    size,
                    ms,
                    2 * rows * size**2 / ms / 1e9,
                    median(one[stride] / one[strides[-1]] for one in times),
                    device.type,
                    hardware,
                    str(torch.__version__),
                )
    finally:
        torch.set_float32_matmul_precision(before)


def _product(
    rows: int, size: int, stride: int, products: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], float]:
    """Return a turn that multiplies ``[rows, size]`` by ``[size, size]``: the milliseconds of one product."""
    left = torch.randn(rows, size, device=device, dtype=dtype)
    factor = torch.randn(size, stride, device=device, dtype=dtype)[:, :size]
    result = torch.empty(rows, size, device=device, dtype=dtype)
    return lambda: _turns.milliseconds(lambda: torch.mm(left, factor, out=result), device, products)


class ProfileRow(NamedTuple):
    """An operator or kernel in one period of training, as ``torch.profiler`` saw it."""

    workload: str
    optimizer: str
    name: str
    calls: int
    device_ms: float
    """Of its own, without what it calls; so is the host's."""
    host_ms: float
    device: str
    hardware: str
    torch: str


def profile_rows(model: ProbeModel, label: str, device: torch.device, hardware: str) -> list[ProfileRow]:
    """Return what takes longest in one period of an optimizer's steps, after one that is not profiled."""
    chosen = [] if label == PROFILED[0] else methods([label])
    optimizer = next(one for one in contenders(model, chosen) if one.label == label)
    loop = TimedLoop(model, optimizer, device.type, by_phase=False)
    for _ in range(PERIOD):
        loop.train_step(Clock())
    _turns.now(device)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(PERIOD):
            loop.train_step(Clock())
        _turns.now(device)
    rows = [
        ProfileRow(
            model.name,
            label,
            event.key,
            event.count,
            event.self_device_time_total / 1e3,
            event.self_cpu_time_total / 1e3,
            device.type,
            hardware,
            str(torch.__version__),
        )
        for event in profile.key_averages()
    ]
    return sorted(rows, key=lambda row: (-row.device_ms, -row.host_ms))[:LARGEST]


def run_module(name: str, out: Path, seconds: float) -> tuple[()]:
    """Run ``python -m NAME --out OUT``, whose output is shown, for at most some seconds; return no rows.

    Raises:
        ModuleNotFoundError: there is no such module.
        RuntimeError: it failed, or took longer.
    """
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        ended = subprocess.run([sys.executable, "-m", name, "--out", str(out)], check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"python -m {name} took longer than {seconds:.0f} s") from error
    if ended.returncode:
        raise RuntimeError(f"python -m {name} ended with status {ended.returncode}")
    return ()
