"""The Triton kernels: registers and spills as compiled, launches and bytes as counted, and times where there is a GPU.

``python -m benchmarks.kernels`` needs Triton, but no GPU: it compiles every kernel for sm_80 (A100) and sm_90 (H100),
has ptxas report registers and spills, counts the launches and the bytes of a step of BERT-Large's 146 layers on
PyTorch's meta device, and writes ``kernels.csv``; with a GPU it also times AdamW's step with each path. ``--check``
fails if a kernel spills, or has more than 168 registers.

Bytes are those that each program of each launched grid reads and writes, each once for each program. Rows of U and of
P that several programs read count several times, although all but the first find them in the cache.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from baselines import Eva
from benchmarks.counting import bert_large
from benchmarks.methods import RATE
from benchmarks.models import Encoder
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.engines.in_kernels import Kernels
from mkor_core.kernels import grouped
from mkor_core.kernels.fused import FusedAdamW, FusedSGD
from mkor_core.kernels.grouped import BLOCK, FIELDS, STRIP, TWO_SIDED, Group, Launch
from workflow.bench.probes import _timing
from workflow.bench.probes._counting import META, Counting
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import write_atomically
from workflow.bench.support.pages import fill

ARCHITECTURES: Final = {"sm_80": 80, "sm_90": 90}
MOST_REGISTERS: Final = 168
"""Three blocks of 128 threads, or more of fewer, then fit on a multiprocessor at a time."""
METHODS: Final[dict[str, Method]] = {
    "mkor_w4": MKOR(window=4),
    "mkor_w16": MKOR(window=16),
    "mkor_w4_input": MKOR(window=4, sides="input"),
    "eva": Eva(),
}
"""Methods with kernels, by the label of their rows."""
UNALIGNED: Final = ("mkor_w4", "eva")
"""Those whose kernels are also compiled for rows that are not aligned, and for bfloat16."""
OPTIMIZERS: Final = {"": torch.optim.SGD, "adamw": FusedAdamW, "sgd": FusedSGD}
"""The optimizer, by what is added to the label."""


class KernelStep(NamedTuple):
    """What preconditioning adds to a step."""

    path: str
    kernels: int
    gigabytes: float


def launches(
    method: Method, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, dtype: torch.dtype = torch.float32
) -> list[Launch]:
    """Return the launches of a plain step of BERT-Large's layers, on the meta device."""
    model = bert_large().to(dtype)
    found: list[Launch] = []
    with grouped.recorded(found.append):
        stepped = optimizer(model.parameters(), lr=RATE)  # type: ignore[call-arg]
        preconditioner = Preconditioner(model, method, kernels="triton").attach(stepped)
        for _ in range(2):  # the first step updates the factors, the second does not
            found.clear()
            model.zero_grad(set_to_none=False)
            model(torch.empty(2, 16, 1024, device=META, dtype=dtype)).sum().backward()
            stepped.step()
        preconditioner.remove()
    return found


