"""Everything that is measured on a GPU, in chunks of at most nine minutes, by one command on a bare machine.

``python -m benchmarks.gpu --out FOLDER`` measures the chunks that FOLDER lacks, one after the other; ``--list`` names
them, ``--chunk NAME`` measures one, again if need be. It needs PyTorch (2.6 or later), NumPy, pandas, SciPy and PyYAML,
and neither Snakemake nor a network. A model or rival whose package is missing is left out by name, and so is one that
runs out of memory or of the chunk's time; the rest goes on.

FOLDER is laid out as ``results/reference/<hardware>/single_gpu``, where it can be kept:

- ``probes/<probe>.csv``: step times, memory and costs of BERT-Large and ResNet-50 at their true sizes, on random data;
- ``bench/smoke.csv``: each method's trial under ``torch.cuda.set_sync_debug_mode("error")`` (`benchmarks.gpu_parts`);
- ``bench/whole_steps.csv`` (`benchmarks.whole_steps`);
- ``chunks/<chunk>.json``: seconds, machine, package versions, and what was left out and why.

``--first`` measures in at most ten minutes what to know first of a GPU that is at hand for half an hour (`FIRST`), and
writes it to FOLDER/first: shorter chunks, of which ``first.csv`` says how each ended.

``--device cpu --quick`` tries the program out on a CPU, with small models and a few steps.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pandas as pd
import torch

from baselines import method_class
from benchmarks import gpu_parts, models, steps, whole_steps
from benchmarks.gpu_parts import OutOfTimeError, time_limit
from benchmarks.methods import methods
from workflow.bench.plan import Plan, Tier
from workflow.bench.probes import _ranks, cost_scaling, iteration_time, memory, step_breakdown
from workflow.bench.probes._command import table_of
from workflow.bench.probes._models import ProbeModel, bert_large, optimizers
from workflow.bench.probes._timing import SAFE_RATE, release
from workflow.bench.support import provenance
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ConfigError, did_you_mean
from workflow.bench.support.files import write_atomically, write_json

logger = logging.getLogger(__name__)

DIMENSIONS: Final = (1024, 2048, 4096, 8192)
TIER: Final = "single_gpu"
CHUNK_SECONDS: Final = 525.0
"""A chunk is cut off after this time, so that with its start and end it stays below nine minutes."""


@dataclass
class Session:
    """A chunk's measurement: where it computes and writes, and what it had to leave out."""

    out: Path
    device: torch.device
    quick: bool
    hardware: str
    seconds: float = CHUNK_SECONDS
    """The time of the chunk."""
    is_first: bool = False
    """Whether this is a part of ``--first``."""
    left_out: list[str] = field(default_factory=list)
    failed: bool = False

    def note(self, what: str, reason: str) -> None:
        """Note and print that something is left out."""
        self.left_out.append(f"{what}: {reason}")
        say(f"  {what} is left out: {reason}")

    @property
    def plan(self) -> Plan:
        """A plan without experiments: the probes measure the models that they are given."""
        tier = Tier(TIER, "true model sizes on one GPU", self.device.type, torch.get_num_threads(), 10.0, "float32")
        return Plan(tier, self.hardware, self.out, {}, ())


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


Result = TypeVar("Result")


def part(session: Session, what: str, measure: Callable[[], Iterable[Result]]) -> Iterator[Result]:
    """Yield what is measured in one part of a chunk; where it cannot be measured, note why.

    A failure that nothing explains is printed with its traceback; the command's exit status is then 1.
    """
    say(f"  {what}")
    try:
        yield from measure()
    except OutOfTimeError:
        raise
    except ModuleNotFoundError as error:
        session.note(what, f"the package {error.name} is not installed")
    except torch.OutOfMemoryError:
        session.note(what, "out of memory")
    except Exception as error:
        logger.exception("%s failed", what)
        session.note(what, f"failed: {(str(error).strip() or repr(error)).splitlines()[-1]}")
        session.failed = True
    release(session.device.type)


