"""Figure 8: extreme eigenvalues and condition number of KFAC's right factors over training, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.figures._style import MethodStyle
from workflow.bench.results.tables import Results

PROBES = ("spectra",)
FACTORS: Final = {
    "running": MethodStyle("running average, as KFAC decomposes it", "#0072B2", "o", "-"),
    "batch": MethodStyle("one batch alone", "#E69F00", "s", (0, (2.5, 1))),
}
QUANTITIES: Final = {
    "largest": "largest\neigenvalue",
    "smallest": "smallest\neigenvalue",
    "condition_number": "condition\nnumber",
}
_UNRESOLVED: Final = {"smallest": "v", "condition_number": "^"}
"""Markers of the values that float32 does not resolve."""


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
    """Draw both extreme eigenvalues and the condition number over iterations, by workload and kind of factor.

    Raises:
        NoDataError: the probe spectra has no rows.
    """
    rows = resolved(results.some_rows("spectra"))
    names = style.probed_workloads(rows)
    figure, axes = style.new_figure(len(QUANTITIES), len(names), height=4.6, sharex="col", sharey="row")
    for column, workload in zip(axes.T, names, strict=True):
        _draw_workload(column, rows[rows["workload"] == workload], workload)
    for panel, name in zip(axes[:, 0], QUANTITIES.values(), strict=True):
        panel.set_ylabel(name)
        # Not before the curves are drawn: on a logarithmic axis seaborn takes the medians of logarithms.
        panel.set_yscale("log")
        panels.decade_ticks(panel.yaxis)
    trained = ", ".join(style.style_of(label).name for label in style.in_order(rows["optimizer"]))
    singular = rows.groupby("factor")["unresolved"].agg(["sum", "size"]).reindex(list(FACTORS), fill_value=0)
    counts = ", ".join(f"{unresolved} of {number} {factor}" for factor, unresolved, number in singular.itertuples())
    notes = [
        "right factors (of activations), without damping; thin lines: layers, thick lines: their median; no eigenvalue "
        "of a running factor is below the remaining weight of the identity, from which it starts",
        f"trained with {trained}; singular in float32, and drawn at its resolution: {counts} factors",
    ]
    legend = [
        *map(page.line_entry, FACTORS.values()),
        page.guide_entry("remaining weight of the identity", color="#000000", linestyle=style.MODEL_LINE),
        page.band_entry("resolution of float32, over layers"),
        page.hollow_entry("eigenvalue at or below it", _UNRESOLVED["smallest"]),
        page.hollow_entry("condition number beyond it", _UNRESOLVED["condition_number"]),
    ]
    text = page.footer(results, rows, notes=notes)
    return page.save(figure, folder, "fig08_kfac_spectra", legend=legend, caption=text, columns=2)


def _draw_workload(column: Sequence[Axes], rows: pd.DataFrame, workload: str) -> None:
    """Draw the three quantities of one workload, the remaining weight of the identity, and the limits of float32."""
    column[0].set_title(f"{style.workload_name(workload)}, {rows['layer'].nunique()} layers")
    for panel, quantity in zip(column, QUANTITIES, strict=True):
        _draw(panel, rows, quantity)
    weight = rows[rows["factor"] == "running"].groupby("step")["start_weight"].first()
    column[1].plot(weight.index, weight, color="#000000", linestyle=style.MODEL_LINE, linewidth=1.0)
    by_step = rows.groupby("step")
    for panel, bound in ((column[1], "resolution"), (column[2], "limit")):
        low, high = by_step[bound].min(), by_step[bound].max()
        panel.fill_between(low.index, low, high, color="#999999", alpha=0.3, linewidth=0, zorder=0)
    for panel in column:
        panel.set(xlabel="iteration", ylabel="")
        panel.label_outer()


def _draw(axes: Axes, rows: pd.DataFrame, quantity: str) -> None:
    """Draw a line per layer, the median over layers, and hollow triangles for values that float32 does not resolve."""
    lines: dict[str, Any] = {"x": "step", "y": quantity, "hue": "factor", "legend": False, "ax": axes}
    looks = style.seaborn_looks(FACTORS)
    thin = {name: looks[name] for name in ("palette", "hue_order")}
    sns.lineplot(rows, **lines, **thin, units="layer", estimator=None, linewidth=0.5, alpha=0.55)
    median: dict[str, Any] = {"estimator": "median", "errorbar": None, "linewidth": 1.6}
    sns.lineplot(rows, **lines, **looks, style="factor", **median, markersize=5, markeredgewidth=0.4)
    if quantity in _UNRESOLVED:
        beyond = rows[rows["unresolved"]]
        look: dict[str, Any] = {"color": style.GUIDE, "markerfacecolor": "none", "markersize": 4.5, "zorder": 4}
        axes.plot(beyond["step"], beyond[quantity], _UNRESOLVED[quantity], **look, markeredgewidth=0.7)
