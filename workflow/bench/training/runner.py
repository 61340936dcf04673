"""Trains the runs of a list that are not there yet, each by one command only, and those that they start from."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from filelock import Timeout

from workflow.bench import workloads
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import first_free, locked, remove_unfinished, write_json
from workflow.bench.support.provenance import collect
from workflow.bench.training import loop
from workflow.bench.training.batch_shares import share_of
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import ALONE, Ranks
from workflow.bench.training.record import RunFolder, Status, first_line, is_done, read_summary, write_spec
from workflow.bench.training.stop_signals import Stop
from workflow.bench.workloads.base import Workload


class Runner:
    """Trains runs of a plan one after the other in this process, or together with others.

    stop: what asks to save and end, listening already; by default one that listens while runs are trained.
    ranks: the processes that train each run together; each makes a Runner and trains the same runs, and the first one
    writes files and progress.

    Raises `ConfigError` where the tier's device is absent; from `train`, where an optimizer or a workload refuses
    what its run asks for, or ranks cannot share a batch.
    """

    def __init__(
        self,
        plan: Plan,
        threads: int | None = None,
        stream: TextIO | None = None,
        *,
        stop: Stop | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._plan = plan
        self._ranks = ranks
        self._stop = stop or Stop()
        self._listens_itself = stop is None
        self._stream = stream
        self.has_moved = False
        """Whether `train` brought any run forward."""
        self._workloads: dict[str, Workload] = {}
        refuse_absent_device(plan)
        torch.set_num_threads(threads or plan.tier.threads)

    def train(self, runs: Iterable[Run]) -> bool:
        """Train the runs that are not done, first those that they start from; tell whether all came to an end."""
        given = list(runs)
        known = self._plan.runs | {run.id: run for run in given}
        # What is done is the first rank's word here and below: a shared disk shows others a file some seconds later.
        ids = self._ranks.from_first(lambda: list(dict.fromkeys(run.id for run in self._with_upstream(given))))
        wanted = [known[name] for name in ids]
        for run in wanted:
            share_of(run, self._ranks)
        with ExitStack() as held:
            stream = self._stream if self._ranks.is_first else held.enter_context(Path(os.devnull).open("w"))
            progress = Progress(len(wanted), stream)
            if self._listens_itself:
                held.enter_context(self._stop.listening())
            try:
                device = held.enter_context(_device_of_our_own(self._plan, progress, self._ranks, self._stop))
            except Timeout:
                return False
            tier = self._plan.tier
            setting = loop.Setting(
                device, tier.checkpoint_minutes, progress, self._stop, tier.checkpoint_steps, self._ranks
            )
            for run in wanted:
                if any(self._ranks.gathered(self._stop.asked)) or self._train(run, setting) == "interrupted":
                    return False
        return True

    def _with_upstream(self, runs: Iterable[Run]) -> Iterator[Run]:
        for run in runs:
            if run.start_from is not None:
                upstream = self._plan.runs[run.start_from]
                if not self._is_done(upstream):
                    yield from self._with_upstream([upstream])
            yield run

    def _is_done(self, run: Run) -> bool:
        folder = RunFolder.of(self._plan.results, run.id)
        return is_done(folder, needs_weights=run.id in self._plan.started_from)

    def _train(self, run: Run, setting: loop.Setting) -> Status | None:
        """Train a run unless it is done; return how it ended, None where nothing was to do."""
        progress, ranks = setting.progress, self._ranks
        folder = RunFolder.of(self._plan.results, run.id)
        if ranks.from_first(lambda: self._is_done(run)):
            progress.skip(run.describe(), "done before")
            return None
        if ranks.is_first:
            write_spec(self._plan.results, run)
        waiting = f"{run.describe()}: another process trains it; waiting"
        with ExitStack() as held:

            def hold() -> bool:
                try:
                    held.enter_context(locked(folder.lock, lambda: progress.note(waiting), self._stop))
                except Timeout:
                    return False
                return True

            if not ranks.from_first(hold):
                return "interrupted"
            if ranks.from_first(lambda: self._is_done(run)):
                progress.skip(run.describe(), "done by another process")
                return None
            begun = self._clear(folder) if ranks.is_first else 0
            try:
                reason = self._why_not(run)
                if reason is not None:
                    if ranks.is_first:
                        write_json(folder.summary, _summary_of_no_training(run, "skipped", reason))
                    progress.skip(run.describe(), f"skipped: {reason}")
                    return "skipped"
                workload = self._workload(run)
                weights = RunFolder.of(self._plan.results, run.start_from).weights if run.start_from else None
                keep = run.id in self._plan.started_from
                status = loop.train(run, workload, folder, setting, initial_weights=weights, keep_weights=keep)
            except Exception as problem:
                # The record names the run in partial results and in `make status`; the next call tries it again. Among
                # ranks, what this one sees may only follow from another's end, which has its own record.
                if ranks.size == 1 or (ranks.is_first and isinstance(problem, ConfigError | OSError)):
                    with suppress(OSError):
                        said = f"{type(problem).__name__}: {first_line(problem)}"
                        write_json(folder.summary, _summary_of_no_training(run, "failed", said))
                raise
        if ranks.is_first:
            summary = read_summary(folder) or {}
            self.has_moved |= status != "interrupted" or summary["steps_done"] > begun
            progress.end(
                f"{status} after {summary['steps_done']} steps, {summary['train_seconds']:.1f} s"
                + (f": {summary['reason']}" if summary["reason"] else "")
            )
        return status

    def _clear(self, folder: RunFolder) -> int:
        """Remove what would lie about a run that is trained now; return how many steps it is recorded to have done."""
        remove_unfinished(folder.path)
        summary = read_summary(folder)
        if summary is None or summary["status"] != "interrupted":
            folder.summary.unlink(missing_ok=True)
            return 0
        return int(summary.get("steps_done", 0))

    def _why_not(self, run: Run) -> str | None:
        """Say why a run cannot be started, on all ranks alike; None where it can, its workload then being made."""

        def attempt() -> str | None:
            try:
                self._workload(run)
                self._check_start(run)
            except _SkippedError as problem:
                return str(problem)
            return None

        # The first rank alone prepares data; what it keeps of them the others find.
        reason = self._ranks.from_first(attempt)
        if reason is None and not self._ranks.is_first:
            reason = attempt()
        return next((found for found in self._ranks.gathered(reason) if found is not None), None)

    def _workload(self, run: Run) -> Workload:
        """Return a run's workload, made once for all its runs.  Raises `_SkippedError`, `ConfigError`."""
        key = json.dumps(run.spec["workload"], sort_keys=True)
        if key not in self._workloads:
            try:
                self._workloads[key] = workloads.create(**run.spec["workload"])
            except DataNotFound as problem:
                raise _SkippedError(str(problem)) from problem
            except ValueError as problem:
                raise ConfigError(f"workload {run.workload}: {problem}") from problem
        return self._workloads[key]

    def _check_start(self, run: Run) -> None:
        """Raise `_SkippedError` where the run that this one starts from came to no end."""
        if run.start_from is None:
            return
        upstream = read_summary(RunFolder.of(self._plan.results, run.start_from)) or {"status": "missing"}
        if upstream["status"] != "finished":
            because = f": {upstream['reason']}" if upstream.get("reason") else ""
            raise _SkippedError(f"it starts from run {run.start_from}, which is {upstream['status']}{because}")


