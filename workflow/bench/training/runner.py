"""Trains the unfinished runs of a list, and first the runs that they start from.

A lock ensures that one process at a time trains a run, even if several were given the same list. A record is read and
verified once for the list, and once more under the lock, as another process may have trained the run meanwhile.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import torch
from filelock import Timeout

from workflow.bench import workloads
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import DamagedFileError, first_line
from workflow.bench.support.files import first_free, locked, remove_unfinished
from workflow.bench.support.reading import read_json
from workflow.bench.training import checkpoint
from workflow.bench.training.build import RunSetting, share_of
from workflow.bench.training.one_run import train
from workflow.bench.training.precision import choose_algorithms
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import ALONE, Ranks
from workflow.bench.training.record import (
    Record,
    RunFolder,
    Status,
    has_weights,
    origin_of,
    read_record,
    read_undamaged,
    write_spec,
    write_summary,
)
from workflow.bench.training.stop_signals import Stop
from workflow.bench.training.summary import summarize_untrained
from workflow.bench.workloads.base import Workload


class Runner:
    """Trains runs of a plan one after the other, in this process or together with others.

    stop: an object that is already listening for requests to stop; by default a new one listens during `train`.
    ranks: the processes that train each run together. Each makes a `Runner` and trains the same runs; the first one
        writes files and progress.

    Raises:
        ConfigError: the tier's device is absent.
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
        self._starts_listening = stop is None
        self._stream = stream
        self.has_moved = False
        """Whether `train` has advanced any run."""
        self._workloads: dict[str, Workload] = {}
        self._sources: set[str] = set()
        """The ids of runs whose weights are needed by runs that `train` was asked for and that are not done."""
        refuse_absent_device(plan)
        torch.set_num_threads(threads or plan.tier.threads)
        choose_algorithms(deterministic=plan.tier.deterministic)

    def train(self, runs: Iterable[Run], progress: Progress | None = None) -> bool:
        """Train the runs that are not done, and first those that they start from; return whether all have ended.

        progress: shows these runs among others; by default they are counted alone.

        Raises:
            ConfigError: an optimizer or a workload refuses what its run specifies, or ranks cannot share a batch.
        """
        asked = {run.id: run for run in runs}
        # The first rank decides what is done, here and below: other nodes see files on a shared disk seconds later.
        ordered = self._ranks.from_first(self._ordered(asked.values()) if self._ranks.is_first else None)
        waiting = [((self._plan.runs | asked)[name], is_done) for name, is_done in ordered.items()]
        for run, _ in waiting:
            share_of(run, self._ranks)
        with ExitStack() as stack:
            stream = self._stream if self._ranks.is_first else stack.enter_context(Path(os.devnull).open("w"))
            progress = progress or Progress(len(waiting), stream)
            if self._starts_listening:
                stack.enter_context(self._stop.listening())
            try:
                device = stack.enter_context(_device(self._plan, progress, self._ranks, self._stop))
            except Timeout:
                return False
            tier = self._plan.tier
            setting = RunSetting(
                device, tier.checkpoint_minutes, progress, self._stop, tier.checkpoint_steps, self._ranks
            )
            for run, is_done in waiting:
                if any(self._ranks.gathered(self._stop.asked)):
                    return False
                if is_done:
                    if self._ranks.is_first:
                        # A process killed just after it wrote the record of a finished run left its checkpoint behind.
                        checkpoint.remove(self._folder(run.id).checkpoint)
                    progress.skip(run.describe(), "done before")
                elif self._train(run, setting) == "interrupted":
                    return False
        return True

    def _ordered(self, runs: Iterable[Run]) -> dict[str, bool]:
        """Return the runs by id, each after the one it starts from if that is not done, and whether they are done."""
        records: dict[str, Record] = {}

        def is_done(run: Run) -> bool:
            if run.id not in records:
                records[run.id] = read_undamaged(self._folder(run.id), run)
            return self._is_enough(run, records[run.id])

        ordered: dict[str, Run] = {}
        for run in runs:
            chain = [run]
            while (source := chain[-1].start_from) is not None:
                if not is_done(chain[-1]):
                    self._sources.add(source)
                if is_done(self._plan.runs[source]):
                    break
                chain.append(self._plan.runs[source])
            ordered |= {each.id: each for each in reversed(chain) if each.id not in ordered}
        return {name: is_done(run) for name, run in ordered.items()}

    def _folder(self, run_id: str) -> RunFolder:
        return RunFolder.of(self._plan.results, run_id)

    def _is_enough(self, run: Run, record: Record) -> bool:
        """Return whether a record is of a run that has ended, with its weights if others start from them.

        An adopted record has no weights. It is enough unless a run is about to start from it.
        """
        folder = self._folder(run.id)
        keeps_weights = run.id in self._plan.started_from
        needs_weights = keeps_weights and (run.id in self._sources or origin_of(folder) is None)
        return record.has_ended and (not needs_weights or has_weights(folder, run, record))

    def _train(self, run: Run, setting: RunSetting) -> Status | None:
        """Train a run unless another process has meanwhile; return how it ended, None if another process trained it."""
        folder, progress, name = self._folder(run.id), setting.progress, run.describe()
        with ExitStack() as stack:
            record: Record | None = None
            is_done: bool | None = None
            if self._ranks.is_first:
                write_spec(self._plan.results, run)
                folder.require_files()
                on_wait = partial(progress.note, f"{name}: another process trains it; waiting")
                with suppress(Timeout):  # asked to stop before the lock was free
                    stack.enter_context(locked(folder.lock, on_wait, self._stop))
                    record = read_undamaged(folder, run)
                    is_done = self._is_enough(run, record)
            is_done = self._ranks.from_first(is_done)
            if is_done is None:
                return "interrupted"
            if is_done:
                progress.skip(name, "done by another process")
                return None
            return self._train_locked(run, setting, name, record)

    def _train_locked(self, run: Run, setting: RunSetting, name: str, record: Record | None) -> Status:
        """Train a run whose lock is held, and report its outcome; record why it is skipped or fails.

        record: what the run has left so far, on the first rank.
        """
        folder, progress, ranks = self._folder(run.id), setting.progress, self._ranks
        steps_before = 0 if record is None else _clear(folder, record)
        try:
            reason = ranks.first_refusal(partial(self._try_to_start, run))
            if reason is not None:
                progress.skip(name, f"skipped: {reason}")
                if ranks.is_first:
                    write_summary(folder, summarize_untrained(run, "skipped", reason), with_digest=False)
                return "skipped"
            weights = self._folder(run.start_from).weights if run.start_from else None
            keeps = run.id in self._plan.started_from
            status = train(run, self._workload(run), folder, setting, initial_weights=weights, keep_weights=keeps)
        except Exception as problem:
            # The record names the run in partial results and in `make status`; the next call tries it again. With
            # several ranks, an error here may only follow from one on another rank, which writes its own record.
            if ranks.size == 1 or (ranks.is_first and isinstance(problem, ConfigError | OSError)):
                with suppress(OSError):
                    message = f"{type(problem).__name__}: {first_line(problem)}"
                    write_summary(folder, summarize_untrained(run, "failed", message), with_digest=False)
            raise
        if ranks.is_first:
            summary = read_json(folder.summary)  # just written
            self.has_moved |= status != "interrupted" or summary["steps_done"] > steps_before
            outcome = f"{status} after {summary['steps_done']} steps, {summary['train_seconds']:.1f} s"
            progress.end(outcome + (f": {summary['reason']}" if summary["reason"] else ""))
        return status

    def _try_to_start(self, run: Run) -> str | None:
        """Create a run's workload; return why the run cannot be started, None if it can."""
        try:
            self._workload(run)
        except DataNotFound as problem:
            return str(problem)
        if run.start_from is None:
            return None
        try:
            upstream = read_record(self._folder(run.start_from), self._plan.runs[run.start_from])
        except DamagedFileError as problem:
            return f"it starts from run {run.start_from}: {problem}"
        if upstream.status == "finished":
            return None
        because = f": {upstream.summary['reason']}" if upstream.summary.get("reason") else ""
        return f"it starts from run {run.start_from}, which is {upstream.status or 'missing'}{because}"

    def _workload(self, run: Run) -> Workload:
        """Return a run's workload, which all runs with the same one share.

        Raises:
            DataNotFound: its data set is absent.
            ConfigError: it refuses one of its parameters.
        """
        key = json.dumps(run.spec["workload"], sort_keys=True)
        if key not in self._workloads:
            self._workloads[key] = workloads.create(**run.spec["workload"])
        return self._workloads[key]


