"""What `benchmarks.gpu` measures itself: a trial of every method, a product by its rows' stride, a profile of steps.

A trial tells whether a method steps on the device, whether the host waits within its steps, and whether its updates are
right.
"""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.contenders import OptimizerContender, of_method
from benchmarks.methods import BenchmarkMethod, build_or_reason, methods
from benchmarks.models import EncoderBlock
from benchmarks.whole_steps import PERIOD, contenders
from workflow.bench.probes import _timing
from workflow.bench.probes._models import ProbeModel
from workflow.bench.probes._timing import TimedLoop
from workflow.bench.training.clocks import Clock

CYCLES: Final = 2
"""Cycles of an update and a plain step under sync-debug mode, after one without it, which sets up the state."""
_WAIT: Final = "synchronizing CUDA operation"
"""A part of the message of `torch.cuda.set_sync_debug_mode`."""


class MethodTrial(NamedTuple):
    """One method on one block."""

    block: str
    optimizer: str
    status: str
    """``ok``; ``waits``: it works, but the host waits for the device within steps; ``not finite``: a weight is NaN or
    infinite; ``missing``: its package is not installed."""
    waits: int | None
    """Waits of the host in `CYCLES` cycles; None on a CPU."""
    one_minus_cosine: float | None
    """Between the updates here and in float64 on the CPU, of a second-order method; None on a model with BatchNorm,
    whose gradients of a few examples depend on rounding."""
    detail: str | None
    """The first wait, or the missing package."""
    device: str
    hardware: str
    torch: str


def trial(method: BenchmarkMethod, block: EncoderBlock, device: torch.device, hardware: str) -> MethodTrial:
    """Return what a method does on a block at its narrowest width."""
    width = block.widths[0]
    about, where = (block.name, method.label), (device.type, hardware, str(torch.__version__))
    contender = of_method(method, block, width, device)
    if isinstance(contender, str):
        return MethodTrial(*about, "missing", None, None, contender, *where)
    has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in contender.model.modules())
    difference = None
    if method.is_second_order and not has_batch_norm:
        difference = update_difference(method, block, width, device)
    waits = waits_in_steps(method, block, width, device) if device.type == "cuda" else None
    contender.train(2 * CYCLES)
    finite = all(bool(weight.isfinite().all()) for weight in contender.model.parameters())
    status = "not finite" if not finite else "waits" if waits else "ok"
    number = None if waits is None else len(waits)
    return MethodTrial(*about, status, number, difference, waits[0] if waits else None, *where)


def waits_in_steps(method: BenchmarkMethod, block: EncoderBlock, width: int, device: torch.device) -> list[str]:
    """Return where the host waits for the GPU in whole training steps: source lines, one for each wait.

    The first steps, which set up the state, may wait.
    """

    def warmed_up() -> OptimizerContender:
        contender = of_method(method, block, width, device)
        assert not isinstance(contender, str)  # another one has been made
        contender.warm_up()
        return contender

    contender = warmed_up()
    try:
        with _sync_debug("error"):
            contender.train(2 * CYCLES)
    except RuntimeError as error:
        if _WAIT not in str(error):
            raise
    else:
        return []
    contender = warmed_up()  # the error may have left the other one in the middle of a step
    with _sync_debug("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        contender.train(2 * CYCLES)
    return [f"{one.filename}:{one.lineno}" for one in caught if _WAIT in str(one.message)]


@contextmanager
def _sync_debug(mode: str) -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def update_difference(method: BenchmarkMethod, block: EncoderBlock, width: int, device: torch.device) -> float:
    """Return 1 - cos of the updates after an update and a plain step, here and in float64 on the CPU."""
    torch.manual_seed(0)
    reference, inputs = block.make(width).double().train(), block.few(width).double()
    here = copy.deepcopy(reference).float().to(device)

    def updates(model: nn.Module, inputs: Tensor) -> Tensor:
        built = build_or_reason(method, model, 2)
        assert not isinstance(built, str)  # its contender has been made
        OptimizerContender(model, inputs, *built).train(2)
        return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])

    expected, found = updates(reference, inputs), updates(here, inputs.float().to(device))
    return 1 - float(nn.functional.cosine_similarity(found.cpu().double(), expected, dim=0))


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
            times = list(_timing.rounds(turns, 2 if quick else ROUNDS))
            for stride in strides:
                ms = median(one[stride] for one in times)
                ratio = median(one[stride] / one[strides[-1]] for one in times)
                shape = str(dtype).removeprefix("torch."), stride, rows, size
                where = device.type, hardware, str(torch.__version__)
                yield StrideRow(*shape, ms, 2 * rows * size**2 / ms / 1e9, ratio, *where)
    finally:
        torch.set_float32_matmul_precision(before)


def _product(
    rows: int, size: int, stride: int, products: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], float]:
    """Return a turn that multiplies ``[rows, size]`` by ``[size, size]``: the milliseconds of one product."""
    left = torch.randn(rows, size, device=device, dtype=dtype)
    factor = torch.randn(size, stride, device=device, dtype=dtype)[:, :size]
    result = torch.empty(rows, size, device=device, dtype=dtype)
    return lambda: _timing.milliseconds(lambda: torch.mm(left, factor, out=result), device, products)


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
    _timing.now(device)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(PERIOD):
            loop.train_step(Clock())
        _timing.now(device)
    rows = [
        ProfileRow(
            *(model.name, label, event.key, event.count),
            *(event.self_device_time_total / 1e3, event.self_cpu_time_total / 1e3),
            *(device.type, hardware, str(torch.__version__)),
        )
        for event in profile.key_averages()
    ]
    return sorted(rows, key=lambda row: (-row.device_ms, -row.host_ms))[:LARGEST]


def run_module(name: str, out: Path, seconds: float) -> tuple[()]:
    """Run ``python -m NAME --out OUT``, whose output is shown, for at most some seconds; return no rows.

    Raises:
        RuntimeError: it failed, or took longer.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        ended = subprocess.run([sys.executable, "-m", name, "--out", str(out)], check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"python -m {name} took longer than {seconds:.0f} s") from error
    if ended.returncode:
        raise RuntimeError(f"python -m {name} ended with status {ended.returncode}")
    return ()


class OutOfTimeError(Exception):
    """The chunk's time is over."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `OutOfTimeError` in the main thread once the time is over, or when the process is told to end."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
