"""The parts that train a run, built from its specification: model, optimizer, precision, learning rates, batches.

A global batch is divided among ranks and into micro-batches. Example: ``batch_size`` 128 on 4 ranks. Each rank trains
on 32 rows of every batch. With a ``micro_batch_size`` of 16, the global batch has 8 micro-batches, of which each rank
owns 2. With one of 64 it has 2, and each is shared by 2 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from baselines import build as build_optimizer
from baselines import limits
from mkor_core import Preconditioner
from mkor_core.ranks import comm
from workflow.bench.data.batches import Batch
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.provenance import memory_bytes
from workflow.bench.training import checkpoint
from workflow.bench.training.precision import Precision
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import ALONE, Ranks
from workflow.bench.workloads.base import Workload


@dataclass(frozen=True)
class RunSetting:
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
class BatchShare:
    """The rows and micro-batches of every global batch that one rank trains on.

    A micro-batch belongs to one rank, or is shared equally by several.
    """

    rows: slice
    """Rows of the global batch."""
    micro_batches: int
    """Micro-batches of this rank in a step; 1 if it shares one."""
    ranks_per_micro_batch: int
    """Number of ranks that share each micro-batch; 1 if each rank has its own."""
    micro_batch_index: int
    """Position, in the global batch, of the micro-batch that this rank shares; 0 if it shares none."""
    global_micro_batches: int
    """Micro-batches of the global batch."""


@dataclass(frozen=True)
class Parts:
    """Everything that trains one run, as seen from one rank."""

    run: Run
    workload: Workload
    share: BatchShare
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
        return float(self.scheduler.base_lrs[0]) * lr_factor(self.run.spec["schedule"], step, self.run.spec["steps"])


def build(run: Run, workload: Workload, setting: RunSetting, initial_weights: Path | None = None) -> Parts:
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
    # Linux may grant more memory than there is, and kill the process that uses it.
    if workload.weight_bytes > (memory := memory_bytes()):
        sizes = f"{workload.weight_bytes:,} bytes, and this machine has {memory:,} bytes of memory"
        raise MemoryError(f"the weights of {workload.model_name} take {sizes}")
    precision = Precision(run.precision, device)
    # The seed also determines random numbers drawn during training, such as dropout.
    torch.manual_seed(ranks.rank_seed(run.seed))
    model = workload.model(run.seed)
    if initial_weights is not None:
        _load_initial_weights(run, workload, model, initial_weights)
    model.to(device).train()
    parallel = None if ranks.size == 1 else ranks.parallel(model, device)
    _refuse_unsupported(run, share.micro_batches, ranks.size)
    try:
        optimizer, preconditioner = build_optimizer(
            run.method,
            model,
            run.hyperparameters,
            exclude=workload.exclude,
            accumulation_steps=share.micro_batches,
            grad_scale=precision.grad_scale,
        )
    except ValueError as problem:
        raise ConfigError(f"{run.describe()}: {problem}") from problem
    schedule, steps = run.spec["schedule"], run.spec["steps"]
    is_constant = schedule["name"] == "constant" and not schedule["warmup"]
    scheduler = None if is_constant else LambdaLR(optimizer, lambda step: lr_factor(schedule, step, steps))
    return Parts(run, workload, share, model, parallel, optimizer, preconditioner, scheduler, precision)


def _load_initial_weights(run: Run, workload: Workload, model: nn.Module, path: Path) -> None:
    assert run.start_from is not None
    try:
        weights = checkpoint.load(path, run.start_from)
    except DamagedFileError as problem:
        raise ConfigError(f"{problem}; delete it, and run {run.start_from} is trained again") from None
    try:
        workload.load_initial_weights(model, weights)
    except (RuntimeError, ValueError) as problem:
        reason = f"{' '.join(str(problem).split()):.200}"
        raise ConfigError(
            f"{run.describe()}: cannot start from the weights of run {run.start_from}: {reason}"
        ) from None


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


def lr_factor(schedule: Mapping[str, Any], step: int, steps: int) -> float:
    """Return the factor, in [0, 1], of the learning rate in step ``step`` (from 0) of ``steps``.

    During the first ``warmup`` share of the steps the factor rises linearly, from 1 / (number of those steps). After
    that ``constant`` stays at 1; ``linear`` falls to 0; ``polynomial`` is the remaining share of the steps to the power
    ``power``; ``step`` multiplies by ``factor`` at each of the steps in ``milestones``.
    """
    warmup_steps = round(schedule.get("warmup", 0.0) * steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    remaining = max(0.0, (steps - step) / max(steps - warmup_steps, 1))
    match schedule["name"]:
        case "constant":
            return 1.0
        case "linear":
            return remaining
        case "polynomial":
            return remaining ** schedule["power"]
        case "step":
            return schedule["factor"] ** sum(step >= milestone for milestone in schedule["milestones"])
        case name:
            raise ValueError(f"schedule name={name!r} must be constant, linear, polynomial or step.")


def share_of(run: Run, ranks: Ranks) -> BatchShare:
    """Return the share of this rank in a run's batches.

    Raises:
        ConfigError: the batch cannot be divided equally among the ranks.
    """
    if why := run.split_problem(ranks.size):
        raise ConfigError(f"{run.describe()}: {why}")
    micro_batches, rows_per_rank = run.accumulation_steps, run.spec["workload"]["batch_size"] // ranks.size
    rows = slice(ranks.rank * rows_per_rank, (ranks.rank + 1) * rows_per_rank)
    if micro_batches >= ranks.size:
        return BatchShare(rows, micro_batches // ranks.size, 1, 0, micro_batches)
    ranks_per_micro_batch = ranks.size // micro_batches
    return BatchShare(rows, 1, ranks_per_micro_batch, ranks.rank // ranks_per_micro_batch, micro_batches)


def share_batches(
    workload: Workload, seed: int, start: int, share: BatchShare, device: torch.device
) -> Iterator[Batch]:
    """Yield this rank's rows of a workload's batches from batch ``start`` on.

    If ranks share a micro-batch and its loss is a mean over terms other than examples (predicted tokens, for example),
    each batch gets a ``loss_weight``: with it, the mean of the ranks' losses is the loss of the whole micro-batch.
    """
    for batch in workload.sliced_batches(seed, start, share.rows):
        terms = workload.loss_terms(batch) if share.ranks_per_micro_batch > 1 else None
        if terms is None:
            yield batch
            continue
        # counts: [global_micro_batches]. Two ranks with 30 and 50 tokens of one micro-batch get the weights
        # 30 * 2 / 80 and 50 * 2 / 80: the mean of their weighted losses is the mean over all 80 tokens.
        index = share.micro_batch_index
        counts = torch.zeros(share.global_micro_batches, device=device)
        # A number, so that nothing is copied to the device: the batch lies on the CPU.
        counts[index] = int(terms)
        (total,) = comm.sum_across_ranks([counts])
        yield batch | {"loss_weight": counts[index] * share.ranks_per_micro_batch / total[index]}


def micro_batches(batch: Batch, number: int) -> Sequence[Batch]:
    """Return ``batch`` cut into ``number`` equal parts along the examples, the first axis of every tensor.

    Raises:
        ValueError: ``number`` does not divide the examples, or the tensors differ in their number of examples.
    """
    if number == 1:
        return (batch,)
    lengths = {len(tensor) for tensor in batch.values()}
    if len(lengths) != 1 or (examples := lengths.pop()) % number:
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        raise ValueError(f"a batch with the shapes {shapes} cannot be cut into {number} equal parts.")
    parts = [tensor.split(examples // number) for tensor in batch.values()]
    return [dict(zip(batch, part, strict=True)) for part in zip(*parts, strict=True)]
