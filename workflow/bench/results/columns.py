"""The columns of the tidy CSV files with the type of each, and the statuses of runs.

Both the code that writes the files (`results.rows`, the probes) and the code that reads them (`results.tables`) use
these lists. The module imports neither torch nor pandas.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from typing import Final, get_args

from workflow.bench.plan.artefacts import Artefact
from workflow.bench.plan.targets import Target
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.record import ENDED as ENDED
from workflow.bench.training.record import METRIC_COLUMNS, Status

Columns = Mapping[str, type]
"""The columns of a file in their order, each with its type: a number, text, a truth value, or an object in JSON."""

STATUSES: Final = (*get_args(Status), "missing")
"""Every status in a tidy file: those of run.json, and that of a run that was not trained yet."""

BROKEN_DOWN: Final = tuple(status for status in ENDED if status != "finished")
"""Statuses of runs that ended early because training failed; another attempt would fail again."""

WITHOUT_VALUES: Final = ("missing", "failed", "skipped")
"""Statuses of runs that have no evaluations."""

_IDENTITY: Final[Columns] = {
    "experiment": str,
    "optimizer": str,
    "method": str,
    "update_rule": str,
    "inverse_update_period": int,
    "seed": int,
    "workload": str,
}

EVALUATION_COLUMNS: Final[Columns] = {**_IDENTITY, "run": str, "status": str, **METRIC_COLUMNS}
"""``<experiment>.csv``: one row for every evaluated metric. A run without any has one row, empty from ``step`` on."""

RUN_COLUMNS: Final[Columns] = {
    "run": str,
    **_IDENTITY,
    "tier": str,
    "hardware": str,
    "status": str,
    "reason": str,
    "workload_parameters": dict,
    "hyperparameters": dict,
    "tuned": bool,
    # The number, from 0, of the tuning study whose values the run has, or the run that it starts from.
    "study": int,
    "start_from": str,
    "steps": int,
    "steps_done": int,
    "steps_to_target": int,
    "seconds_to_target": float,
    "crossing_step": float,
    "crossing_seconds": float,
    "direction_cosine": float,
    "target": Target,
    "model": str,
    "dataset": str,
    "train_examples": int,
    "validation_examples": int,
    "parameters": int,
    "preconditioner_bytes": int,
    "peak_memory_bytes": int,
    **{f"seconds_{phase}": float for phase in PHASES},
    "train_seconds": float,
    "wall_seconds": float,
    "bytes_sent": int,
    "switch_step": int,
    "data_fingerprint": str,
    "git_commit": str,
    "git_dirty": bool,
    "code_fingerprint": str,
    "code_current": bool,
    "torch": str,
    "python": str,
    "cpu": str,
    "gpu": str,
    "threads": int,
}
"""``<experiment>.runs.csv``: one row for every run."""

TRIAL_COLUMNS: Final[Columns] = {
    "experiment": str,
    "workload": str,
    "optimizer": str,
    "study": int,
    "values": dict,
    "seed": int,
    "run": str,
    "status": str,
    "split": str,
    "metric": str,
    "score": float,
    "steps_to_target": float,
    "chosen": bool,
}
"""``config/tuned/<tier>/<experiment>.trials.csv``: one row for every trial. ``score`` is the metric's last value, empty
for a trial that did not finish. ``steps_to_target`` is given where the target ranks the trials, if it was reached."""

PROBE_PROVENANCE: Final[Columns] = {"code_fingerprint": str, "git_commit": str}
"""The last columns of every ``probes/<name>.csv``, which `probes._command` adds to those of the probe's ``Row``."""

DIRECTION: Final = ("preconditioner", "cosine")
"""The split and the metric of the median cosine, over layers, of a preconditioner's update and the gradient; the column
``direction_cosine`` is the median of a run's evaluations of it."""

MAY_BE_INFINITE: Final = frozenset({"value", "bound", "condition_number", "largest_entry"})
"""Columns of probes that may hold infinity: values that overflowed, and condition numbers of singular matrices."""

_TYPES: Final[Mapping[str, type]] = {kind.__name__: kind for kind in (int, float, str, bool)}


@cache
def probe_columns(name: str) -> Columns:
    """Return all columns of ``probes/<name>.csv``: the annotated fields of the probe's ``Row``, then its provenance.

    The class is parsed, not imported, because probes import torch.

    Raises:
        ValueError: the probe has no class ``Row``, or a field of it has another type than int, float, str or bool
            (each may be ``| None``).
    """
    module = Artefact("probes", name).module
    classes = [node for node in ast.parse(module.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    row = next((node for node in classes if node.name == "Row"), None)
    if row is None:
        raise ValueError(f"{module.name} has no class Row")
    columns: dict[str, type] = {}
    for field in row.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            annotation = ast.unparse(field.annotation)
            kind = annotation.removesuffix(" | None")
            if kind not in _TYPES:
                raise ValueError(f"Row.{field.target.id}: {annotation}: the type must be one of {', '.join(_TYPES)}")
            columns[field.target.id] = _TYPES[kind]
    return {**columns, **PROBE_PROVENANCE}
