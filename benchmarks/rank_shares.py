"""What ranks save by sharing the drawing of batches and the reading of an evaluation's images, measured on two.

``python -m benchmarks.rank_shares`` takes 4 minutes on two cores and needs them to itself. It writes
``results/<hardware>/bench/rank_shares.csv``, from which the plan computes the paper tier's seconds. Two gloo ranks have
one core each; all contenders take turns in every round, each between two barriers. Rows:

- work ``draw``: the pairs of a step's batch of BERT's pre-training, of the paper's sizes, from shards of random word
  pieces. The contender ``whole`` lets each rank draw the whole batch, as ranks used to.
- work ``evaluate``: an evaluation of ImageNet-sized JPEG files by a network of one layer, so that reading them is all
  that counts. ``whole`` lets rank 0 read all of them alone, as it used to.
- contenders: ``whole``; ``whole_again``, the control: if the interval of its ratio excludes 1, the machine was not
  quiet; ``shared``: each rank its half; ``part``: the parts of the first and the last of 64 ranks, by these two.

Columns: size, the tokens of a sequence or pixels a side; examples of the whole batch or evaluation; ranks that share
them; file_bytes, the mean of the JPEG files; cores of each rank, and of the machine; load, the machine's mean over the
minute before; rounds; seconds and, within a round, their ratio to ``whole``, with 95 % intervals (_low, _high);
hardware, torch, code_fingerprint, git_commit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore  # torch.distributed exports it without types

from benchmarks.step_rows import columns, quiet_line
from workflow.bench import workloads
from workflow.bench.analysis.estimates import estimate, paired_ratio
from workflow.bench.data import imagenet, shards
from workflow.bench.probes import _ranks, _timing
from workflow.bench.probes._command import write_rows
from workflow.bench.support import provenance
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import write_json
from workflow.bench.training.launcher import LaunchedRank
from workflow.bench.training.ranks import Ranks
from workflow.bench.workloads.base import Workload

RANKS: Final = 2
PARTS: Final = 64
"""Ranks of the paper tier."""
ROUNDS: Final = 13
FILE: Final = "rank_shares.csv"
VOCABULARY: Final = 30522
SPECIALS: Final = shards.Specials(pad=0, unknown=100, cls=101, sep=102, mask=103)
PIXELS: Final = (375, 500)
"""Height and width of most of ImageNet's images; 110 kB each, on average."""
WHOLE, CONTROL, SHARED, PART = "whole", "whole_again", "shared", "part"


@dataclass(frozen=True)
class Sizes:
    """What is drawn and read."""

    batches: Mapping[int, int]
    """The pairs of a step's batch, by their length in tokens."""
    images: int
    """Images of an evaluation, one of each of ImageNet's classes."""
    rounds: int


FULL: Final = Sizes({512: 32768, 128: 65536}, imagenet.CLASSES, ROUNDS)
"""The batches of the paper tier's two phases of pre-training."""
QUICK: Final = Sizes({32: 128}, imagenet.CLASSES, 2)


class Row(NamedTuple):
    """The seconds of one contender."""

    work: str
    workload: str
    size: int
    examples: int
    contender: str
    ranks: int
    file_bytes: int | None
    cores: int
    machine_cores: int
    load: float
    rounds: int
    seconds: float
    seconds_low: float
    seconds_high: float
    of_whole: float
    of_whole_low: float
    of_whole_high: float
    hardware: str
    torch: str


