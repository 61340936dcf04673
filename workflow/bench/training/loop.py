"""One training run, from its first step, or its last checkpoint, to its record."""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from baselines import build, limits
from mkor_core import comm
from mkor_core.attachment import STATE_KEY
from workflow.bench.data.batches import Batch
from workflow.bench.plan.runs import PLAIN_PRECISION, Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.provenance import collect
from workflow.bench.support.source_code import code_fingerprint
from workflow.bench.training import checkpoint
from workflow.bench.training.batch_shares import micro_batches, share_batches, share_of
from workflow.bench.training.checkpoint import CheckpointError
from workflow.bench.training.clocks import Clock
from workflow.bench.training.lr_schedules import factor, schedule_function
from workflow.bench.training.peak_memory import peak_memory_bytes, reset_peak_memory
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import ALONE, Ranks
from workflow.bench.training.record import MetricsLog, RunFolder, Status, first_line, write_summary
from workflow.bench.training.watchdog import OneRankError
from workflow.bench.workloads.base import Workload

_MEETING: Final = 1.0
"""Seconds between two meetings of ranks, at which they agree to stop or to save."""


@dataclass(frozen=True)
class Setting:
    """How runs are trained on this machine; nothing in it changes their numbers."""

    device: torch.device
    checkpoint_minutes: float
    progress: Progress
    stop: Callable[[], bool]
    """Whether to save a checkpoint and end after the present step."""
    checkpoint_steps: int | None = None
    """Steps after which to save one too, whatever the time."""
    ranks: Ranks = ALONE
    """The processes that train together, each with a setting of its own."""


class _DivergedError(Exception):
    """Loss, weights or factors are no longer finite; the message is the reason."""


class _DivergedHereError(_DivergedError):
    """A rank cannot go on, and the others do not know of it."""


class _InterruptedError(Exception):
    """The run was asked to stop and has saved its checkpoint."""


@dataclass
class _Account:
    """What a record tells of a run beside its metrics; rides in the checkpoints."""

    steps_done: int = 0
    code: str = ""
    """The fingerprint of the code that trained it; of several, one after the other, all."""
    skipped_steps: int = 0
    """Steps whose gradients overflowed in float16: the loss scale fell in place of an update."""
    slices: int = 0
    """How often the run was started: 1 for one that was never interrupted."""
    parameters: int = 0
    preconditioner_bytes: int = 0
    preconditioner_bytes_by_tensor: dict[str, int] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    bytes_sent: dict[str, int] = field(default_factory=dict)
    switch_step: int | None = None
    nanoseconds: dict[str, int] = field(default_factory=dict)


def train(
    run: Run,
    workload: Workload,
    folder: RunFolder,
    setting: Setting,
    *,
    initial_weights: Path | None = None,
    keep_weights: bool = False,
) -> Status:
    """Train a run to its end, or to an interruption, leave its record in ``folder``, and return how it ended.

    An interrupted run goes on from its checkpoint, and ends with the rows and weights of an uninterrupted one.
    Divergence and lack of memory are outcomes, not errors.  Ranks that train together (``setting.ranks``) call this
    alike and return the same; the first of them writes.

    initial_weights: the file with the final weights of the run that ``run.start_from`` names.
    keep_weights: write the final weights beside the record.

    Raises:
        ConfigError: a hyperparameter that the optimizer refuses, by name.
        CheckpointError: a checkpoint of another run or number of ranks, or damaged weights to start from.
        OSError: a full disk or an unwritable folder.
        OneRankError: divergence or lack of memory that only this rank met; it is recorded all the same.
    """
    ranks = setting.ranks
    started = datetime.now(UTC)
    provenance = collect(run.lineage)
    account = _Account()
    status: Status = "finished"
    reason = ""
    alone = False
    reset_peak_memory(setting.device)
    comm.reset_bytes_sent()
    try:
        training = _Training(run, workload, folder, setting, initial_weights)
        account = training.account
        training.run_to_end()
        if keep_weights and ranks.is_first:
            checkpoint.save(folder.weights, run.id, account.steps_done, training.model.state_dict())
    except _DivergedError as problem:
        status, reason = "diverged", str(problem)
        alone = ranks.size > 1 and isinstance(problem, _DivergedHereError)
    except _InterruptedError:
        status, reason = "interrupted", f"asked to stop after step {account.steps_done}"
    except (MemoryError, RuntimeError) as problem:
        if not _is_out_of_memory(problem):
            raise
        status, reason = "out_of_memory", first_line(problem)
        alone = ranks.size > 1
    account.peak_memory_bytes = max(account.peak_memory_bytes, peak_memory_bytes(setting.device))
    clock = Clock(nanoseconds=account.nanoseconds)
    mine: dict[str, Any] = {
        "rank": ranks.rank,
        "host": socket.gethostname(),
        "seconds": clock.seconds,
        "bytes_sent": account.bytes_sent,
        "peak_memory_bytes": account.peak_memory_bytes,
        "preconditioner_bytes": account.preconditioner_bytes,
    }
    by_rank = [mine] if alone else ranks.gathered(mine)
    summary = {
        "id": run.id,
        "spec": run.spec,
        "status": status,
        "reason": reason,
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: value for name, value in asdict(account).items() if name not in ("code", "nanoseconds")},
        "peak_memory_bytes": max(each["peak_memory_bytes"] for each in by_rank),
        "seconds": clock.seconds,
        "train_seconds": clock.train_seconds,
        "wall_seconds": clock.wall_seconds,
        "device": str(setting.device),
        "threads": torch.get_num_threads(),
        "world_size": ranks.size,
        "by_rank": by_rank,
        "model": workload.model_name,
        "dataset": workload.dataset_name,
        "train_examples": workload.train_examples,
        "validation_examples": workload.validation_examples,
        "steps_per_epoch": workload.steps_per_epoch,
        "data_fingerprint": workload.data_fingerprint,
        **provenance,
        "code_fingerprint": account.code or provenance["code_fingerprint"],
    }
    if ranks.claim(run.id) if alone else ranks.is_first:
        # Another rank than the first may not see all of metrics.csv yet, where the disk is shared.
        write_summary(folder, summary, with_digest=ranks.is_first)
        if status != "interrupted":
            checkpoint.remove(folder.checkpoint)
    if alone:
        raise OneRankError(f"{run.describe()}: {status}: {reason}; the same command goes on with what is left")
    return status