def _clear(folder: RunFolder, record: Record) -> int:
    """Remove files that would misstate a run once it is trained; return the steps it was recorded to have done."""
    remove_unfinished(folder.path)
    if record.status == "interrupted":
        return int(record.summary["steps_done"])
    folder.summary.unlink(missing_ok=True)
    folder.origin.unlink(missing_ok=True)
    return 0


@contextmanager
def _device(plan: Plan, progress: Progress, ranks: Ranks, stop: Stop) -> Iterator[torch.device]:
    """Yield the device to train on: the CPU, or a GPU that no other process of these results uses meanwhile.

    Ranks have the GPU that their launcher gave them, by their number on their machine.

    Raises:
        filelock.Timeout: asked to stop while all GPUs were in use.
    """
    if plan.tier.device != "cuda":
        yield torch.device(plan.tier.device)
        return
    if ranks.size > 1:
        yield torch.device("cuda", torch.cuda.current_device())
        return
    # By UUID, because schedulers number the GPUs of every job from 0.
    names = [torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count())]
    locks = [plan.results.parent / f"gpu-{socket.gethostname()}-{name}.lock" for name in names]
    on_wait = partial(progress.note, "every GPU is in use by another process of these results; waiting")
    with first_free(locks, on_wait, stop) as index, torch.cuda.device(index):
        yield torch.device("cuda", index)


def refuse_absent_device(plan: Plan) -> None:
    """Raise `ConfigError` if the tier's device is absent."""
    if plan.tier.device == "cuda" and not torch.cuda.is_available():
        build = "this torch is a build without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ConfigError(
            f"tier = '{plan.tier.name}': it trains on a GPU, and {build} here; "
            "train on a machine with one, or take --tier embedded (plans can be made anywhere)"
        )
