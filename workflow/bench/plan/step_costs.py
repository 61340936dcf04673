"""What a training step of each workload of the large tiers takes: counts, from which a plan models its seconds.

``workflow/workloads.csv`` has, by model and input shape, the parameters, and the operations and kernels of one
example's forward and backward pass. `workflow.bench.count_workloads` counts them. Imports no torch.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from workflow.bench.support.config import ROOT

FILE: Final = ROOT / "workflow" / "workloads.csv"
COLUMNS: Final = ("shape", "parameters", "operations", "kernels")
_SHAPE: Final = (
    *("layers", "hidden_size", "heads", "vocabulary_size", "sequence_length"),
    *("image_size", "channels", "width", "hidden"),
)
"""Parameters of workloads that change a step's work; those that name data change only the last layer's outputs."""


class StepCost(NamedTuple):
    """What a step takes for each example, but for the kernels, which are those of a whole micro-batch."""

    parameters: int
    operations: int
    kernels: int


def shape_of(workload: Mapping[str, Any]) -> str:
    """Return, as text, what decides the work of a workload's step: its name, and the sizes of model and input."""
    # The batch size is left out: the counts are of one example.
    given = [(name, workload[name]) for name in _SHAPE if name in workload]
    return " ".join([workload["name"], *(f"{name}={_shown(value)}" for name, value in given)])


def _shown(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


@cache
def step_costs() -> Mapping[str, StepCost]:
    """Return the counted costs by `shape_of`."""
    with FILE.open(newline="", encoding="utf-8") as rows:
        return {row["shape"]: StepCost(*(int(row[name]) for name in COLUMNS[1:])) for row in csv.DictReader(rows)}