def bytes_of(launch: Launch) -> int:
    """Return the bytes that the programs of a launch read and write."""
    group, constants = launch.group, launch.constants
    w, two_sided = group.kind.window, group.kind.form == TWO_SIDED
    entry, row = group.kind.grad_dtype.itemsize, group.kind.row_dtype.itemsize
    total = math.prod(launch.grid) * (FIELDS * 8 + 8)
    for m, n, has_bias in group.shapes:
        d_in, strips, blocks = n + has_bias, -(-m // STRIP), -(-(n + has_bias) // BLOCK)
        d = m * d_in * entry
        match launch.kernel:
            case "project":
                passes = w // constants["GROUP"]
                total += passes * d + strips * (w * d_in * row + 8) + m * w * 4
                total += (strips * w * d_in * 4 + m * w * row) if two_sided else 0
            case "reduce":
                total += (strips + 1) * w * d_in * 4
            case "windowed":
                sides = (m if two_sided else 0) + d_in
                total += strips * 8 + sides * w * row + (m + (d_in if two_sided else 0)) * w * 4 + group.numbers * 4
            case "finish":
                total += w * d_in * (8 + row) + blocks * w * (w + 1) * 4
            case "rank_one":
                total += strips * 8 + (m + d_in) * row + m * (4 + entry * has_bias) + group.numbers * 4
            case "measure":
                total += strips * 4  # of a layer whose norm has not cancelled
            case "correct" | "step":
                total += (2 if launch.kernel == "correct" else 1) * d + strips * (w * d_in * row + group.numbers * 4)
                total += m * row if constants["FORM"] == grouped.EVA else m * w * 4
                total += (strips * w * d_in * 4 + m * w * row) if two_sided else 0
                if launch.kernel == "step":
                    parameter = constants["PARAMETER_TYPE"].itemsize
                    tensors = {0: 3, 1: 1, 2: 2}[constants["OPTIMIZER"]]
                    total += 2 * tensors * m * d_in * parameter
    return total


def counted(labels: Sequence[str] = tuple(METHODS)) -> Iterator[KernelStep]:
    """Yield what steps without an update cost, in kernels and in PyTorch's own operators."""
    for label in labels:
        method = METHODS[label]
        found = launches(method)
        yield KernelStep(f"{label} triton", len(found), sum(map(bytes_of, found)) / 1e9)
        eager = eager_step(method)
        yield KernelStep(f"{label} eager", eager[0], eager[1] / 1e9)
        found = launches(method, FusedAdamW)
        of_adamw = sum(
            7 * 4 * m * (n + bias) for one in found if one.kernel == "step" for m, n, bias in one.group.shapes
        )
        added = sum(map(bytes_of, found)) - of_adamw
        yield KernelStep(f"{label} in AdamW, beyond AdamW's own", len(found), added / 1e9)


def eager_step(method: Method) -> tuple[int, int]:
    """Return the kernels and the bytes of a plain step in PyTorch's operators."""
    model = bert_large()
    preconditioner = Preconditioner(model, method, lr=RATE, kernels="eager")
    for is_counted in (False, True):  # the first step updates the factors
        model.zero_grad(set_to_none=False)
        model(torch.empty(2, 16, 1024, device=META)).sum().backward()
        with Counting(META) if is_counted else nullcontext() as counts:
            preconditioner.step()
    preconditioner.remove()
    assert counts is not None
    return counts.kernels, counts.bytes


class Time(NamedTuple):
    """How long a step takes on the GPU at hand."""

    path: str
    ms: float
    of_adamw: float
    """The median of the ratios to fused AdamW alone, each within a round."""


def timed(device: torch.device, *, rounds: int = 20) -> Iterator[Time]:
    """Yield the times of steps of AdamW on BERT-Large's layers, alone and with methods, which take turns.

    A step gets gradients that stay the same, and updates no factor.
    """
    steps = {label: partial(elapsed_ms, _stepper(device, *path), device) for label, path in _timed_paths().items()}
    _, *times = _timing.rounds(steps, 1 + rounds)  # the first round compiles the kernels
    for label in steps:
        ratios = [one[label] / one["adamw"] for one in times]
        yield Time(label, median(one[label] for one in times), median(ratios))


def _timed_paths() -> dict[str, tuple[type[torch.optim.Optimizer], Method | None, Kernels]]:
    """Return the optimizer, the method and the kernels of what is timed, by label; AdamW alone stands there twice."""
    adamw = torch.optim.AdamW
    found: dict[str, tuple[type[torch.optim.Optimizer], Method | None, Kernels]] = {}
    found |= {"adamw": (adamw, None, "eager"), "adamw again": (adamw, None, "eager")}
    for label in ("mkor_w4", "eva"):
        found[f"{label} eager"] = adamw, METHODS[label], "eager"
        found[f"{label} triton"] = adamw, METHODS[label], "triton"
        found[f"{label} in AdamW"] = FusedAdamW, METHODS[label], "triton"
    return found


def _stepper(
    device: torch.device, optimizer: type[torch.optim.Optimizer], method: Method | None, kernels: Kernels
) -> Callable[[], object]:
    """Return a function that takes a step, the statistics of which it has had."""
    with device:
        model = Encoder()
        stepped = optimizer(model.parameters(), lr=RATE, fused=device.type == "cuda")  # type: ignore[call-arg]
        if method is not None:
            Preconditioner(model, method, kernels=kernels).attach(stepped)
        model(torch.randn(2, 16, 1024)).square().mean().backward()
        stepped.step()
    return stepped.step


def elapsed_ms(step: Callable[[], object], device: torch.device) -> float:
    """Return the milliseconds that a step takes, on a GPU between two events in its queue."""
    if device.type != "cuda":
        return _timing.milliseconds(step, device)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    step()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


class Compiled(NamedTuple):
    """What ptxas reports of a kernel."""

    kernel: str
    arch: str
    registers: int
    spill_bytes: int


def variants() -> dict[str, Launch]:
    """Return the launches of all methods, optimizers and precisions, by a name for each kernel that is compiled."""
    found: dict[str, Launch] = {}
    for label, method in METHODS.items():
        for suffix, optimizer in OPTIMIZERS.items():
            for dtype in (torch.float32, torch.bfloat16) if label in UNALIGNED else (torch.float32,):
                for launch in launches(method, optimizer, dtype):
                    of_step = suffix if launch.kernel == "step" else ""
                    name = [launch.kernel, label, of_step, str(dtype).removeprefix("torch.")]
                    found.setdefault(" ".join(filter(None, name)), launch)
                    if "ALIGNED" in launch.constants and label in UNALIGNED and dtype == torch.float32:
                        kind = launch.group.kind._replace(is_aligned=False)
                        constants = {**launch.constants, "ALIGNED": False}
                        unaligned = launch._replace(constants=constants, group=Group(kind, launch.group.shapes))
                        found.setdefault(" ".join(filter(None, [*name, "unaligned"])), unaligned)
    return found


def compiled(name: str, launch: Launch, arch: str) -> Compiled:
    """Compile a launch's kernel for an architecture, and return what ptxas reports.

    Raises:
        ConfigError: Triton is not installed.
    """
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.compiler import get_ptxas
        from triton.compiler import ASTSource
    except ImportError:
        raise ConfigError("Triton is not installed: pip install triton, or PyTorch's CUDA build") from None
    kernel, constants, options = grouped.compiled_from(launch)
    names = kernel.arg_names
    signature = {
        **{key: _type(value) for key, value in zip(names, launch.arguments, strict=False)},
        **dict.fromkeys(constants, "constexpr"),
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", ARCHITECTURES[arch], 32), options=options)
    target = re.search(r"^\.target (\S+)", made.asm["ptx"], re.MULTILINE)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(made.asm["ptx"])
        file.flush()
        ptxas, gpu = get_ptxas(ARCHITECTURES[arch]).path, target[1].rstrip(",")
        command = [ptxas, "-v", f"--gpu-name={gpu}", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    assert registers is not None
    assert spills
    return Compiled(name, arch, int(registers[1]), sum(map(int, spills)))


def _type(value: Any) -> str:
    """Return Triton's name of an argument's type."""
    if isinstance(value, Tensor):
        return {torch.int64: "*i64", torch.int32: "*i32", torch.float32: "*fp32", torch.float64: "*fp64"}[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write what is found; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("results/kernels.csv"), help="the table to write (results/kernels.csv)"
    )
    parser.add_argument("--check", action="store_true", help="fail if a kernel spills or has too many registers")
    parser.add_argument("--counts-only", action="store_true", help="count launches and bytes, and compile nothing")
    parser.add_argument("--page", type=Path, help="the page to write the counts into, such as docs/performance.md")

    def work(options: argparse.Namespace) -> int:
        rows: list[dict[str, Any]] = []
        for step in counted():
            print(f"{step.path:44} {step.kernels:6,} kernels {step.gigabytes:7.2f} GB", flush=True)
            rows.append(step._asdict())
        if options.page is not None:
            lines = [f"| {row['path']} | {row['kernels']} | {row['gigabytes']:.2f} |" for row in rows]
            fill(options.page, "kernels", ["| plain step of | kernels | GB |", "|---|---|---|", *lines])
        if torch.cuda.is_available() and not options.counts_only:
            for time in timed(torch.device("cuda")):
                print(f"{time.path:44} {time.ms:9.3f} ms {time.of_adamw:7.3f} of AdamW", flush=True)
                rows.append(time._asdict())
        bad = 0
        for name, launch in {} if options.counts_only else variants().items():
            for arch in ARCHITECTURES:
                one = compiled(name, launch, arch)
                fails = one.spill_bytes > 0 or one.registers > MOST_REGISTERS
                bad += fails
                reported = f"{one.registers:4} registers {one.spill_bytes:5} bytes of spill"
                print(f"{name:44} {arch} {reported}{'  <--' * fails}", flush=True)
                rows.append(one._asdict())
        columns = ["kernel", "arch", "registers", "spill_bytes", "path", "kernels", "gigabytes", "ms", "of_adamw"]
        table = pd.DataFrame(rows).reindex(columns=columns)
        whole = ["registers", "spill_bytes", "kernels"]
        table[whole] = table[whole].astype("Int64")
        write_atomically(options.out, table.to_csv(index=False, float_format="%.3f"))
        return 1 if options.check and bad else 0

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
