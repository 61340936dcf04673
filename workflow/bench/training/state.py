"""The state of a run between two steps: what a checkpoint saves, and a resumed run restores."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor

from mkor_core import comm
from mkor_core.attachment import STATE_KEY
from workflow.bench.plan.runs import Run
from workflow.bench.support.source_code import code_fingerprint
from workflow.bench.training import checkpoint
from workflow.bench.training.build import Parts, Setting
from workflow.bench.training.checkpoint import CheckpointError
from workflow.bench.training.clocks import Clock
from workflow.bench.training.peak_memory import peak_memory_bytes
from workflow.bench.training.ranks import Ranks
from workflow.bench.training.record import MetricsLog, RunFolder
from workflow.bench.training.summary import Account

Saved = dict[str, Any]
"""The content of a checkpoint.

``ranks`` holds one mapping for each rank: its account, the training losses since the last evaluation, the
preconditioner's own losses, and random states. ``model``, ``optimizer``, ``scheduler`` and ``scaler`` are state dicts,
the same on all ranks. ``metrics`` is the length of metrics.csv in bytes and its SHA-256.
"""


class TrainingState:
    """What changes in the course of a run, apart from the tensors of its `Parts`.

    saved: the checkpoint to resume from, which is restored into ``parts``; None for a new run.
    log: metrics.csv on the first rank, None on the others.
    """

    def __init__(
        self, parts: Parts, folder: RunFolder, setting: Setting, log: MetricsLog | None, saved: Saved | None = None
    ) -> None:
        self._parts = parts
        self._folder = folder
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
        on_gpu = setting.device.type == "cuda"
        self.clock = Clock(torch.cuda.synchronize if on_gpu else None, self.account.nanoseconds)

    def _begin_slice(self) -> None:
        account = self.account
        account.slices += 1
        account.parameters = sum(parameter.numel() for parameter in self._parts.model.parameters())
        code = code_fingerprint(self._parts.run.lineage)
        if code not in account.code:
            account.code = ", ".join(filter(None, [account.code, code]))

    def _restore(self, saved: Saved) -> None:
        parts, of_rank = self._parts, saved["ranks"][self._ranks.rank]
        parts.model.load_state_dict(saved["model"])
        if parts.preconditioner is not None:
            # The optimizer's state is the first rank's; the losses that a preconditioner follows differ by rank.
            saved["optimizer"][STATE_KEY]["losses"] = of_rank["followed_losses"]
        parts.optimizer.load_state_dict(saved["optimizer"])
        if parts.scheduler:
            parts.scheduler.load_state_dict(saved["scheduler"])
        if parts.scaler:
            parts.scaler.load_state_dict(saved["scaler"])
        self.losses = list(of_rank["losses"].unbind())
        torch.set_rng_state(of_rank["rng"].cpu())
        if of_rank["cuda_rng"] is not None:
            torch.cuda.set_rng_state(of_rank["cuda_rng"].cpu(), self._device)

    def save(self) -> None:
        """Write a checkpoint; the time that this takes is part of the next one.

        Every rank's own part is gathered; of what is the same on all ranks, the first one's is taken.
        """
        self.clock.switch("checkpoint")
        self.update_account()
        self._consolidate()
        by_rank = self._ranks.gathered(self._rank_part())
        parts = self._parts
        if self.log is not None:
            saved: Saved = {
                "ranks": by_rank,
                "model": parts.model.state_dict(),
                "optimizer": parts.optimizer.state_dict(),
                "scheduler": parts.scheduler.state_dict() if parts.scheduler else None,
                "scaler": parts.scaler.state_dict() if parts.scaler else None,
                "metrics": self.log.secure(),
            }
            checkpoint.save(self._folder.checkpoint, parts.run.id, self.account.steps_done, saved)
        self._ranks.wait_for_first()  # no rank exits, or trains on, before the checkpoint is complete
        self.saved_at = self.clock.last

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
        self._parts.preconditioner.consolidate()
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

    def close(self) -> None:
        """Close metrics.csv."""
        if self.log is not None:
            self.log.close()


def find_checkpoint(folder: RunFolder, run: Run, setting: Setting) -> tuple[Saved | None, MetricsLog | None]:
    """Return the newest usable checkpoint, if any, and on the first rank metrics.csv, cut back to it.

    All ranks resume from the same checkpoint, which the first one chooses.

    Raises:
        CheckpointError: the checkpoint is of another run or number of ranks, or this rank does not see it.
    """
    ranks = setting.ranks
    saved: Saved | None = None
    log: MetricsLog | None = None
    if ranks.is_first:
        saved, log = _newest_with_metrics(folder, run, ranks, setting.device)
    chosen = None if saved is None else int(saved["ranks"][0]["account"]["steps_done"])
    step = cast("int | None", ranks.from_first(chosen))
    if step is not None and not ranks.is_first:
        saved = checkpoint.load_latest(folder.checkpoint, run.id, setting.device, step=step)
        if saved is None:
            raise CheckpointError(
                f"{folder.checkpoint}: the checkpoint of step {step}, from which rank 0 resumes, is not there: all "
                "ranks must see the same results folder"
            )
    return saved, log


def _newest_with_metrics(
    folder: RunFolder, run: Run, ranks: Ranks, device: torch.device
) -> tuple[Saved | None, MetricsLog]:
    """Return the newest checkpoint whose rows are all in metrics.csv, and that file without any later rows."""
    saved = checkpoint.load_latest(folder.checkpoint, run.id, device)
    if saved is not None and len(saved["ranks"]) != ranks.size:
        raise CheckpointError(
            f"{folder.checkpoint}: made by {len(saved['ranks'])} ranks, not by {ranks.size}: resume with as many, "
            "or move it away to start anew"
        )
    try:
        return saved, MetricsLog(folder.metrics, None if saved is None else saved["metrics"])
    except ValueError as problem:
        warnings.warn(f"{problem}; starting anew", stacklevel=2)
        return None, MetricsLog(folder.metrics)
