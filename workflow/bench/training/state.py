"""The state of a run between two steps: what a checkpoint saves, and where a resumed run begins.

A run begins at its newest checkpoint that fits, else at the one before it, else at step 0.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mkor_core.ranks import comm
from mkor_core.saving.entries import saved_counters, with_counters
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import DamagedFileError, FileWarning
from workflow.bench.support.source_code import code_fingerprint
from workflow.bench.training import checkpoint
from workflow.bench.training.build import Parts, RunSetting, build
from workflow.bench.training.clocks import clock_of
from workflow.bench.training.peak_memory import is_out_of_memory, peak_memory_bytes
from workflow.bench.training.record import MetricsLog, RunFolder
from workflow.bench.training.summary import Account
from workflow.bench.workloads.base import Workload

Saved = dict[str, Any]
"""The content of a checkpoint.

``ranks`` holds one mapping for each rank: its account, the training losses since the last evaluation, the
preconditioner's own losses, and random states. ``model``, ``optimizer``, ``scheduler`` and ``scaler`` are state dicts,
the same on all ranks. ``metrics`` is the length of metrics.csv in bytes and its SHA-256. All tensors of a loaded
checkpoint are on the CPU.
"""


def prepare(
    run: Run, workload: Workload, folder: RunFolder, setting: RunSetting, initial_weights: Path | None
) -> tuple[Parts, TrainingState]:
    """Return the parts and the state of a run, restored from its newest checkpoint that fits, or new.

    A checkpoint that does not fit is a warning. All ranks resume from the same one, which the first rank chooses.

    Raises:
        ConfigError: as `build`; or the checkpoint is of another number of ranks.
        OSError: metrics.csv cannot be read or written.
    """
    for file in checkpoint.newest_first(folder.checkpoint):
        resumed = _resumed(file, run, workload, folder, setting)
        if resumed is not None:
            return resumed
    parts = build(run, workload, setting, initial_weights)
    log = MetricsLog(folder.metrics) if setting.ranks.is_first else None
    return parts, TrainingState(parts, folder, setting, log)


def _resumed(
    file: Path, run: Run, workload: Workload, folder: RunFolder, setting: RunSetting
) -> tuple[Parts, TrainingState] | None:
    """Return the parts and the state of a run as a checkpoint saved them; None if it is absent or does not fit.

    The checkpoint, as large as model and optimizer together, is freed on return.
    """
    ranks = setting.ranks
    saved: Saved | None = None
    log: MetricsLog | None = None
    payload = b""
    if ranks.is_first:
        try:
            payload = checkpoint.read(file, run.id)
            content = checkpoint.unpack(file, payload)
            if not {"ranks", "metrics"} <= content.keys():
                raise DamagedFileError(f"{file}: damaged: it contains no state of a training")
            if (saved_by := len(content["ranks"])) != ranks.size:
                advice = "resume with as many, or move it away to start anew"
                raise ConfigError(f"{file}: made by {saved_by} ranks, not by {ranks.size}: {advice}")
            log = MetricsLog(folder.metrics, content["metrics"])
            saved = content
        except FileNotFoundError:
            pass
        except DamagedFileError as problem:
            _go_on_without(problem)
    if not ranks.from_first(saved is not None):
        return None
    # One rank reads the file: many at once, of many gigabytes each, would wait for the disk.
    payload = ranks.bytes_from_first(payload)
    if saved is None:
        saved = checkpoint.unpack(file, payload)
    del payload
    parts = build(run, workload, setting)
    state, misfit = None, None
    try:
        state = TrainingState(parts, folder, setting, log, saved)
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        # The digest and the run's id bind the content to this run, but older code may have saved other entries. What is
        # called load_state_dict raises errors of many types for a state of another object.
        reason = " ".join(str(problem).split())
        misfit = f"{file}: cannot resume from it: {type(problem).__name__}: {reason:.300}"
    # A rank that cannot restore its part keeps the others from training on.
    misfits = [each for each in ranks.gathered(misfit) if each is not None]
    if state is not None and not misfits:
        return parts, state
    if log is not None:
        log.close()
        _go_on_without(misfits[0])
    return None


def _go_on_without(problem: object) -> None:
    warnings.warn(FileWarning(f"{problem}; going back to the checkpoint before it, or to the start"), stacklevel=3)


class TrainingState:
    """What changes in the course of a run, apart from the tensors of its `Parts`.

    saved: the checkpoint to resume from, which is restored into ``parts``; they are useless if it does not fit, which
        raises errors of many types. None for a new run.
    log: metrics.csv on the first rank, None on the others.
    """

    def __init__(
        self, parts: Parts, folder: RunFolder, setting: RunSetting, log: MetricsLog | None, saved: Saved | None = None
    ) -> None:
        self._parts = parts
        self._device = setting.device
        self._ranks = setting.ranks
        self.log = log
        self.account = Account()
        self.losses: list[Tensor] = []
        """The training losses since the last evaluation, scalars on the device."""
        self.saved_at = 0
        """The clock's reading, in nanoseconds, at the last checkpoint or the start."""
        if saved is not None:
            self._restore(saved)
        account = self.account
        account.slices += 1
        account.parameters = sum(parameter.numel() for parameter in parts.model.parameters())
        code = code_fingerprint(parts.run.lineage)
        if code not in account.code:
            account.code = ", ".join(filter(None, [account.code, code]))
        self._bytes_sent_before = dict(account.bytes_sent)
        self.clock = clock_of(setting.device, account.nanoseconds)
        self._writer = checkpoint.CheckpointWriter(folder.checkpoint, parts.run.id)

    def _restore(self, saved: Saved) -> None:
        """Put a checkpoint's content into the parts."""
        parts, of_rank = self._parts, saved["ranks"][self._ranks.rank]
        self.account = Account(**of_rank["account"])
        parts.model.load_state_dict(saved["model"])
        if parts.preconditioner is not None:
            # The optimizer's state is the first rank's; the losses that a preconditioner follows differ by rank.
            counters = {**(saved_counters(saved["optimizer"]) or {}), "losses": of_rank["followed_losses"]}
            saved["optimizer"] = with_counters(saved["optimizer"], counters)
        parts.optimizer.load_state_dict(saved["optimizer"])
        for name, part in (("scheduler", parts.scheduler), ("scaler", parts.precision.scaler)):
            if part:
                part.load_state_dict(saved[name])
        self.losses = list(of_rank["losses"].to(self._device).unbind())
        torch.set_rng_state(of_rank["rng"])
        if of_rank["cuda_rng"] is not None:
            torch.cuda.set_rng_state(of_rank["cuda_rng"], self._device)

    def save(self) -> None:
        """Begin to write a checkpoint, once the one before is complete; the time this takes is part of the next one.

        Every rank's own part is gathered; of what is the same on all ranks, the first one's is taken.

        Raises:
            OSError: on the first rank, which writes: the checkpoint before could not be written.
        """
        self.clock.switch("checkpoint")
        self.wait_for_checkpoint()
        self.update_account()
        self._consolidate()
        parts, scaler = self._parts, self._parts.precision.scaler
        of_rank = {
            "account": asdict(self.account),
            "losses": torch.stack(self.losses).cpu() if self.losses else torch.empty(0),
            "followed_losses": None if parts.preconditioner is None else parts.preconditioner.state_dict()["losses"],
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
        }
        by_rank = self._ranks.gathered(of_rank)
        if self.log is not None:
            saved: Saved = {
                "ranks": by_rank,
                "model": parts.model.state_dict(),
                "optimizer": parts.optimizer.state_dict(),
                "scheduler": parts.scheduler.state_dict() if parts.scheduler else None,
                "scaler": scaler.state_dict() if scaler else None,
                "metrics": self.log.secure(),
            }
            self._writer.save(self.account.steps_done, saved)
        self.saved_at = self.clock.last

    def wait_for_checkpoint(self) -> None:
        """Return once the last checkpoint is complete, on all ranks. Raises what `save` does."""
        self._writer.wait()
        self._ranks.from_first(None)  # returns once the first one has come here too

    def _consolidate(self) -> None:
        """Gather the preconditioner's state, which may be divided among ranks, on the first one."""
        if self._parts.preconditioner is None:
            return
        before = comm.bytes_sent()
        self._parts.preconditioner.consolidate(0)
        # Bytes sent for a checkpoint are no part of training: subtract them from the offset of the counters.
        for name, number in comm.bytes_sent().items():
            self._bytes_sent_before[name] = self._bytes_sent_before.get(name, 0) - number + before.get(name, 0)

    def update_account(self) -> None:
        """Bring times, peak memory, bytes sent and the switch step in the account up to the current step."""
        account, sent, before = self.account, comm.bytes_sent(), self._bytes_sent_before
        account.nanoseconds = self.clock.nanoseconds
        account.peak_memory_bytes = max(account.peak_memory_bytes, peak_memory_bytes(self._device))
        account.bytes_sent = {name: before.get(name, 0) + sent.get(name, 0) for name in sorted({*before, *sent})}
        if self._parts.preconditioner is not None:
            account.switch_step = self._parts.preconditioner.switch_step
            account.matmul_precision = self._parts.preconditioner.precision

    def close(self) -> None:
        """Wait for the last checkpoint, on the first rank, and close metrics.csv. Raises what `save` does."""
        try:
            self._writer.close()
        finally:
            if self.log is not None:
                self.log.close()