def bert(session: Session) -> ProbeModel:
    """Return BERT-Large on random tokens, in the precision of the experiments at this tier."""
    data = whole_steps.small_models()["bert"]().data if session.quick else bert_large(batch_size=8)
    base = "lamb"
    try:
        method_class(base)
    except ModuleNotFoundError as error:
        session.note("lamb as the base", f"the package {error.name} is not installed; adamw takes its place")
        base = "adamw"
    return ProbeModel("bert", data, base, 4e-3, "bfloat16")


def resnet(session: Session) -> ProbeModel:
    """Return ResNet-50 on random images."""
    makers = whole_steps.small_models() if session.quick else whole_steps.true_models()
    return replace(makers["resnet"](), lr=0.1)


MODELS: Final[Mapping[str, Callable[[Session], ProbeModel]]] = {"bert": bert, "resnet": resnet}

Rows = Iterator[NamedTuple]


def smoke_rows(session: Session) -> Rows:
    """Yield every method's trial."""
    for block in models.BLOCKS:
        narrow = models.narrowed(block, 4) if session.quick else block
        trial = partial(gpu_parts.trial, block=narrow, device=session.device, hardware=session.hardware)
        for method in methods():
            for row in part(session, f"{method.label} on {block.name}", partial(map, trial, [method])):
                if row.status != "ok":
                    say(f"    {row.status}: {row.detail}")
                yield row


def step_rows(session: Session) -> Rows:
    """Yield the rows of `benchmarks.whole_steps`."""
    makers = whole_steps.small_models() if session.quick else whole_steps.true_models()
    seconds = 60 * steps.QUICK_MINUTES if session.quick else min(60 * whole_steps.MINUTES, 0.8 * session.seconds)
    seconds /= len(makers)
    chosen, table = methods(FIRST_LABELS if session.is_first else whole_steps.LABELS), []
    for name, make in makers.items():
        measure = partial(whole_steps.measure, [make], chosen, session.device, session.hardware, seconds)
        for row in part(session, f"steps of {name}", measure):
            yield row
            table.append(row)
    for line in whole_steps.summary(table):
        print(line)


def cost_rows(session: Session) -> Rows:
    """Yield the rows of the probe cost_scaling."""
    dimensions = (16, 32) if session.quick else DIMENSIONS
    labels = cost_scaling.OPTIMIZERS
    yield from part(session, "cost_scaling", lambda: cost_scaling.measure(session.plan, labels, dimensions))


PROBES: Final = {"step_breakdown": step_breakdown, "iteration_time": iteration_time, "memory": memory}
"""Probes that are measured model by model, and optimizer by optimizer."""


def probe_rows(session: Session, probe: str, name: str) -> Rows:
    """Yield the rows of a probe for a model; KAISA, which may not finish in time, comes last."""
    for label in sorted(PROBES[probe].OPTIMIZERS, key=lambda label: label == "kaisa"):
        yield from part(session, f"{probe} of {label} on {name}", partial(_of_label, session, probe, name, label))


def _of_label(session: Session, probe: str, name: str, label: str) -> Iterable[NamedTuple]:
    model, device, hardware = MODELS[name](session), session.device.type, session.hardware
    if probe == "iteration_time":
        sweep = iteration_time.sweep_of(model, label, {})
        assert sweep is not None  # all labels of the probe have a period
        return iteration_time.rows([sweep], device, hardware, 1 if session.quick else iteration_time.REPEATS["cuda"])
    chosen = optimizers(model, SAFE_RATE, [label])
    if probe == "memory":
        run = partial(memory.rows, model, chosen[0], device, hardware)
        # A process of its own, whose memory is measured.
        return run() if session.quick else list(_ranks.run(1, run)[0])
    cycles = step_breakdown.cycles(model, chosen, device, 1 if session.quick else step_breakdown.REPEATS)
    return step_breakdown.rows(model, chosen, [cycles], hardware)