@contextmanager
def _device_of_our_own(plan: Plan, progress: Progress, ranks: Ranks, stop: Stop) -> Iterator[torch.device]:
    """Yield the device to train on: the CPU, or a GPU that no other process of these results has meanwhile.

    Ranks have the GPU that their launcher gave them, by the number that each has on its machine.
    """
    if plan.tier.device != "cuda":
        yield torch.device(plan.tier.device)
        return
    if ranks.size > 1:
        yield torch.device("cuda", torch.cuda.current_device())
        return
    # By the GPU's own name: schedulers show every job its GPUs as numbers from 0.
    names = [torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count())]
    locks = [plan.results.parent / f"gpu-{socket.gethostname()}-{name}.lock" for name in names]
    waiting = partial(progress.note, "every GPU has another process of these results; waiting")
    with first_free(locks, waiting, stop) as index, torch.cuda.device(index):
        yield torch.device("cuda", index)


def refuse_absent_device(plan: Plan) -> None:
    """Raise `ConfigError` where the tier's device is absent."""
    if plan.tier.device == "cuda" and not torch.cuda.is_available():
        build = "this torch is a build without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ConfigError(
            f"tier = '{plan.tier.name}': it trains on a GPU, and {build} here; "
            "train where there is one, or take --tier embedded (plans can be made anywhere)"
        )


class _SkippedError(Exception):
    """A run cannot be started; the message is the reason."""


def _summary_of_no_training(run: Run, status: Status, reason: str) -> dict[str, Any]:
    return {
        "id": run.id,
        "spec": run.spec,
        "status": status,
        "reason": reason,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **collect(run.lineage),
    }