class _Training:
    """The state of a run between two steps, and what moves it on."""

    def __init__(
        self, run: Run, workload: Workload, folder: RunFolder, setting: Setting, initial_weights: Path | None
    ) -> None:
        self._run = run
        self._workload = workload
        self._folder = folder
        self._setting = setting
        self._ranks = setting.ranks
        self._share = share_of(run, setting.ranks)
        self._steps: int = run.spec["steps"]
        self._schedule: dict[str, Any] = run.spec["schedule"]
        state, self._log = _last_state(folder, run, setting)
        self.account = _Account(**state["ranks"][self._ranks.rank]["account"]) if state else _Account()
        self.account.slices += 1
        code = code_fingerprint(run.lineage)
        if code not in self.account.code:
            self.account.code = ", ".join(filter(None, [self.account.code, code]))
        self._sent_before = dict(self.account.bytes_sent)
        # What a model draws while it trains (dropout) comes from the run's seed too.
        torch.manual_seed(self._ranks.own_seed(run.seed))
        self.model = workload.model(run.seed)
        if initial_weights is not None and not state:
            assert run.start_from is not None
            weights = checkpoint.load(initial_weights, run.start_from)
            try:
                workload.load_initial_weights(self.model, weights)
            except (RuntimeError, ValueError) as problem:
                what = f"cannot start from the weights of run {run.start_from}"
                raise ConfigError(f"{run.describe()}: {what}: {' '.join(str(problem).split()):.200}") from None
        self.model.to(setting.device).train()
        self.account.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self._parallel = None if self._ranks.size == 1 else self._ranks.parallel(self.model, setting.device)
        self._accumulation_steps = self._share.micro_batches
        self._autocast = (
            nullcontext()
            if run.precision == PLAIN_PRECISION
            else torch.autocast(setting.device.type, getattr(torch, run.precision))
        )
        # float16 alone has gradients too small for it; bfloat16 has float32's range.
        self._scaler = torch.amp.GradScaler(setting.device.type) if run.precision == "float16" else None
        _refuse_limits(run, self._accumulation_steps, self._ranks.size)
        try:
            self._optimizer, self._preconditioner = build(
                run.method,
                self.model,
                run.hyperparameters,
                exclude=workload.exclude,
                accumulation_steps=self._accumulation_steps,
                grad_scale=1.0 if self._scaler is None else self._scaler,
            )
        except ValueError as problem:
            raise ConfigError(f"{run.describe()}: {problem}") from problem
        # A constant rate needs no scheduler, whose step would cost more than everything else here.
        is_constant = self._schedule["name"] == "constant" and not self._schedule["warmup"]
        self._scheduler = (
            None if is_constant else LambdaLR(self._optimizer, schedule_function(self._schedule, self._steps))
        )
        self._losses: list[Tensor] = []
        if state:
            self._restore(state)
        self._clock = Clock(torch.cuda.synchronize if setting.device.type == "cuda" else None, self.account.nanoseconds)
        if self._preconditioner is not None:
            self._preconditioner.phases = self._clock
        self._saved_at = self._shown_at = 0
        self._meet_at = self.account.steps_done + 1
        self._steps_before = self.account.steps_done
        self._seconds_before = self._clock.train_seconds

    def run_to_end(self) -> None:
        """Train the steps that are left.

        Raises `_DivergedError`, or `_InterruptedError` once a checkpoint is saved.
        """
        self._setting.progress.start(self._run.describe(), self._steps, self.account.steps_done)
        self._clock.start("data")
        self._saved_at = self._shown_at = self._clock.last
        try:
            with warnings.catch_warnings():
                # A rate is a function of the step, whether or not float16's first steps overflow and are left out.
                warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` before", UserWarning)
                self._train()
        except torch.linalg.LinAlgError as problem:  # type: ignore[attr-defined]
            why = self._what_is_not_finite(torch.stack(self._losses) if self._losses else None)
            raise _DivergedHereError(why or f"a decomposition failed: {first_line(problem)}") from problem
        finally:
            self._clock.stop()
            self._settle_account()
            if self._log is not None:
                self._log.close()

    def _train(self) -> None:
        account, clock, losses = self.account, self._clock, self._losses
        parallel, loss_of, autocast = self._parallel, self._workload.loss, self._autocast
        model: nn.Module = parallel or self.model
        accumulation_steps = self._accumulation_steps
        preconditioner, scheduler, stop = self._preconditioner, self._scheduler, self._setting.stop
        evaluate_every = self._run.spec["evaluate_every"]
        look_after = min(self._setting.progress.interval_ns, self._save_after)
        save_every = self._setting.checkpoint_steps or self._steps + 1
        batches = self._batches()
        if account.steps_done == 0:
            self._evaluate()
        looked_at = clock.last
        for step in range(account.steps_done, self._steps):
            clock.switch("data")
            parts = micro_batches(next(batches), accumulation_steps)
            found = []
            for part in parts:
                if parallel is not None:  # what DistributedDataParallel.no_sync() sets
                    parallel.require_backward_grad_sync = part is parts[-1]
                clock.switch("forward")
                with autocast:
                    loss = loss_of(model, part)
                clock.switch("backward")
                self._backward(loss)
                if preconditioner is not None:
                    preconditioner.observe(loss)
                found.append(loss.detach())
            clock.switch("update")
            self._update()
            if scheduler is not None:
                scheduler.step()
            # Kept, not read: reading a loss in every step would make a GPU wait.
            losses.append(found[0] if accumulation_steps == 1 else torch.stack(found).mean())
            account.steps_done = step + 1
            if account.steps_done % evaluate_every == 0 or account.steps_done == self._steps:
                self._evaluate()
            if account.steps_done % save_every == 0 and account.steps_done < self._steps:
                self._save()
            if parallel is None:
                stops = stop()
                if clock.last - looked_at > look_after:
                    looked_at = clock.last
                    self._look_up(saves=clock.last - self._saved_at > self._save_after)
            elif account.steps_done == self._meet_at:
                stops = self._meet(stop())
            else:
                continue
            if stops and account.steps_done < self._steps:
                self._save()
                raise _InterruptedError

    def _batches(self) -> Iterator[Batch]:
        """Return this rank's part of the batches, from the next step on."""
        seed, start = self._run.seed, self.account.steps_done
        if self._ranks.size == 1:
            return self._workload.batches(seed, start)
        return share_batches(self._workload, seed, start, self._share, self._setting.device)

    def _backward(self, loss: Tensor) -> None:
        """Add a micro-batch's share to the gradients."""
        if self._accumulation_steps > 1:
            loss = loss / self._accumulation_steps
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()

    def _update(self) -> None:
        """Take the optimizer's step, and free the gradients."""
        if self._scaler is None:
            self._optimizer.step()
        else:
            scale = self._scaler.get_scale()
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self.account.skipped_steps += self._scaler.get_scale() < scale
        self._optimizer.zero_grad()

    def _evaluate(self) -> None:
        """Append the mean training loss since the last evaluation, and the validation metrics, to metrics.csv."""
        self._clock.switch("evaluation")
        train_seconds, wall_seconds = self._clock.train_seconds, self._clock.wall_seconds
        losses = self._ranks.mean(torch.stack(self._losses)) if self._losses else None
        for why in self._ranks.gathered(self._what_is_not_finite(losses)):
            if why is not None:
                raise _DivergedError(why)
        self._losses.clear()
        metrics, training = self._ranks.from_first(self._measure)
        if not math.isfinite(metrics["loss"]):
            raise _DivergedError(f"the validation loss is {metrics['loss']} after step {self.account.steps_done}")
        values = {} if losses is None else {("train", "loss"): losses.double().mean().item()}
        values |= {("train", metric): value for metric, value in training.items()}
        # Any other than the loss may be undefined, as is a correlation with a constant.
        values |= {("validation", metric): value for metric, value in metrics.items() if math.isfinite(value)}
        if self._preconditioner is not None:
            size = self._preconditioner.memory_bytes()
            if size > self.account.preconditioner_bytes:
                self.account.preconditioner_bytes = size
                self.account.preconditioner_bytes_by_tensor = self._preconditioner.memory_by_tensor()
        if self._log is not None:
            self._log.append(
                step=self.account.steps_done,
                epoch=self.account.steps_done / self._workload.steps_per_epoch,
                lr=self._lr(),
                train_seconds=train_seconds,
                wall_seconds=wall_seconds,
                values=values,
            )

    def _measure(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the metrics of the validation data and, where these are in order, of the training data."""
        with self._autocast:
            metrics = self._workload.evaluate(self.model)
            training = self._workload.evaluate_training(self.model) if math.isfinite(metrics["loss"]) else {}
        return metrics, training

    def _what_is_not_finite(self, losses: Tensor | None) -> str | None:
        """Say which loss since the last evaluation (``[steps]``), weight or factor is not finite, if any."""
        step = self.account.steps_done
        if losses is not None:
            wrong = (~losses.isfinite()).nonzero()
            if len(wrong):
                first = int(wrong[0])
                return f"the training loss is {losses[first].item()} in step {step - len(losses) + first + 1}"
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                return f"the weights {name} are not finite after step {step}"
        if self._preconditioner is not None and (layers := self._preconditioner.non_finite_layers()):
            return f"the factors of {layers[0]} are not finite after step {step}"
        return None

    def _meet(self, wants_to_stop: bool) -> bool:
        """Agree with the other ranks on saving a checkpoint, on when to meet again, and on stopping, and tell the last.

        Any rank may stop them all; the first one's clock counts.
        """
        done = self.account.steps_done
        pace = (self._clock.train_seconds - self._seconds_before) / max(done - self._steps_before, 1)
        stops, saves, ahead = self._ranks.agree(
            stop=wants_to_stop,
            save=self._clock.last - self._saved_at > self._save_after,
            steps=max(1, int(_MEETING / max(pace, 1e-9))),
        )
        self._meet_at = done + ahead
        self._look_up(saves=saves)
        return stops

    def _look_up(self, *, saves: bool) -> None:
        """Show the progress where its time has come, and save a checkpoint if told to."""
        now = self._clock.last
        if now - self._shown_at > self._setting.progress.interval_ns and self._losses:
            self._clock.switch("evaluation")
            seconds = self._clock.train_seconds - self._seconds_before
            done = self.account.steps_done - self._steps_before
            self._setting.progress.show(self.account.steps_done, self._steps, self._losses[-1].item(), done / seconds)
            self._shown_at = now
        if saves:
            self._save()

    @property
    def _save_after(self) -> int:
        return round(self._setting.checkpoint_minutes * 60e9)

    def _lr(self) -> float:
        """Return the learning rate of the last step; before the first one, that of the first."""
        if self._scheduler is None:
            return float(self._optimizer.param_groups[0]["lr"])
        step = max(self.account.steps_done - 1, 0)
        return float(self._scheduler.base_lrs[0]) * factor(self._schedule, step, self._steps)

    def _settle_account(self) -> None:
        """Bring the account up to the present step."""
        account = self.account
        account.nanoseconds = self._clock.nanoseconds
        account.peak_memory_bytes = max(account.peak_memory_bytes, peak_memory_bytes(self._setting.device))
        sent = comm.bytes_sent()
        account.bytes_sent = {
            name: self._sent_before.get(name, 0) + sent.get(name, 0) for name in sorted({*self._sent_before, *sent})
        }
        if self._preconditioner is not None:
            account.switch_step = self._preconditioner.switch_step

    def _save(self) -> None:
        """Save a checkpoint; the time that this takes counts from the next one on.

        Each rank's own part is gathered; what all of them hold alike is the first one's.
        """
        self._clock.switch("checkpoint")
        self._settle_account()
        preconditioner = self._preconditioner
        if preconditioner is not None:
            before = comm.bytes_sent()
            preconditioner.consolidate()
            for name, number in comm.bytes_sent().items():  # what a checkpoint sends is no part of the training
                self._sent_before[name] = self._sent_before.get(name, 0) - number + before.get(name, 0)
        on_gpu = self._setting.device.type == "cuda"
        mine = {
            "account": asdict(self.account),
            "losses": torch.stack(self._losses).cpu() if self._losses else torch.empty(0),
            "followed_losses": None if preconditioner is None else preconditioner.state_dict()["losses"],
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self._setting.device) if on_gpu else None,
        }
        parts = self._ranks.gathered(mine)
        if self._log is not None:
            state = {
                "ranks": parts,
                "model": self.model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "scheduler": self._scheduler.state_dict() if self._scheduler else None,
                "scaler": self._scaler.state_dict() if self._scaler else None,
                "metrics": self._log.secure(),
            }
            checkpoint.save(self._folder.checkpoint, self._run.id, self.account.steps_done, state)
        self._ranks.from_first(lambda: None)  # nobody leaves, or trains on, before it is there
        self._saved_at = self._clock.last

    def _restore(self, state: dict[str, Any]) -> None:
        mine = state["ranks"][self._ranks.rank]
        self.model.load_state_dict(state["model"])
        if self._preconditioner is not None:
            state["optimizer"][STATE_KEY]["losses"] = mine["followed_losses"]
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scheduler:
            self._scheduler.load_state_dict(state["scheduler"])
        if self._scaler:
            self._scaler.load_state_dict(state["scaler"])
        self._losses = list(mine["losses"].unbind())
        torch.set_rng_state(mine["rng"].cpu())
        if mine["cuda_rng"] is not None:
            torch.cuda.set_rng_state(mine["cuda_rng"].cpu(), self._setting.device)


def _refuse_limits(run: Run, micro_batches: int, ranks: int) -> None:
    """Raise `ConfigError` where a run's optimizer, or the one that it wraps, cannot do what is asked of it."""
    asked = {
        "micro_batches": micro_batches > 1 and f"micro_batch_size = {run.spec.get('micro_batch_size')}",
        "data_parallel": ranks > 1 and f"{ranks} ranks",
        "grad_scaler": run.precision == "float16" and "precision = float16",
    }
    for name in filter(None, (run.method, run.hyperparameters.get("base"))):
        for kind, why in limits(name).items():
            if asked.get(kind):
                raise ConfigError(f"{run.describe()}: {asked[kind]}: {name} cannot: {why}")


def _last_state(folder: RunFolder, run: Run, setting: Setting) -> tuple[dict[str, Any] | None, MetricsLog | None]:
    """Return the newest usable checkpoint, or None, and on the first rank metrics.csv cut back to it.

    Ranks go on from the same one, which the first chooses.
    """
    ranks = setting.ranks
    state: dict[str, Any] | None = None
    log: MetricsLog | None = None

    def choose() -> int | None:
        nonlocal state, log
        state = checkpoint.load_latest(folder.checkpoint, run.id, setting.device)
        if state is not None and len(state["ranks"]) != ranks.size:
            raise CheckpointError(
                f"{folder.checkpoint}: made by {len(state['ranks'])} ranks, not by {ranks.size}: go on with as many, "
                "or move it away to start anew"
            )
        try:
            log = MetricsLog(folder.metrics, None if state is None else state["metrics"])
        except ValueError as problem:
            warnings.warn(f"{problem}; starting anew", stacklevel=2)
            state, log = None, MetricsLog(folder.metrics)
        return None if state is None else int(state["ranks"][0]["account"]["steps_done"])

    step = ranks.from_first(choose)
    if step is not None and not ranks.is_first:
        state = checkpoint.load_latest(folder.checkpoint, run.id, setting.device, step=step)
        if state is None:
            raise CheckpointError(
                f"{folder.checkpoint}: that of step {step}, from which rank 0 goes on, is not there: all ranks must "
                "see the same results folder"
            )
    return state, log


def _is_out_of_memory(problem: BaseException) -> bool:
    """Tell whether memory ran out: on a GPU, in Python, or in torch's allocator for the CPU, which has no own type."""
    return isinstance(problem, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(problem)
