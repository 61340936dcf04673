"""Where a run begins: at its newest checkpoint that fits, else at the one before it, else at step 0."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError, check, schema
from workflow.bench.support.errors import FileWarning
from workflow.bench.training import checkpoint
from workflow.bench.training.build import Parts, Setting, build
from workflow.bench.training.checkpoint_header import CheckpointError, DamagedError, newest_first, open_checkpoint
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.ranks import Ranks
from workflow.bench.training.record import MetricsLog, RunFolder
from workflow.bench.training.state import Saved, TrainingState
from workflow.bench.training.summary import Account
from workflow.bench.workloads.base import Workload


def prepare(
    run: Run, workload: Workload, folder: RunFolder, setting: Setting, initial_weights: Path | None
) -> tuple[Parts, TrainingState]:
    """Return the parts and the state of a run, restored from its newest checkpoint that fits, or new.

    A checkpoint that does not fit is a warning. All ranks resume from the same one, which the first rank chooses.

    Raises:
        ConfigError: as `build`.
        CheckpointError: the checkpoint is of another number of ranks.
        OSError: metrics.csv cannot be read or written.
    """
    for file in newest_first(folder.checkpoint):
        resumed = _resumed(file, run, workload, folder, setting)
        if resumed is not None:
            return resumed
    parts = build(run, workload, setting, initial_weights)
    log = MetricsLog(folder.metrics) if setting.ranks.is_first else None
    return parts, TrainingState(parts, folder, setting, log)


def _resumed(
    file: Path, run: Run, workload: Workload, folder: RunFolder, setting: Setting
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
            saved = _unpack_fitting(file, payload, run, ranks)
            log = _cut_back(folder.metrics, saved)
        except FileNotFoundError:
            pass
        except DamagedError as problem:
            saved = None
            _go_on_without(problem)
    if not ranks.from_first(saved is not None):
        return None
    # One rank reads the file: many at once, of many gigabytes each, would wait for the disk.
    payload = ranks.bytes_from_first(payload)
    if saved is None:
        saved = checkpoint.unpack(file, payload)
    del payload
    parts = build(run, workload, setting)
    state: TrainingState | None = None
    misfit: str | None = None
    try:
        state = TrainingState(parts, folder, setting, log, saved)
    except DamagedError as problem:
        misfit = f"{file}: {problem}"
    misfits = [each for each in ranks.gathered(misfit) if each is not None]
    if state is not None and not misfits:
        return parts, state
    if log is not None:
        log.close()
        _go_on_without(misfits[0])
    return None


def _go_on_without(problem: object) -> None:
    warnings.warn(FileWarning(f"{problem}; going back to the checkpoint before it, or to the start"), stacklevel=3)


def _steps_done(saved: Saved) -> int:
    return cast("int", saved["ranks"][0]["account"]["steps_done"])


def _cut_back(metrics: Path, saved: Saved) -> MetricsLog:
    """Return metrics.csv without the rows that are later than a checkpoint.

    Raises:
        DamagedError: it does not contain all rows that it had at the checkpoint.
    """
    try:
        return MetricsLog(metrics, saved["metrics"])
    except ValueError as problem:
        raise DamagedError(str(problem)) from None


def _unpack_fitting(file: Path, payload: bytes, run: Run, ranks: Ranks) -> Saved:
    """Return the content of a run's checkpoint, with everything in it that a new process can check without a model.

    Raises:
        DamagedError: the content is not that of a checkpoint of this run.
        CheckpointError: it was made by another number of ranks.
    """
    saved: Saved = checkpoint.unpack(file, payload)
    try:
        _check_ranks(file, run, saved, ranks)
        _check_rest(file, saved)
    except CheckpointError:
        raise
    except ConfigError as problem:
        raise DamagedError(f"{problem}; the checkpoint is damaged") from None
    with open_checkpoint(file, run.id) as (header, _):
        if header.step != _steps_done(saved):
            raise DamagedError(f"{file}: damaged: its first line states another step than its content")
    return saved


def _check_ranks(file: Path, run: Run, saved: Saved, ranks: Ranks) -> None:
    by_rank = saved.get("ranks")
    if not isinstance(by_rank, list) or not by_rank:
        raise DamagedError(f"{file}: damaged: it has no list of ranks")
    if len(by_rank) != ranks.size:
        raise CheckpointError(
            f"{file}: made by {len(by_rank)} ranks, not by {ranks.size}: resume with as many, or move it away to start "
            "anew"
        )
    keys = {"account", "losses", "followed_losses", "rng", "cuda_rng"}
    for rank, part in enumerate(by_rank):
        if not isinstance(part, dict) or part.keys() != keys:
            raise DamagedError(f"{file}: damaged: rank {rank} has not the entries {', '.join(sorted(keys))}")
        check(part["account"], _account_schema(), file, ("ranks", rank, "account"))
        done, steps = part["account"]["steps_done"], run.spec["steps"]
        # No checkpoint is written before the first step or after the last.
        if not 0 < done < steps or done != by_rank[0]["account"]["steps_done"]:
            raise DamagedError(f"{file}: damaged: rank {rank} has done {done} of {steps} steps")
        since_evaluation = done % run.spec["evaluate_every"]
        if not _is_tensor(part["losses"], torch.Size([since_evaluation])):
            raise DamagedError(f"{file}: damaged: rank {rank} has not the losses of the last {since_evaluation} steps")
        if not _is_tensor(part["rng"], torch.get_rng_state().shape):
            raise DamagedError(f"{file}: damaged: rank {rank} has no random state")


@cache
def _account_schema() -> Mapping[str, Any]:
    """Return the schema of an `Account`, whose values have the bounds that they have in run.json."""
    record = schema("run")
    names = {field.name for field in fields(Account)}
    properties = {
        **{name: record["properties"][name] for name in names & record["properties"].keys()},
        "code": {"type": "string"},
        "nanoseconds": {
            "type": "object",
            "properties": {phase: {"$ref": "#/$defs/count"} for phase in PHASES},
            "required": list(PHASES),
            "additionalProperties": False,
        },
    }
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(names),
        "additionalProperties": False,
        "$defs": record["$defs"],
    }


def _check_rest(file: Path, saved: Saved) -> None:
    """Check what a checkpoint says of files, and that it has all other entries; restoring checks their content."""
    size_and_digest = saved.get("metrics")
    match size_and_digest:
        case (int(size), str()) if type(size) is int and size >= 0:
            pass
        case _:
            raise DamagedError(f"{file}: damaged: it does not state the size and digest of metrics.csv")
    if missing := {"model", "optimizer", "scheduler", "scaler"} - saved.keys():
        raise DamagedError(f"{file}: damaged: it has no {min(missing)}")


def _is_tensor(value: object, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape
