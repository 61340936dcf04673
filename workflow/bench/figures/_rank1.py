"""Rank-1 errors: the approximations with their names and looks, and the caption."""

from __future__ import annotations

from typing import Final

import pandas as pd

from workflow.bench.figures import _captions, _probes
from workflow.bench.figures import _style as style
from workflow.bench.figures._style import MethodStyle
from workflow.bench.results.tables import Results

SIDES: Final = {"activation": "activations", "gradient": "gradients"}
APPROXIMATIONS: Final = {
    "best": MethodStyle("best rank-1 matrix", "#000000", "o", "-"),
    "scaled_mean": MethodStyle("mean vector, best length", "#E69F00", "s", (0, (5, 1.2, 1, 1.2))),
    "mean": MethodStyle("mean vector (MKOR's)", "#0072B2", "^", (0, (2.5, 1))),
}
"""Approximations of a second moment with their looks, the best one first."""


def caption(results: Results, rows: pd.DataFrame, notes: list[str]) -> str:
    """Return the caption, which also counts the moments without a relative error."""
    zero = int(rows.loc[rows["approximation"] == "best", "error"].isna().sum())
    steps = ", ".join(f"{step:g}" for step in sorted(rows["step"].unique()))
    trained = ", ".join(
        f"{style.workload_name(workload)} with {', '.join(_optimizers(rows, workload))}"
        for workload in _probes.workloads(rows)
    )
    notes = [*notes, f"moments of the batch at iterations {steps} of training {trained}"]
    if zero:
        notes.append(f"left out: {zero} moments that are zero, which have no relative error")
    return _captions.footer(results, rows, notes=notes)


def _optimizers(rows: pd.DataFrame, workload: str) -> list[str]:
    """Return the names of the optimizers that trained a workload."""
    labels = style.in_order(rows.loc[rows["workload"] == workload, "optimizer"])
    return [style.style_of(label).name for label in labels]
