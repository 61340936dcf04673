"""What training through the bench costs beside the same loop written bare.

``python -m benchmarks.bench_overhead`` prints, for optimizers on the autoencoder and on BERT, the ratio of the time of
a step through the bench (clocks, metrics, progress, checkpoints) to that of a bare loop, with a 95 % interval, and
ends with 1 where the bench costs more than the goal. The two alternate step by step in one process, so that whatever
else the machine does hits both alike, and both are timed from outside, from one batch to the next. A second bare loop
in the bench's place shows what the place alone does to a ratio. It takes five minutes, with the machine to itself.
"""

from __future__ import annotations

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
from workflow.bench.training.build import Setting
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads.base import Workload

GOAL: Final = 1.03
EXPERIMENT: Final = "update_rules"
STEPS: Final = {"autoencoder": 6000, "bert_pretraining": 300}
BLOCKS: Final = 60  # a ratio is one of sums over a block of steps: single steps of a millisecond are too noisy


class BareLoop:
    """A run as anyone would write it by hand."""

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
    """A workload for the bench that trains one bare step before each of its batches, and times both.

    A step of the bench lasts from its asking for a batch to its asking for the next one, without the bare step that
    comes first.
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
    """Return the ratio of the bench's time of a step to the bare loop's."""
    interleaved = Interleaved(workload, BareLoop(run, workload))
    with (scratch / "log").open("w") as log:
        setting = Setting(torch.device("cpu"), 1.0, Progress(1, log), lambda: False)
        folder = RunFolder.of(scratch, run.id)
        status = one_run.train(run, cast("Workload", interleaved), folder, setting)
    if status != "finished":
        raise RuntimeError(f"{run.describe()} is {status}: there is nothing to compare.")
    # The bench's last step ends with an evaluation in place of another batch, and has no time.
    return ratio(interleaved.bench_seconds, interleaved.bare_seconds[: len(interleaved.bench_seconds)])


def control(run: Run, workload: Workload) -> Estimate:
    """Return the ratio of the second of two bare loops that alternate to the first: 1, but for its place."""
    loops = (BareLoop(run, workload), BareLoop(run, workload))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(run.spec["steps"]):
        for bare, times in zip(loops, seconds, strict=True):
            began = time.perf_counter()
            bare.step()
            times.append(time.perf_counter() - began)
    return ratio(seconds[1], seconds[0])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the ratio of the steps' times, block by block, with its interval."""
    blocks = zip(np.array_split(ours, BLOCKS), np.array_split(theirs, BLOCKS), strict=True)
    return estimate([a.sum() / b.sum() for a, b in blocks])


def main() -> int:
    """Print the ratios."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan.load(tier="embedded", results=scratch)
        torch.set_num_threads(plan.tier.threads)
        for label in ("sgd", "lamb", "mkor", "kaisa"):
            for run in first_runs(plan, label):
                workload = workloads.create(**run.spec["workload"])
                found, place = overhead(run, workload, Path(scratch)), control(run, workload)
                print(
                    f"{run.workload:17} {label:6} "
                    f"bench / bare = {found.value:.3f} [{found.low:.3f}, {found.high:.3f}], "
                    f"bare / bare = {place.value:.3f} [{place.low:.3f}, {place.high:.3f}] "
                    f"over {run.spec['steps']} steps",
                    flush=True,
                )
                worst = max(worst, found.low)
    print(f"goal: at most {GOAL}: {'met' if worst <= GOAL else 'missed'}")
    return int(worst > GOAL)


def first_runs(plan: Plan, label: str) -> Iterator[Run]:
    """Yield a label's first run on each workload, of the length that the comparison takes."""
    seen: set[str] = set()
    for run in plan.experiment(EXPERIMENT).jobs[label].runs:
        if run.workload not in seen:
            seen.add(run.workload)
            steps = STEPS[run.workload]
            # A hundredth of the rate takes as long, and cannot diverge over so many steps.
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
