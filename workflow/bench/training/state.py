"""The state of a run between two steps: what a checkpoint saves, and a resumed run restores."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from mkor_core.ranks import comm
from mkor_core.saving.entries import saved_counters, with_counters
from workflow.bench.support.source_code import code_fingerprint
from workflow.bench.training.build import Parts, Setting
from workflow.bench.training.checkpoint_header import DamagedError
from workflow.bench.training.checkpoint_writer import CheckpointWriter
from workflow.bench.training.device_clocks import clock_of
from workflow.bench.training.fitting import require_like, require_optimizer_state, require_preconditioner_state
from workflow.bench.training.peak_memory import is_out_of_memory, peak_memory_bytes
from workflow.bench.training.record import MetricsLog, RunFolder, first_line
from workflow.bench.training.summary import Account

Saved = dict[str, Any]
"""The content of a checkpoint.

``ranks`` holds one mapping for each rank: its account, the training losses since the last evaluation, the
preconditioner's own losses, and random states. ``model``, ``optimizer``, ``scheduler`` and ``scaler`` are state dicts,
the same on all ranks. ``metrics`` is the length of metrics.csv in bytes and its SHA-256. All tensors of a loaded
checkpoint are on the CPU.
"""


class TrainingState:
    """What changes in the course of a run, apart from the tensors of its `Parts`.

    saved: the checkpoint to resume from, which is restored into ``parts``; None for a new run.
    log: metrics.csv on the first rank, None on the others.

    Raises:
        DamagedError: ``saved`` does not fit the parts; the message names no file.
    """

    def __init__(
        self, parts: Parts, folder: RunFolder, setting: Setting, log: MetricsLog | None, saved: Saved | None = None
    ) -> None:
        self._parts = parts
        self._writer = CheckpointWriter(folder.checkpoint, parts.run.id)
        self._device = setting.device
        self._ranks = setting.ranks
        self.log = log
        self.account = Account() if saved is None else Account(**saved["ranks"][setting.ranks.rank]["account"])
        self.losses: list[Tensor] = []
        """The training losses since the last evaluation, scalars on the device."""
        self.saved_at = 0
        """The clock's reading, in nanoseconds, at the last checkpoint or the start."""
        self._begin_slice()
        self._bytes_sent_before = dict(self.account.bytes_sent)
        if saved is not None:
            self._restore(saved)
        self.clock = clock_of(setting.device, self.account.nanoseconds)

    def _begin_slice(self) -> None:
        account = self.account
        account.slices += 1
        account.parameters = sum(parameter.numel() for parameter in self._parts.model.parameters())
        code = code_fingerprint(self._parts.run.lineage)
        if code not in account.code:
            account.code = ", ".join(filter(None, [account.code, code]))

    def _restore(self, saved: Saved) -> None:
        """Put a checkpoint's content into the parts, which are useless if it does not fit.

        Raises:
            DamagedError: a part of it does not fit.
        """
        try:
            self._load(saved)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
            if is_out_of_memory(problem):
                raise
            # Methods called load_state_dict raise errors of all these types for a state of another object.
            reason = f"{type(problem).__name__}: {first_line(problem):.300}"
            raise DamagedError(f"cannot resume from it: {reason}") from None

    def _load(self, saved: Saved) -> None:
        parts, of_rank = self._parts, saved["ranks"][self._ranks.rank]
        require_like(saved["model"], parts.model.state_dict(), "model")
        parts.model.load_state_dict(saved["model"])
        require_optimizer_state(saved["optimizer"], parts.optimizer)
        if parts.preconditioner is not None:
            # The optimizer's state is the first rank's; the losses that a preconditioner follows differ by rank.
            counters = {**(saved_counters(saved["optimizer"]) or {}), "losses": of_rank["followed_losses"]}
            require_preconditioner_state(counters, self.account.steps_done, self.account.switch_step)
            saved["optimizer"] = with_counters(saved["optimizer"], counters)
        parts.optimizer.load_state_dict(saved["optimizer"])
        for name, part in (("scheduler", parts.scheduler), ("scaler", parts.precision.scaler)):
            require_like(saved[name], part.state_dict() if part else None, name)
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
        by_rank = self._ranks.gathered(self._rank_part())
        parts, scaler = self._parts, self._parts.precision.scaler
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
        self._ranks.wait_for_first()

    def _rank_part(self) -> dict[str, Any]:
        """Return the part of a checkpoint that differs by rank, with tensors on the CPU."""
        preconditioner = self._parts.preconditioner
        return {
            "account": asdict(self.account),
            "losses": torch.stack(self.losses).cpu() if self.losses else torch.empty(0),
            "followed_losses": None if preconditioner is None else preconditioner.state_dict()["losses"],
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
        }

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
