"""Figure 5: errors of rank-1 approximations of the second moments of activations and of output gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow.bench.analysis import styles
from workflow.bench.analysis.styles import MethodStyle
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _page as page
from workflow.bench.results.tables import Results

PROBES = ("rank1_error",)
SIDES: Final = {"activation": "activations", "gradient": "gradients"}
APPROXIMATIONS: Final = {
    "best": MethodStyle("best rank-1 matrix", "#000000", "o", "-"),
    "scaled_mean": MethodStyle("mean vector, best length", "#E69F00", "s", (0, (5, 1.2, 1, 1.2))),
    "mean": MethodStyle("mean vector (MKOR's)", "#0072B2", "^", (0, (2.5, 1))),
}
"""Approximations of a second moment with their looks, the best one first."""
_ALPHA: Final = 0.45


def _draw(axes: Axes, errors: pd.DataFrame) -> None:
    """Draw a box per side and approximation over all errors of a workload, and every error as a dot."""
    groups: dict[str, Any] = {"data": errors, "x": "side", "y": "error", "hue": "approximation", "order": list(SIDES)}
    groups |= {"hue_order": list(APPROXIMATIONS), "legend": False, "ax": axes}
    groups["palette"] = {name: look.color for name, look in APPROXIMATIONS.items()}
    # Whiskers to the extremes: no error counts as an outlier.
    lines: dict[str, Any] = {"linecolor": "#000000", "linewidth": 0.8, "medianprops": {"linewidth": 1.6}}
    sns.boxplot(**groups, whis=(0, 100), gap=0.15, saturation=1, boxprops={"alpha": _ALPHA}, **lines)
    # seaborn takes the jitter from NumPy's global generator; a seed makes the same data give the same picture.
    np.random.seed(0)  # noqa: NPY002
    # The boxes have a zorder of 2, their medians of 2.1: dots must not hide a median.
    sns.stripplot(**groups, dodge=True, jitter=0.33, size=1.6, alpha=0.5, zorder=2.05)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the relative errors of all layers, iterations and seeds by workload, side and approximation."""
    rows = results.some_rows("rank1_error")
    names = page.probed_workloads(rows)
    figure, axes = page.new_figure(1, len(names), height=2.6, sharey=True)
    for panel, workload in zip(axes[0], names, strict=True):
        errors = rows[rows["workload"] == workload]
        _draw(panel, errors)
        panel.set_title(f"{styles.workload_name(workload)}, {errors['layer'].nunique()} layers")
        panel.set_xticks(range(len(SIDES)), list(SIDES.values()))
        panel.axhline(1, color=page.GUIDE, linewidth=0.7, zorder=1)
        panel.grid(axis="x", visible=False)
        panel.set(xlabel="", ylabel="relative error")
    axes[0, 0].set_ylim(-0.03, 1.06 * max(1.0, float(rows["error"].max())))
    legend = [
        *(Patch(facecolor=look.color, alpha=_ALPHA, label=look.name) for look in APPROXIMATIONS.values()),
        page.guide_entry("error of the zero matrix", linewidth=0.7),
    ]
    note = (
        "Frobenius norm of the difference over that of the moment; every layer, iteration and seed is a dot, boxes are "
        "quartiles, whiskers reach the extremes"
    )
    text = caption(results, rows, note)
    reading = "Every layer, iteration and seed is a dot; an error of 1 is that of the zero matrix."
    return page.save(figure, folder, "fig05_rank1_error", legend, text, message(rows), reading, columns=2)


def message(rows: pd.DataFrame) -> str:
    """Return the title: the median error of MKOR's mean vector by side, from the least to the most of the models."""
    medians = rows[rows["approximation"] == "mean"].groupby(["side", "workload"])["error"].median()
    phrases = [
        f"{name} {page.span(f'{error:.2f}' for error in sorted(medians[side]))}"
        for side, name in SIDES.items()
        if side in medians.index
    ]
    models = in_words([styles.workload_name(name) for name in page.probed_workloads(rows)])
    return f"{models}: median errors of MKOR's rank-1 matrix of {', of '.join(phrases)}" if phrases else ""


def caption(results: Results, rows: pd.DataFrame, note: str) -> str:
    """Return the caption of a figure of the probe rank1_error, which also counts moments without a relative error."""
    zero = int(rows.loc[rows["approximation"] == "best", "error"].isna().sum())
    steps = ", ".join(f"{step:g}" for step in sorted(rows["step"].unique()))
    trained = []
    for workload in page.probed_workloads(rows):
        labels = styles.in_order(rows.loc[rows["workload"] == workload, "optimizer"])
        optimizers = ", ".join(styles.style_of(label).name for label in labels)
        trained.append(f"{styles.workload_name(workload)} with {optimizers}")
    notes = [note, f"moments of the batch at iterations {steps} of training {', '.join(trained)}"]
    if zero:
        notes.append(f"left out: {zero} moments that are zero, which have no relative error")
    return page.footer(results, rows, notes=notes)
