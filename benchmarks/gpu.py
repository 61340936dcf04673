"""Everything that is measured on a GPU, in chunks of at most nine minutes, by one command on a bare machine.

``python -m benchmarks.gpu --out FOLDER`` measures the chunks that FOLDER lacks, one after the other; ``--list`` names
them, ``--chunk NAME`` measures one, again if need be. It needs PyTorch (2.6 or later), NumPy, pandas, SciPy and PyYAML,
and neither Snakemake nor a network. A model or rival whose package is missing is left out by name, and so is one that
runs out of memory or of the chunk's time; the rest goes on.

FOLDER is laid out as ``results/reference/<hardware>/single_gpu``, where it can be kept:

- ``probes/<probe>.csv``: step times, memory and costs of BERT-Large and ResNet-50 at their true sizes, on random data;
- ``bench/smoke.csv``: each method's trial under ``torch.cuda.set_sync_debug_mode("error")`` (`benchmarks.smoke`);
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pandas as pd
import torch

from baselines import method_class
from benchmarks import first_parts, models, smoke, steps, whole_steps
from benchmarks.methods import methods
from benchmarks.session import OutOfTimeError, Session, part, say, time_limit
from workflow.bench.probes import _ranks, cost_scaling, iteration_time, memory, step_breakdown
from workflow.bench.probes._models import ProbeModel, RandomImages, RandomTokens, bert_large
from workflow.bench.probes._optimizers import optimizers
from workflow.bench.probes._rows import table_of
from workflow.bench.probes._timed_loop import SAFE_RATE
from workflow.bench.support import provenance
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ConfigError, did_you_mean
from workflow.bench.support.files import write_atomically, write_json

logger = logging.getLogger(__name__)

DIMENSIONS: Final = (1024, 2048, 4096, 8192)


def bert(session: Session) -> ProbeModel:
    """Return BERT-Large on random tokens, in the precision of the experiments at this tier."""
    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    data = (
        RandomTokens(batch_size=2, sequence_length=8, intermediate_size=32, **small)
        if session.quick
        else bert_large(batch_size=8)
    )
    return ProbeModel("bert", data, _first_order("lamb", session), 4e-3, "bfloat16")


def resnet(session: Session) -> ProbeModel:
    """Return ResNet-50 on random images."""
    data = (
        RandomImages(partial(models.resnet50, 2, 3, (1, 1)), batch_size=2, size=32, classes=3)
        if session.quick
        else RandomImages(models.resnet50, batch_size=64, size=224, classes=1000)
    )
    return ProbeModel("resnet", data, "sgd", 0.1, "float32")


def _first_order(name: str, session: Session) -> str:
    """Return a model's base optimizer, or AdamW if its package is missing."""
    try:
        method_class(name)
    except ModuleNotFoundError as error:
        session.note(f"{name} as the base", f"the package {error.name} is not installed; adamw takes its place")
        return "adamw"
    return name


MODELS: Final[Mapping[str, Callable[[Session], ProbeModel]]] = {"bert": bert, "resnet": resnet}

Rows = Iterator[NamedTuple]
Result = TypeVar("Result")


def smoke_rows(session: Session) -> Rows:
    """Yield every method's trial."""
    for block in models.BLOCKS:
        narrow = models.narrowed(block, 4) if session.quick else block
        for method in methods():
            trial = partial(smoke.trial, method, narrow, session.device, session.hardware)
            for row in part(session, f"{method.label} on {block.name}", partial(_single, trial)):
                if row.status != "ok":
                    say(f"    {row.status}: {row.detail}")
                yield row


def _single(trial: Callable[[], Result]) -> list[Result]:
    return [trial()]


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


def memory_rows(session: Session, name: str) -> Rows:
    """Yield the rows of the probe memory for a model; each optimizer has its own process."""
    for label in memory.OPTIMIZERS:
        yield from part(session, f"memory of {label} on {name}", partial(_memory_of, session, name, label))


