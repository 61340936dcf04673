"""What the two figures of rank-1 errors share: the approximations, their names and looks, and the rows."""

from __future__ import annotations

from typing import Final

import pandas as pd

from workflow.bench.analysis import captions
from workflow.bench.figures import _probes
from workflow.bench.figures import _style as style
from workflow.bench.figures._style import MethodStyle
from workflow.bench.results.tables import Results

SIDES: Final = {"activation": "activations", "gradient": "gradients"}
APPROXIMATIONS: Final = {
    "best": MethodStyle("best rank-1 matrix", "#000000", "o", "-"),
    "scaled_mean": MethodStyle("mean vector, best length", "#E69F00", "s", (0, (5, 1.2, 1, 1.2))),
    "mean": MethodStyle("mean vector (MKOR's)", "#0072B2", "^", (0, (2.5, 1))),
}
"""Approximations of a second moment, best first, with the looks that both figures give them."""


def read(results: Results) -> pd.DataFrame:
    """Rows of the probe.  Raises NoDataError where it has none."""
    return _probes.read(results, "rank1_error")


def footer(results: Results, rows: pd.DataFrame, notes: list[str]) -> str:
    """The caption, with the moments that have no relative error since they are zero."""
    zero = int(rows.loc[rows["approximation"] == "best", "error"].isna().sum())
    steps = ", ".join(f"{step:g}" for step in sorted(rows["step"].unique()))
    trained = ", ".join(
        f"{style.workload_name(workload)} with {', '.join(_bases(rows, workload))}"
        for workload in _probes.workloads(rows)
    )
    about = [*notes, f"moments of the batch at iterations {steps} of training {trained}"]
    if zero:
        about.append(f"left out: {zero} moments that are zero, which have no relative error")
    return captions.footer(results, rows, notes=about)


def _bases(rows: pd.DataFrame, workload: str) -> list[str]:
    """Names of the optimizers that a workload was trained with."""
    labels = style.in_order(rows.loc[rows["workload"] == workload, "optimizer"])
    return [style.style_of(label).name for label in labels]
