"""Trains the unfinished runs of a list, and first the runs that they start from.

A lock ensures that one process at a time trains a run, even if several were given the same list.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TextIO, cast

import torch
from filelock import Timeout

from workflow.bench import workloads
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.files import first_free, locked, remove_unfinished
from workflow.bench.training import checkpoint
from workflow.bench.training.batch_shares import share_of
from workflow.bench.training.build import Setting
from workflow.bench.training.one_run import train
from workflow.bench.training.precision import choose_algorithms
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import ALONE, Ranks
from workflow.bench.training.record import (
    RunFolder,
    Status,
    first_line,
    is_done,
    origin_of,
    read_record,
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
        waiting = self._order(list(runs))
        for run in waiting:
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
            setting = Setting(device, tier.checkpoint_minutes, progress, self._stop, tier.checkpoint_steps, self._ranks)
            for run in waiting:
                if any(self._ranks.gathered(self._stop.asked)) or self._train(run, setting) == "interrupted":
                    return False
        return True

    def _order(self, runs: list[Run]) -> list[Run]:
        """Return the runs, each after the one it starts from if that is not done, without duplicates."""
        known = self._plan.runs | {run.id: run for run in runs}
        # The first rank decides what is done, here and below: other nodes see files on a shared disk seconds later.
        ids = list(dict.fromkeys(run.id for run in self._with_upstream(runs))) if self._ranks.is_first else None
        return [known[name] for name in self._ranks.from_first(ids)]

    def _with_upstream(self, runs: Iterable[Run]) -> Iterator[Run]:
        for run in runs:
            chain = [run]
            while (source := chain[-1].start_from) is not None:
                if not self._is_done(chain[-1]):
                    self._sources.add(source)
                if self._is_done(self._plan.runs[source]):
                    break
                chain.append(self._plan.runs[source])
            yield from reversed(chain)

    def _folder(self, run_id: str) -> RunFolder:
        return RunFolder.of(self._plan.results, run_id)

    def _keeps_weights(self, run: Run) -> bool:
        return run.id in self._plan.started_from

    def _is_done(self, run: Run) -> bool:
        """Return whether a run has ended, with its weights if others start from them.

        An adopted record has no weights. It is enough unless a run is about to start from it.
        """
        folder = self._folder(run.id)
        needs_weights = self._keeps_weights(run) and (run.id in self._sources or origin_of(folder) is None)
        return is_done(folder, run, needs_weights=needs_weights)

    def _first_finds_done(self, run: Run) -> bool:
        return self._ranks.from_first(self._is_done(run) if self._ranks.is_first else None)

    def _train(self, run: Run, setting: Setting) -> Status | None:
        """Train a run unless it is done; return how it ended, None if it was done before."""
        if self._first_finds_done(run):
            if self._ranks.is_first:
                # A process killed just after it wrote the record of a finished run left its checkpoint behind.
                checkpoint.remove(self._folder(run.id).checkpoint)
            setting.progress.skip(run.describe(), "done before")
            return None
        if self._ranks.is_first:
            write_spec(self._plan.results, run)
        with ExitStack() as stack:
            holds = self._lock(run, setting.progress, stack) if self._ranks.is_first else None
            if not self._ranks.from_first(holds):
                return "interrupted"
            if self._first_finds_done(run):
                setting.progress.skip(run.describe(), "done by another process")
                return None
            return self._train_locked(run, setting)

    def _lock(self, run: Run, progress: Progress, stack: ExitStack) -> bool:
        """Hold the lock of a run until ``stack`` is closed; return False if asked to stop before it was free.

        Raises:
            UnreadableError: something else is where one of the run's files belongs.
        """
        message = f"{run.describe()}: another process trains it; waiting"
        self._folder(run.id).require_files()
        try:
            stack.enter_context(locked(self._folder(run.id).lock, partial(progress.note, message), self._stop))
        except Timeout:
            return False
        return True

    def _train_locked(self, run: Run, setting: Setting) -> Status:
        """Train a run whose lock is held, and report its outcome; record why it is skipped or fails."""
        folder, progress, ranks = self._folder(run.id), setting.progress, self._ranks
        steps_before = _clear(folder, run) if ranks.is_first else 0
        try:
            reason = self._why_skipped(run)
            if reason is not None:
                if ranks.is_first:
                    write_summary(folder, summarize_untrained(run, "skipped", reason), with_digest=False)
                progress.skip(run.describe(), f"skipped: {reason}")
                return "skipped"
            weights = self._folder(run.start_from).weights if run.start_from else None
            status = train(
                run,
                self._workload(run),
                folder,
                setting,
                initial_weights=weights,
                keep_weights=self._keeps_weights(run),
            )
        except Exception as problem:
            # The record names the run in partial results and in `make status`; the next call tries it again. With
            # several ranks, an error here may only follow from one on another rank, which writes its own record.
            if ranks.size == 1 or (ranks.is_first and isinstance(problem, ConfigError | OSError)):
                with suppress(OSError):
                    message = f"{type(problem).__name__}: {first_line(problem)}"
                    write_summary(folder, summarize_untrained(run, "failed", message), with_digest=False)
            raise
        if ranks.is_first:
            summary = read_record(folder, run).summary
            self.has_moved |= status != "interrupted" or summary["steps_done"] > steps_before
            outcome = f"{status} after {summary['steps_done']} steps, {summary['train_seconds']:.1f} s"
            progress.end(outcome + (f": {summary['reason']}" if summary["reason"] else ""))
        return status

    def _why_skipped(self, run: Run) -> str | None:
        """Return why a run cannot be started, the same on all ranks; None if it can, with its workload created."""
        # The first rank prepares the data alone, and keeps them in files that the others then find.
        reason = self._try_to_start(run) if self._ranks.is_first else None
        reason = cast("str | None", self._ranks.from_first(reason))
        if reason is None and not self._ranks.is_first:
            reason = self._try_to_start(run)
        return next((each for each in self._ranks.gathered(reason) if each is not None), None)

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


def _clear(folder: RunFolder, run: Run) -> int:
    """Remove files that would misstate a run once it is trained; return the steps it was recorded to have done."""
    remove_unfinished(folder.path)
    try:
        record = read_record(folder, run)
    except DamagedFileError:
        record = None
    if record is None or record.status != "interrupted":
        folder.summary.unlink(missing_ok=True)
        folder.origin.unlink(missing_ok=True)
        return 0
    return int(record.summary["steps_done"])


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