def _memory_of(session: Session, name: str, label: str) -> list[NamedTuple]:
    model = MODELS[name](session)
    (optimizer,) = optimizers(model, SAFE_RATE, [label])
    arguments = (model, optimizer, session.device.type, session.hardware)
    return list(memory.rows(*arguments) if session.quick else _ranks.run(1, memory.rows, *arguments)[0])


def breakdown_rows(session: Session, name: str) -> Rows:
    """Yield the rows of the probe step_breakdown for a model."""
    for label in step_breakdown.OPTIMIZERS:
        yield from part(session, f"step_breakdown of {label} on {name}", partial(_breakdown_of, session, name, label))


def _breakdown_of(session: Session, name: str, label: str) -> Rows:
    model = MODELS[name](session)
    chosen = optimizers(model, SAFE_RATE, [label])
    repeats = 1 if session.quick else step_breakdown.REPEATS
    cycles = step_breakdown.cycles(model, chosen, session.device.type, repeats)
    yield from step_breakdown.rows(model, chosen, [cycles], session.hardware)


def iteration_rows(session: Session, name: str) -> Rows:
    """Yield the rows of the probe iteration_time for a model; KAISA, which may not finish in time, comes last."""
    for label in sorted(iteration_time.OPTIMIZERS, key=lambda label: label == "kaisa"):
        yield from part(session, f"iteration_time of {label} on {name}", partial(_iterations_of, session, name, label))


def _iterations_of(session: Session, name: str, label: str) -> Rows:
    sweep = iteration_time.sweep_of(MODELS[name](session), label, {})
    assert sweep is not None  # all labels of the probe have a period
    repeats = 1 if session.quick else iteration_time.REPEATS
    yield from iteration_time.rows([sweep], session.device.type, session.hardware, repeats)


def stride_rows(session: Session) -> Rows:
    """Yield the times of one product by the stride of its rows."""
    measure = partial(first_parts.stride_rows, session.device, session.hardware, quick=session.quick)
    yield from part(session, "a product by the stride of its rows", measure)


def kernel_rows(session: Session) -> Rows:
    """Run the command that compares the fused kernels, which writes its own tables."""
    file = session.out / "bench" / "kernels.csv"
    run = partial(first_parts.run_module, "benchmarks.kernels", file, session.seconds - 2)
    yield from part(session, "python -m benchmarks.kernels", run)


def profile_rows(session: Session) -> Rows:
    """Yield what takes longest in a BERT's steps."""
    model = (whole_steps.small_models() if session.quick else whole_steps.true_models())["bert"]()
    for label in first_parts.PROFILED:
        measure = partial(first_parts.profile_rows, model, label, session.device, session.hardware)
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
        f"{probe}_{name}": Chunk(f"the probe {probe} on {name}", f"probes/{probe}.csv", partial(rows, name=name))
        for probe, rows in (
            ("step_breakdown", breakdown_rows),
            ("iteration_time", iteration_rows),
            ("memory", memory_rows),
        )
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
    table = table_of(rows)
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
    chosen = options.chunk or [name for name in CHUNKS if not _record(options.out, name).is_file()]
    failed = False
    for name in chosen:
        refuse_unwritable("--out", _record(options.out, name))
        failed |= measure_chunk(name, make(options.out)).status == "failed"
    say(
        f"All {len(CHUNKS)} chunks are in {options.out}"
        if not _missing(options.out)
        else "Missing: " + ", ".join(_missing(options.out))
    )
    return int(failed)


def measure_first(folder: Path, make: Callable[..., Session]) -> int:
    """Measure the chunks of `FIRST`, whichever of them fail, and say how each ended; return the exit status."""
    refuse_unwritable("--out", folder / "first.csv")
    ended: list[Ended] = []
    for name, seconds in FIRST.items():
        ended.append(measure_chunk(name, make(folder, seconds=seconds, is_first=True)))
        write_atomically(folder / "first.csv", table_of(ended).to_csv(index=False))
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
