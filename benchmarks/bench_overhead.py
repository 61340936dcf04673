"""The overhead of the bench: the time of its training step over that of a bare training loop.

``python -m benchmarks.bench_overhead`` prints, for optimizers on the autoencoder and on BERT, the ratio of the time of
a step in the bench (with clocks, metrics, progress, checkpoints) to that of a bare loop, with a 95 % interval. The exit
status is 1 if the bench costs more than the goal. The two loops alternate step by step in one process, so that other
load on the machine affects both equally, and both are timed from outside, from one batch to the next. As a control, the
ratio of two alternating bare loops shows the effect of being the second. It takes five minutes and needs the machine to
itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch

from baselines import build
from workflow.bench import workloads
from workflow.bench.analysis.estimates import Estimate, estimate
from workflow.bench.data.batches import Batch
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.training import one_run
from workflow.bench.training.build import RunSetting
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads.base import Workload

GOAL: Final = 1.03
EXPERIMENT: Final = "update_rules"
STEPS: Final = {"autoencoder": 6000, "bert_pretraining": 300}
"""The workloads that are compared, with the steps of a comparison."""
BLOCKS: Final = 60
"""Parts of a run; a ratio is one of sums over a part, since single steps of a millisecond are too noisy."""


class BareLoop:
    """A run's training, written by hand."""

    def __init__(self, run: Run, workload: Workload) -> None:
        self._loss = workload.loss
        self._batches = workload.batches(run.seed)
        self._model = workload.model(run.seed).train()
        self._optimizer, _ = build(run.method, self._model, run.hyperparameters, exclude=workload.exclude)

    def step(self) -> None:
        """Train one step."""
        loss = self._loss(self._model, next(self._batches))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


class Interleaved:
    """A workload whose `batches` train one bare step before each batch, and time the bare steps and the bench's.

    A step of the bench lasts from one request for a batch to the next, without the bare step in between.
    """

    def __init__(self, workload: Workload, bare: BareLoop) -> None:
        self.bench_seconds: list[float] = []
        self.bare_seconds: list[float] = []
        self._workload = workload
        self._bare = bare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the workload's batches."""
        batches = self._workload.batches(seed, start)
        while True:
            began = time.perf_counter()
            self._bare.step()
            self.bare_seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
            yield next(batches)
            self.bench_seconds.append(time.perf_counter() - began)


def overhead(run: Run, workload: Workload, scratch: Path) -> Estimate:
    """Return the ratio of the time of a step in the bench to that in the bare loop.

    Raises:
        RuntimeError: the run did not finish.
    """
    interleaved = Interleaved(workload, BareLoop(run, workload))
    with (scratch / "log").open("w") as log:
        setting = RunSetting(torch.device("cpu"), 1.0, Progress(1, log), lambda: False)
        folder = RunFolder.of(scratch, run.id)
        status = one_run.train(run, cast("Workload", interleaved), folder, setting)
    if status != "finished":
        raise RuntimeError(f"{run.describe()} is {status}; only finished runs can be compared.")
    # The bench requests no batch after its last step, so that step has no time.
    return ratio(interleaved.bench_seconds, interleaved.bare_seconds[: len(interleaved.bench_seconds)])


def control(run: Run, workload: Workload) -> Estimate:
    """Return the ratio of the second of two alternating bare loops to the first: the effect of its place."""
    loops = (BareLoop(run, workload), BareLoop(run, workload))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(run.spec["steps"]):
        for bare, times in zip(loops, seconds, strict=True):
            began = time.perf_counter()
            bare.step()
            times.append(time.perf_counter() - began)
    return ratio(seconds[1], seconds[0])


def ratio(times: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Return the mean ratio of the blocks' times with its interval."""
    blocks = zip(np.array_split(times, BLOCKS), np.array_split(reference, BLOCKS), strict=True)
    return estimate([of_times.sum() / of_reference.sum() for of_times, of_reference in blocks])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ratios; return 1 if an interval lies above the goal."""
    argparse.ArgumentParser(
        prog="python -m benchmarks.bench_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan.load(tier="embedded", results=scratch)
        torch.set_num_threads(plan.tier.threads)
        for label in ("sgd", "lamb", "mkor", "kaisa"):
            for run in first_runs(plan, label):
                workload = workloads.create(**run.spec["workload"])
                bench, bare = overhead(run, workload, Path(scratch)), control(run, workload)
                print(
                    f"{run.workload:17} {label:6} "
                    f"bench / bare = {bench.value:.3f} [{bench.low:.3f}, {bench.high:.3f}], "
                    f"bare / bare = {bare.value:.3f} [{bare.low:.3f}, {bare.high:.3f}] "
                    f"over {run.spec['steps']} steps",
                    flush=True,
                )
                worst = max(worst, bench.low)
    print(f"goal: at most {GOAL}: {'met' if worst <= GOAL else 'missed'}")
    return int(worst > GOAL)


def first_runs(plan: Plan, label: str) -> Iterator[Run]:
    """Yield a label's first run on each workload of `STEPS`, with the steps of the comparison."""
    remaining = dict(STEPS)
    for run in plan.experiment(EXPERIMENT).jobs[label].runs:
        if run.workload in remaining:
            steps = remaining.pop(run.workload)
            # At a hundredth of the learning rate a step takes equally long, and training cannot diverge.
            values = {**run.hyperparameters, "lr": run.hyperparameters["lr"] / 100}
            yield Run(
                {
                    **run.spec,
                    "steps": steps,
                    "evaluate_every": steps,
                    "schedule": {"name": "constant", "warmup": 0.0},
                    "start_from": None,
                    "optimizer": {"name": run.method, "hyperparameters": values},
                }
            )


if __name__ == "__main__":
    sys.exit(main())
