"""The columns and statuses of the tidy CSV files: one list for the code that writes and the code that reads."""

from __future__ import annotations

from typing import Final

METRIC_COLUMNS = (
    "experiment",
    "optimizer",
    "method",
    "update_rule",
    "inverse_update_period",
    "seed",
    "workload",
    "run",
    "status",
    "step",
    "split",
    "metric",
    "value",
    "train_seconds",
)


RUN_COLUMNS = (
    "run",
    "experiment",
    "optimizer",
    "update_rule",
    "inverse_update_period",
    "seed",
    "workload",
    "tier",
    "hardware",
    "status",
    "reason",
    "hyperparameters",
    "start_from",
    "steps_done",
    "steps_to_target",
    "seconds_to_target",
    "train_seconds",
    "dataset",
    "parameters",
    "target",
)


#: Statuses of runs that ended badly of their own.
BROKEN_DOWN = ("diverged", "out_of_memory")


#: Columns of any CSV that hold numbers; text in one of them would go far before it fails.
NUMBERS: Final = frozenset(
    {
        *("seed", "step", "epoch", "value", "lr", "train_seconds", "wall_seconds", "inverse_update_period"),
        *("steps", "steps_done", "steps_to_target", "seconds_to_target", "parameters", "bytes_sent", "switch_step"),
        *("preconditioner_bytes", "peak_memory_bytes", "train_examples", "validation_examples", "threads"),
        *("repeat", "iteration_ms", "median_ms", "dimension", "trial", "bound", "updates", "batch_size"),
        *("encoder_parameters", "pretraining_parameters", "ms", "refresh_ms", "other_ms", "workers", "cores", "batch"),
        *("bytes", "computed_bytes", "predicted_bytes", "paper_bytes", "rows", "rank", "calls", "iterations", "error"),
        *("smallest", "largest", "condition_number", "resolution", "start_weight", "largest_entry"),
    }
)


#: Those of probes that may be infinite: what overflowed, and what has no inverse.
MAY_BE_INFINITE: Final = frozenset({"value", "bound", "condition_number", "largest_entry"})


#: Columns that hold text, even where all of it looks like numbers.
TEXTS: Final = dict.fromkeys(
    ("run", "experiment", "optimizer", "method", "workload", "status", "split", "metric", "model", "dataset"), "str"
)