def stride_rows(session: Session) -> Rows:
    """Yield the times of one product by the stride of its rows."""
    measure = partial(gpu_parts.stride_rows, session.device, session.hardware, quick=session.quick)
    yield from part(session, "a product by the stride of its rows", measure)


def kernel_rows(session: Session) -> Rows:
    """Run the command that compares the fused kernels, which writes its own tables."""
    file = session.out / "bench" / "kernels.csv"
    run = partial(gpu_parts.run_module, "benchmarks.kernels", file, session.seconds - 2)
    yield from part(session, "python -m benchmarks.kernels", run)


def profile_rows(session: Session) -> Rows:
    """Yield what takes longest in a BERT's steps."""
    model = (whole_steps.small_models() if session.quick else whole_steps.true_models())["bert"]()
    for label in gpu_parts.PROFILED:
        measure = partial(gpu_parts.profile_rows, model, label, session.device, session.hardware)
        yield from part(session, f"profile of {label}", measure)


class Chunk(NamedTuple):
    """A part of the measurements that fits into nine minutes."""

    title: str
    file: str
    """The CSV to write, relative to the folder. Several chunks may share one; each replaces its own model's rows."""
    rows: Callable[[Session], Rows]


CHUNKS: Final[Mapping[str, Chunk]] = {
    "smoke": Chunk("a trial of every method, with an error where the host waits", "bench/smoke.csv", smoke_rows),
    "steps": Chunk("python -m benchmarks.steps --gpu", "bench/whole_steps.csv", step_rows),
    "cost_scaling": Chunk("factor updates and preconditioning over the width", "probes/cost_scaling.csv", cost_rows),
    **{
        f"{probe}_{name}": Chunk(
            f"the probe {probe} on {name}", f"probes/{probe}.csv", partial(probe_rows, probe=probe, name=name)
        )
        for probe in PROBES
        for name in MODELS
    },
    "strides": Chunk("one product with rows that are aligned and that are not", "bench/strides.csv", stride_rows),
    "kernels": Chunk("python -m benchmarks.kernels", "bench/kernels.csv", kernel_rows),
    "profile": Chunk("what takes longest in steps of BERT", "bench/profile.csv", profile_rows),
}
"""In the order in which they are measured; a machine may be at hand for the first ones only."""
FIRST: Final[Mapping[str, float]] = {
    "smoke": 90.0,
    "strides": 20.0,
    "step_breakdown_bert": 80.0,
    "steps": 170.0,
    "kernels": 60.0,
    "profile": 120.0,
}
"""Chunks of ``--first`` in their order, and the most seconds of each: nine minutes of its ten."""
FIRST_LABELS: Final = ("mkor_w4", "mkor", "eva")
"""Labels of `benchmarks.methods` whose whole steps ``--first`` times."""


class Ended(NamedTuple):
    """How a chunk ended."""

    chunk: str
    status: str
    """``ok``, ``in part`` or ``failed``."""
    seconds: float
    rows: int
    detail: str | None
    """What was left out, and why."""


def measure_chunk(name: str, session: Session) -> Ended:
    """Measure a chunk, and write its rows and its record; what it had measured when its time was over counts."""
    chunk = CHUNKS[name]
    say(f"{name}: {chunk.title}")
    start = time.monotonic()
    rows: list[NamedTuple] = []
    try:
        with time_limit(session.seconds):
            rows.extend(chunk.rows(session))
    except OutOfTimeError:
        session.note("the rest of the chunk", f"not measured within {time.monotonic() - start:.0f} s")
        for child in multiprocessing.active_children():
            child.terminate()
    except Exception as error:  # one chunk's failure must not cost the others their time
        logger.exception("%s failed", name)
        session.note("the rest of the chunk", f"failed: {error}")
        session.failed = True
    if rows:
        write_part(session.out / chunk.file, rows)
    record: dict[str, Any] = {
        "seconds": round(time.monotonic() - start, 1),
        "rows": len(rows),
        "left_out": session.left_out,
        "failed": session.failed,
        "device": session.device.type,
        "quick": session.quick,
        "packages": provenance.package_versions(),
        "torch_cuda": torch.version.cuda,
        "machine": provenance.machine(),
    }
    write_json(session.out / "chunks" / f"{name}.json", record)
    say(f"{name}: {len(rows)} rows in {record['seconds']} s")
    status = "failed" if session.failed else "in part" if session.left_out else "ok"
    return Ended(name, status, record["seconds"], len(rows), "; ".join(session.left_out) or None)


def write_part(file: Path, rows: Sequence[NamedTuple]) -> None:
    """Write rows to a CSV; rows of other models that are there already stay."""
    table = table_of(rows, "benchmarks.gpu")
    if "workload" in table and file.is_file():
        before = pd.read_csv(file)
        table = pd.concat([before[~before["workload"].isin(table["workload"])], table], ignore_index=True)
    write_atomically(file, table.to_csv(index=False))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the folder to write to")
    parser.add_argument("--first", action="store_true", help="measure in ten minutes what to know first")
    parser.add_argument("--chunk", nargs="+", metavar="NAME", help="measure these (default: all that are missing)")
    parser.add_argument("--list", action="store_true", help="list the chunks and whether FOLDER has them")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small models and few steps: a trial of the program")
    return run_command(parser, _work, arguments)


def _work(options: argparse.Namespace) -> int:
    if options.list:
        for name, chunk in CHUNKS.items():
            done = options.out is not None and _record(options.out, name).is_file()
            print(f"{name:24} {'done   ' if done else 'missing'} {chunk.title}")
        return 0
    if options.out is None:
        raise ConfigError("--out: must be the folder to write to, such as results/reference/<hardware>/single_gpu")
    for name in options.chunk or ():
        if name not in CHUNKS:
            raise ConfigError(f"chunk = '{name}': unknown; {did_you_mean(name, CHUNKS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: PyTorch finds no GPU; --device cpu --quick tries the program out")
    if options.first and options.chunk:
        raise ConfigError("--first: has its own chunks; leave out --chunk")
    make = partial(
        Session,
        device=torch.device(options.device),
        quick=options.quick,
        hardware=provenance.hardware_name(options.device),
    )
    if options.first:
        return measure_first(options.out / "first", make)
    failed = False
    for name in options.chunk or _missing(options.out):
        refuse_unwritable("--out", _record(options.out, name))
        failed |= measure_chunk(name, make(options.out)).status == "failed"
    missing = ", ".join(_missing(options.out))
    say(f"Missing: {missing}" if missing else f"All {len(CHUNKS)} chunks are in {options.out}")
    return int(failed)


def measure_first(folder: Path, make: Callable[..., Session]) -> int:
    """Measure the chunks of `FIRST`, whichever of them fail, and say how each ended; return the exit status."""
    refuse_unwritable("--out", folder / "first.csv")
    ended: list[Ended] = []
    for name, seconds in FIRST.items():
        ended.append(measure_chunk(name, make(folder, seconds=seconds, is_first=True)))
        write_atomically(folder / "first.csv", table_of(ended, "benchmarks.gpu").to_csv(index=False))
    for one in ended:
        print(f"{one.chunk:24} {one.status:8} {one.seconds:6.1f} s {one.rows:5} rows  {one.detail or ''}".rstrip())
    say(f"Written: {folder}")
    return int(any(one.status == "failed" for one in ended))


def _record(folder: Path, name: str) -> Path:
    return folder / "chunks" / f"{name}.json"


def _missing(folder: Path) -> list[str]:
    return [name for name in CHUNKS if not _record(folder, name).is_file()]


if __name__ == "__main__":
    sys.exit(main())