def write_shards(length: int, pairs: int) -> None:
    """Write shards of random word pieces to the data folder, as many training pairs and a few validation pairs."""
    folder = shards.shards_folder("bert-uncased", length)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    entries = {}
    for split, number in (("train", pairs), ("validation", 2)):
        tokens = rng.integers(max(SPECIALS) + 1, VOCABULARY, (number, length), dtype=np.uint16)
        tokens[:, 0], tokens[:, length // 2], tokens[:, -1] = SPECIALS.cls, SPECIALS.sep, SPECIALS.sep
        about = np.tile(np.array([length // 2 + 1, length, 0], dtype=np.uint16), (number, 1))
        for kind, array in (("tokens", tokens), ("pairs", about)):
            np.save(folder / f"{split}-00000.{kind}.npy", array)
        entries[split] = [{"name": f"{split}-00000", "pairs": number}]
    facts = {"format": shards.FORMAT, "vocabulary": "bert-uncased", "sequence_length": length}
    sizes = {"vocabulary_size": VOCABULARY, "specials": SPECIALS._asdict(), "shards": entries}
    write_json(folder / shards.MANIFEST, facts | sizes)


def write_images(data: Path) -> int:
    """Write ImageNet's folders, with one image of each class in each split; return the mean bytes of a file.

    The pixels have the spectrum of photographs, 1 / f, so that files and the time to decode them are as theirs. A few
    files stand under many names.
    """
    from PIL import Image

    rng, sizes, files = np.random.default_rng(0), [], []
    height, width = PIXELS
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))[..., None]
    for number in range(16):
        noise = np.fft.rfft2(rng.standard_normal((height, width, 3)), axes=(0, 1))
        waves = np.fft.irfft2(noise / np.maximum(frequency, 1 / width), s=PIXELS, axes=(0, 1))
        pixels = np.clip(128 + 48 * waves / waves.std(), 0, 255).astype(np.uint8)
        files.append(data / f"{number}.JPEG")
        Image.fromarray(pixels).save(files[-1], quality=90)
        sizes.append(files[-1].stat().st_size)
    for split in ("train", "val"):
        for label in range(imagenet.CLASSES):
            folder = data / "imagenet" / split / f"n{label:08}"
            folder.mkdir(parents=True)
            os.link(files[label % len(files)], folder / "0.JPEG")
    return round(sum(sizes) / len(sizes))


def team(rank: int, size: int) -> Ranks:
    """Return a rank's view of ``size`` ranks, which exchange what they have only if they are the two that run."""
    return Ranks(LaunchedRank(rank=rank, size=size), HashStore() if size == RANKS else None)


def drawing(workload: Workload, rank: int) -> dict[str, Callable[[], object]]:
    """Return what a rank does in the turn of each contender that draws a batch."""
    whole = slice(0, workload.batch_size)
    part = team(rank * (PARTS - 1), PARTS).part(workload.batch_size)
    drawn = {WHOLE: whole, CONTROL: whole, SHARED: team(rank, RANKS).part(workload.batch_size), PART: part}

    def draw(rows: slice) -> object:
        return next(workload.sliced_batches(0, 0, rows))

    return {label: partial(draw, rows) for label, rows in drawn.items()}


def evaluating(workload: Workload, rank: int) -> dict[str, Callable[[], object]]:
    """Return what a rank does in the turn of each contender that evaluates; rank 1 has nothing to do in the whole."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, imagenet.CLASSES))
    alone = team(0, 1) if rank == 0 else None
    teams = {WHOLE: alone, CONTROL: alone, SHARED: team(rank, RANKS), PART: team(rank * (PARTS - 1), PARTS)}

    def evaluate(ranks: Ranks | None) -> object:
        return None if ranks is None else workload.evaluate(network, ranks)

    return {label: partial(evaluate, ranks) for label, ranks in teams.items()}


def measure(data: str, name: str, parameters: dict[str, Any], rounds: int) -> list[dict[str, float]]:
    """Return the seconds of every contender by round; the two ranks make this call together."""
    rank = dist.get_rank()
    torch.set_num_threads(1)
    os.environ["MKOR_DATA"] = data
    cores = sorted(os.sched_getaffinity(0))
    # Not neighbours, which may be two threads of one core.
    os.sched_setaffinity(0, {cores[rank * len(cores) // RANKS]})
    workload = workloads.create(name, **parameters)
    draws = name == "bert_pretraining"

    def timed(turn: Callable[[], object]) -> float:
        if draws:
            turn()  # as in training, the draw before left the memory that this one takes
        dist.barrier()
        start = time.perf_counter()
        turn()
        dist.barrier()
        return time.perf_counter() - start

    turns = (drawing if draws else evaluating)(workload, rank)
    every = {label: partial(timed, turn) for label, turn in turns.items()}
    _, *counted = _timing.rounds(every, 1 + rounds)  # the first one fills caches
    return counted


def rows(times: Sequence[Mapping[str, float]], load: float, **about: Any) -> Iterator[Row]:
    """Yield the rows of one work, from the seconds of every contender by round; about: the columns up to examples."""
    by_contender = {label: [each[label] for each in times] for label in times[0]}
    for label, seconds in by_contender.items():
        ratio = paired_ratio(dict(enumerate(seconds)), dict(enumerate(by_contender[WHOLE])))
        yield Row(
            **{"file_bytes": None, **about},
            contender=label,
            ranks={SHARED: RANKS, PART: PARTS}.get(label, 1),
            cores=1,
            machine_cores=os.cpu_count() or 1,
            load=round(load, 2),
            rounds=len(times),
            **columns("seconds", estimate(seconds)),
            **columns("of_whole", ratio),
            hardware=provenance.hardware_name("cpu"),
            torch=str(torch.__version__),
        )


def all_rows(sizes: Sizes, data: Path) -> Iterator[Row]:
    """Measure both works, with data that are written to ``data``, and yield their rows."""
    os.environ["MKOR_DATA"] = str(data)
    load = os.getloadavg()[0]
    for length, batch in sizes.batches.items():
        write_shards(length, batch)
        small = {"layers": 1, "hidden_size": 16, "heads": 1, "validation_pairs": 2}
        parameters = {"dataset": "text", "sequence_length": length, "vocabulary_size": VOCABULARY, **small}
        given = {"batch_size": batch, **parameters}
        times = _ranks.run(RANKS, measure, str(data), "bert_pretraining", given, sizes.rounds)[0]
        yield from rows(times, load, work="draw", workload="bert_pretraining", size=length, examples=batch)
    mean = write_images(data)
    given = {"dataset": "imagenet", "batch_size": 2}
    times = _ranks.run(RANKS, measure, str(data), "resnet50", given, sizes.rounds)[0]
    pixels = workloads.resolve("resnet50", **given)["image_size"]
    about = {"work": "evaluate", "workload": "resnet50", "size": pixels, "examples": sizes.images}
    yield from rows(times, load, **about, file_bytes=mean)


def summary(table: Sequence[Row]) -> Iterator[str]:
    """Yield the lines that tell the result."""
    for row in table:
        if row.contender == WHOLE:
            yield f"{row.work}, {row.workload} at {row.size}, {row.examples} examples: seconds, and of one rank's"
        yield f"  {row.contender:12} {row.ranks:3} ranks {row.seconds:9.4f} {row.of_whole:8.4f}"
    for row in table:
        if row.contender == CONTROL:
            yield quiet_line(f"{row.work} at {row.size}", row.of_whole, row.of_whole_low, row.of_whole_high)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the CSV, and print the result; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rank_shares",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="the folder to write to (default: results/<hardware>/bench)")
    parser.add_argument("--quick", action="store_true", help="short sequences and two rounds: a trial of the program")

    def work(options: argparse.Namespace) -> None:
        if len(os.sched_getaffinity(0)) < RANKS:
            raise ConfigError(f"cores = {len(os.sched_getaffinity(0))}: must be at least {RANKS}, one for each rank")
        out = (options.out or Path("results", provenance.hardware_name("cpu"), "bench")) / FILE
        refuse_unwritable("--out", out)
        with tempfile.TemporaryDirectory() as data:
            table = list(all_rows(QUICK if options.quick else FULL, Path(data)))
        write_rows(out, table, "benchmarks.rank_shares")
        for line in summary(table):
            print(line)
        print(f"Written: {out}")

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
