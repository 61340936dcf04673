"""Figure 8: the condition number of KFAC's right factors over training, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.styles import MethodStyle
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

PROBES = ("spectra",)
FACTORS: Final = {
    "running": MethodStyle("running average (KFAC's)", "#0072B2", "o", "-"),
    "batch": MethodStyle("one batch alone", "#E69F00", "s", (0, (2.5, 1))),
}
QUANTITIES: Final = {
    "condition_number": "condition number",
    "largest": "largest\neigenvalue",
    "smallest": "smallest\neigenvalue",
}
"""Columns of the probe, and the names of their axes."""
_SHOWN: Final = ("condition_number",)
_LIMITS: Final = {"smallest": "resolution", "condition_number": "limit"}
"""The column that limits what float32 resolves of a quantity."""
_NOTE: Final = (
    "Right factors (of activations), without damping; thin lines: layers, thick lines: their median; no eigenvalue of "
    "a running factor is below the remaining weight of the identity, from which it starts; what float32 does not "
    "resolve is drawn at its layer's limit, and gray is what it resolves in no layer"
)


def resolved(rows: pd.DataFrame) -> pd.DataFrame:
    """Limit values to those that float32 resolves, and add the columns ``limit`` and ``unresolved``.

    No eigenvalue is below the resolution, and no condition number above ``limit``, the largest one that float32
    resolves. ``unresolved`` marks the rows that were outside.
    """
    limit = rows["largest"] / rows["resolution"]
    return rows.assign(
        unresolved=rows["smallest"] < rows["resolution"],
        smallest=np.maximum(rows["smallest"], rows["resolution"]),
        condition_number=np.minimum(rows["condition_number"], limit),
        limit=limit,
    )


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the condition number over iterations, by workload and kind of factor."""
    return draw(results, folder, "fig08_kfac_spectra", _SHOWN, height=2.2)


def draw(results: Results, folder: Path, name: str, shown: Sequence[str], height: float) -> list[Path]:
    """Draw some of `QUANTITIES` over iterations, a row each, and write the figure ``name``.

    Raises:
        NoDataError: the probe spectra has no rows.
    """
    rows = resolved(results.some_rows("spectra"))
    names = page.probed_workloads(rows)
    figure, axes = page.new_figure(len(shown), len(names), height=height, sharex="col", sharey="row")
    for column, workload in zip(axes.T, names, strict=True):
        _draw_workload(column, rows[rows["workload"] == workload], workload, shown)
    for panel, quantity in zip(axes[:, 0], shown, strict=True):
        panel.set_ylabel(QUANTITIES[quantity])
        # Not before the curves are drawn: on a logarithmic axis seaborn takes the medians of logarithms.
        panel.set_yscale("log")
        panels.decade_ticks(panel.yaxis)
    for column, workload in zip(axes.T, names, strict=True):
        for panel, quantity in zip(column, shown, strict=True):
            if quantity in _LIMITS:
                _shade_unresolved(panel, rows[rows["workload"] == workload], quantity)
    trained = ", ".join(styles.style_of(label).name for label in styles.in_order(rows["optimizer"]))
    singular = rows.groupby("factor")["unresolved"].agg(["sum", "size"]).reindex(list(FACTORS), fill_value=0)
    counts = ", ".join(f"{unresolved} of {number} {factor}" for factor, unresolved, number in singular.itertuples())
    notes = [_NOTE, f"trained with {trained}; singular in float32: {counts} factors"]
    legend = [*map(page.line_entry, FACTORS.values()), page.band_entry("not resolved by float32")]
    if "smallest" in shown:
        look = {"color": "#000000", "linestyle": page.MODEL_LINE}
        legend.append(page.guide_entry("remaining weight of the identity", **look))
    message = _message(rows) if tuple(shown) == _SHOWN else ""
    reading = "Thin lines are layers, thick ones their median."
    text = page.footer(results, rows, notes=notes)
    return page.save(figure, folder, name, legend, text, message, reading, columns=2)


def _message(rows: pd.DataFrame) -> str:
    """Return the title: by model how many of single batches' factors are singular in float32."""
    batch = rows[rows["factor"] == "batch"]
    phrases = []
    for workload in page.probed_workloads(batch):
        is_singular = batch.loc[batch["workload"] == workload, "unresolved"]
        phrases.append(f"{int(is_singular.sum())} of {len(is_singular)} ({styles.workload_name(workload)})")
    return f"Of the factors of single batches {', '.join(phrases)} are singular in float32" if phrases else ""


def _draw_workload(column: Sequence[Axes], rows: pd.DataFrame, workload: str, shown: Sequence[str]) -> None:
    """Draw the quantities of one workload, and the remaining weight of the identity."""
    column[0].set_title(f"{styles.workload_name(workload)}, {rows['layer'].nunique()} layers")
    for panel, quantity in zip(column, shown, strict=True):
        _draw(panel, rows, quantity)
        if quantity == "smallest":
            weight = rows[rows["factor"] == "running"].groupby("step")["start_weight"].first()
            panel.plot(weight.index, weight, color="#000000", linestyle=page.MODEL_LINE, linewidth=1.0)
        panel.set(xlabel="iteration", ylabel="")
        panel.label_outer()


def _shade_unresolved(axes: Axes, rows: pd.DataFrame, quantity: str) -> None:
    """Shade what float32 resolves in no layer, to the panel's edge, whose limits must be set before."""
    low, high = axes.get_ylim()
    limits = rows.groupby("step")[_LIMITS[quantity]].agg(["min", "max"])
    ends = (low, limits["min"]) if quantity == "smallest" else (limits["max"], high)
    axes.fill_between(limits.index, *ends, color="#999999", alpha=0.3, linewidth=0, zorder=0)
    axes.set_ylim(low, high)


def _draw(axes: Axes, rows: pd.DataFrame, quantity: str) -> None:
    """Draw a line per layer, and the median over layers."""
    lines: dict[str, Any] = {"x": "step", "y": quantity, "hue": "factor", "legend": False, "ax": axes}
    looks = page.seaborn_looks(FACTORS)
    thin = {name: looks[name] for name in ("palette", "hue_order")}
    sns.lineplot(rows, **lines, **thin, units="layer", estimator=None, linewidth=0.4, alpha=0.35)
    median: dict[str, Any] = {"estimator": "median", "errorbar": None, "linewidth": 1.8}
    sns.lineplot(rows, **lines, **looks, style="factor", **median, markersize=5, markeredgewidth=0.4)
