"""Trains the runs of a list that are not there yet, each by one process only, and those that they start from."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import Any, Final, TextIO

import torch

from workflow.bench import loop, workloads
from workflow.bench.config import ConfigError
from workflow.bench.files import first_free, locked, write_json
from workflow.bench.plan import Plan
from workflow.bench.progress import Progress
from workflow.bench.provenance import collect
from workflow.bench.record import RunFolder, Status, first_line, is_done, read_summary, write_spec
from workflow.bench.runs import Run
from workflow.bench.workloads.base import Workload
from workflow.bench.workloads.data import DataNotFound

#: The exit code of a process that was asked to stop and saved its work: run the same command again to go on.  It is
#: the C library's EX_TEMPFAIL; cluster profiles take it for "go on in the next slice".
GO_ON: Final = 75


class Stop:
    """Whether this process was asked to end, by SIGTERM (a queue's time limit) or SIGINT (Ctrl-C).

    The first signal lets the present step end and be saved; a second one acts as if nothing caught it.
    """

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Tell whether a signal came."""
        return self.asked

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Catch the signals; leave their handlers as they were found."""
        before = {number: signal.signal(number, self._catch) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)


class Batch:
    """Trains runs of a plan one after the other in this process.

    Raises `ConfigError` where the tier's device is absent; from `train`, where an optimizer or a workload refuses
    what its run asks for.
    """

    def __init__(self, plan: Plan, threads: int | None = None, stream: TextIO | None = None) -> None:
        self._plan = plan
        self._stop = Stop()
        self._stream = stream
        self._workloads: dict[str, Workload] = {}
        _refuse_absent_device(plan)
        torch.set_num_threads(threads or plan.tier.threads)

    def train(self, runs: Iterable[Run]) -> bool:
        """Train the runs that are not done, first those that they start from; tell whether all came to an end."""
        wanted = list(dict.fromkeys(self._with_upstream(runs)))
        progress = Progress(len(wanted), self._stream)
        with self._stop.listening(), _device_of_our_own(self._plan, progress) as device:
            setting = loop.Setting(device, self._plan.tier.checkpoint_minutes, progress, self._stop)
            for run in wanted:
                if self._stop.asked or self._train(run, setting) == "interrupted":
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
        progress = setting.progress
        folder = RunFolder.of(self._plan.results, run.id)
        if self._is_done(run):
            progress.skip(run.describe(), "done before")
            return None
        write_spec(self._plan.results, run)
        waiting = f"{run.describe()}: another process trains it; waiting"
        with locked(folder.lock, on_wait=lambda: progress.note(waiting)):
            if self._is_done(run):
                progress.skip(run.describe(), "done by another process")
                return None
            try:
                workload = self._workload(run)
                self._check_start(run)
                weights = RunFolder.of(self._plan.results, run.start_from).weights if run.start_from else None
                keep = run.id in self._plan.started_from
                status = loop.train(run, workload, folder, setting, initial_weights=weights, keep_weights=keep)
            except _SkippedError as reason:
                write_json(folder.summary, _summary_of_no_training(run, "skipped", str(reason)))
                progress.skip(run.describe(), f"skipped: {reason}")
                return "skipped"
            except Exception as problem:
                # The record names the run in partial results and in `make status`; the next call tries it again.
                with suppress(OSError):
                    said = f"{type(problem).__name__}: {first_line(problem)}"
                    write_json(folder.summary, _summary_of_no_training(run, "failed", said))
                raise
        summary = read_summary(folder) or {}
        progress.end(
            f"{status} after {summary['steps_done']} steps, {summary['train_seconds']:.1f} s"
            + (f": {summary['reason']}" if summary["reason"] else "")
        )
        return status

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
def _device_of_our_own(plan: Plan, progress: Progress) -> Iterator[torch.device]:
    """Yield the device to train on: the CPU, or a GPU that no other process of these results has meanwhile."""
    if plan.tier.device != "cuda":
        yield torch.device(plan.tier.device)
        return
    locks = [plan.results.parent / f"gpu-{index}.lock" for index in range(torch.cuda.device_count())]
    waiting = partial(progress.note, "every GPU has another process of these results; waiting")
    with first_free(locks, waiting) as index, torch.cuda.device(index):
        yield torch.device("cuda", index)


def _refuse_absent_device(plan: Plan) -> None:
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
        **collect(),
    }
