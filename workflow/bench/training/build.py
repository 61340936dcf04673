"""The parts that train a run, built from its specification: model, optimizer, precision, schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from baselines import build as build_optimizer
from baselines import limits
from mkor_core import Preconditioner
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.provenance import memory_bytes
from workflow.bench.training import checkpoint
from workflow.bench.training.batch_shares import Share, share_of
from workflow.bench.training.checkpoint_header import DamagedError
from workflow.bench.training.lr_schedules import factor, schedule_function
from workflow.bench.training.precision import Precision
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import ALONE, Ranks
from workflow.bench.workloads.base import Workload


@dataclass(frozen=True)
class Setting:
    """How runs are trained on this machine; nothing here changes their numbers."""

    device: torch.device
    checkpoint_minutes: float
    progress: Progress
    stop: Callable[[], bool]
    """Returns whether to save a checkpoint and end after the current step."""
    checkpoint_steps: int | None = None
    """Save a checkpoint after every so many steps, too."""
    ranks: Ranks = ALONE
    """The processes that train together; each has a setting of its own."""


@dataclass(frozen=True)
class Parts:
    """Everything that trains one run, as seen from one rank."""

    run: Run
    workload: Workload
    share: Share
    model: nn.Module
    """The bare model, whose names are those in checkpoints and final weights."""
    parallel: DistributedDataParallel | None
    """The model wrapped for several ranks; None with one."""
    optimizer: Optimizer
    preconditioner: Preconditioner | None
    scheduler: LambdaLR | None
    """None for a constant rate: its ``step`` would cost more than the rest of the loop's own work."""
    precision: Precision

    def learning_rate(self, steps_done: int) -> float:
        """Return the learning rate of the last step done; before the first step, that of the first."""
        if self.scheduler is None:
            return float(self.optimizer.param_groups[0]["lr"])
        step = max(steps_done - 1, 0)
        return float(self.scheduler.base_lrs[0]) * factor(self.run.spec["schedule"], step, self.run.spec["steps"])


def build(run: Run, workload: Workload, setting: Setting, initial_weights: Path | None = None) -> Parts:
    """Return the parts of a run, with the random state of this process set by the run's seed.

    initial_weights: the file with the final weights of the run that ``run.start_from`` names; None to keep the
        model's random ones.

    Raises:
        ConfigError: the optimizer refuses a hyperparameter, precision or number of ranks, or the initial weights are
            damaged or of another model.
        MemoryError: the weights alone exceed this machine's memory.
    """
    ranks, device = setting.ranks, setting.device
    share = share_of(run, ranks)
    _refuse_too_large(workload)
    # The seed also determines random numbers drawn during training, such as dropout.
    torch.manual_seed(ranks.rank_seed(run.seed))
    model = workload.model(run.seed)
    if initial_weights is not None:
        _load_initial_weights(run, workload, model, initial_weights)
    model.to(device).train()
    parallel = None if ranks.size == 1 else ranks.parallel(model, device)
    precision = Precision(run.precision, device)
    optimizer, preconditioner = _build_optimizer(run, workload, model, share.micro_batches, ranks.size, precision)
    return Parts(
        run=run,
        workload=workload,
        share=share,
        model=model,
        parallel=parallel,
        optimizer=optimizer,
        preconditioner=preconditioner,
        scheduler=_build_scheduler(run, optimizer),
        precision=precision,
    )


def _refuse_too_large(workload: Workload) -> None:
    """Raise `MemoryError` if the weights exceed the memory: Linux may grant it, and kill the process that uses it."""
    memory = memory_bytes()
    if workload.weight_bytes > memory:
        sizes = f"{workload.weight_bytes:,} bytes, and this machine has {memory:,} bytes of memory"
        raise MemoryError(f"the weights of {workload.model_name} take {sizes}")


def _load_initial_weights(run: Run, workload: Workload, model: nn.Module, path: Path) -> None:
    assert run.start_from is not None
    try:
        weights = checkpoint.load(path, run.start_from)
    except DamagedError as problem:
        raise ConfigError(f"{problem}; delete it, and run {run.start_from} is trained again") from None
    try:
        workload.load_initial_weights(model, weights)
    except (RuntimeError, ValueError) as problem:
        reason = f"{' '.join(str(problem).split()):.200}"
        raise ConfigError(
            f"{run.describe()}: cannot start from the weights of run {run.start_from}: {reason}"
        ) from None


def _build_optimizer(
    run: Run,
    workload: Workload,
    model: nn.Module,
    micro_batches: int,
    ranks: int,
    precision: Precision,
) -> tuple[Optimizer, Preconditioner | None]:
    _refuse_unsupported(run, micro_batches, ranks)
    try:
        return build_optimizer(
            run.method,
            model,
            run.hyperparameters,
            exclude=workload.exclude,
            accumulation_steps=micro_batches,
            grad_scale=precision.grad_scale,
        )
    except ValueError as problem:
        raise ConfigError(f"{run.describe()}: {problem}") from problem


def _refuse_unsupported(run: Run, micro_batches: int, ranks: int) -> None:
    """Raise `ConfigError` if the run's optimizer, or the one it wraps, does not support what the run requires."""
    required = {
        "micro_batches": micro_batches > 1 and f"micro_batch_size = {run.spec.get('micro_batch_size')}",
        "data_parallel": ranks > 1 and f"{ranks} ranks",
        "grad_scaler": run.precision == "float16" and "precision = float16",
    }
    for name in filter(None, (run.method, run.hyperparameters.get("base"))):
        for feature, reason in limits(name).items():
            if required.get(feature):
                raise ConfigError(f"{run.describe()}: {required[feature]}: {name} cannot: {reason}")


def _build_scheduler(run: Run, optimizer: Optimizer) -> LambdaLR | None:
    schedule = run.spec["schedule"]
    if schedule["name"] == "constant" and not schedule["warmup"]:
        return None
    return LambdaLR(optimizer, schedule_function(schedule, run.spec["steps"]))
