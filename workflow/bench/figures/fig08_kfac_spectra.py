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
    "limit_share": "condition number ÷\nfloat32's limit",
    "largest": "largest\neigenvalue",
    "smallest": "smallest\neigenvalue",
}
"""Columns of `resolved`, and the names of their axes."""
_SHOWN: Final = ("limit_share",)
_AT_MOST: Final[Any] = {
    "marker": "v",
    "markersize": 4,
    "markerfacecolor": "white",
    "markeredgewidth": 0.7,
    "zorder": 1.9,
}
"""The marker of an eigenvalue that lies at most where it is drawn."""
_NOTE: Final = (
    "Right factors (of activations), without damping; thin lines: layers, thick lines: their median; float32 resolves "
    "no eigenvalue below d times its rounding unit times the largest one, so that the limit of the condition number of "
    "a layer of d inputs is the inverse of d times that unit: what lies beyond is singular, and drawn at the limit; no "
    "eigenvalue of a running factor is below the remaining weight of the identity, from which it starts"
)


def resolved(rows: pd.DataFrame) -> pd.DataFrame:
    """Limit eigenvalues to those that float32 resolves, and add the columns ``unresolved`` and ``limit_share``.

    ``unresolved`` marks the rows whose smallest eigenvalue was below the resolution. ``limit_share`` is the condition
    number over the largest one that float32 resolves in a factor of that size: 1 means singular.
    """
    smallest = np.maximum(rows["smallest"], rows["resolution"])
    unresolved = rows["smallest"] < rows["resolution"]
    return rows.assign(unresolved=unresolved, smallest=smallest, limit_share=rows["resolution"] / smallest)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the condition number's share of float32's limit over iterations, by workload and kind of factor."""
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
    trained = ", ".join(styles.style_of(label).name for label in styles.in_order(rows["optimizer"]))
    singular = rows.groupby("factor")["unresolved"].agg(["sum", "size"]).reindex(list(FACTORS), fill_value=0)
    counts = ", ".join(f"{unresolved} of {number} {factor}" for factor, unresolved, number in singular.itertuples())
    notes = [_NOTE, f"trained with {trained}; singular in float32: {counts} factors"]
    legend = [*map(page.line_entry, FACTORS.values())]
    if "limit_share" in shown:
        legend.append(page.guide_entry("singular in float32", linewidth=0.8))
    if "smallest" in shown:
        legend.append(
            page.guide_entry("a layer's, at most: float32 resolves no smaller one", linestyle="none", **_AT_MOST)
        )
        look = {"color": "#000000", "linestyle": page.MODEL_LINE}
        legend.append(page.guide_entry("remaining weight of the identity", **look))
    message = _message(rows) if tuple(shown) == _SHOWN else ""
    reading = "Thin lines are layers, thick ones their median; what float32 does not resolve is drawn at its limit."
    text = page.footer(results, rows, notes=notes)
    return page.save(figure, folder, name, legend, text, message, reading, columns=2)


def _message(rows: pd.DataFrame) -> str:
    """Return the title: by model how many of the layers' factors are singular in float32 at the last iteration."""
    last = rows[(rows["factor"] == "running") & (rows["step"] == rows["step"].max())]
    phrases = []
    for workload in page.probed_workloads(last):
        is_singular = last.loc[last["workload"] == workload, "unresolved"]
        phrases.append(f"{int(is_singular.sum())} of {len(is_singular)} ({styles.workload_name(workload)})")
    start = f"After {rows['step'].max():,} iterations KFAC's undamped factors of activations are singular in float32:"
    return f"{start} {', '.join(phrases)}" if phrases else ""


def _draw_workload(column: Sequence[Axes], rows: pd.DataFrame, workload: str, shown: Sequence[str]) -> None:
    """Draw the quantities of one workload, with float32's limit, and the remaining weight of the identity."""
    column[0].set_title(f"{styles.workload_name(workload)}, {rows['layer'].nunique()} layers")
    for panel, quantity in zip(column, shown, strict=True):
        _draw(panel, rows, quantity)
        if quantity == "limit_share":
            panel.axhline(1, color=page.GUIDE, linewidth=0.8, zorder=1)
        if quantity == "smallest":
            for factor, at_most in rows[rows["unresolved"]].groupby("factor"):
                look: dict[str, Any] = {
                    "color": FACTORS[str(factor)].color,
                    "linestyle": "none",
                    "alpha": 0.8,
                    **_AT_MOST,
                }
                panel.plot(at_most["step"], at_most["smallest"], **look)
            weight = rows[rows["factor"] == "running"].groupby("step")["start_weight"].first()
            panel.plot(weight.index, weight, color="#000000", linestyle=page.MODEL_LINE, linewidth=1.0)
        panel.set(xlabel="iteration", ylabel="")
        panel.label_outer()


def _draw(axes: Axes, rows: pd.DataFrame, quantity: str) -> None:
    """Draw a line per layer, and the median over layers."""
    lines: dict[str, Any] = {"x": "step", "y": quantity, "hue": "factor", "legend": False, "ax": axes}
    looks = page.seaborn_looks(FACTORS)
    thin = {name: looks[name] for name in ("palette", "hue_order")}
    sns.lineplot(rows, **lines, **thin, units="layer", estimator=None, linewidth=0.4, alpha=0.35)
    median: dict[str, Any] = {"estimator": "median", "errorbar": None, "linewidth": 1.8}
    sns.lineplot(rows, **lines, **looks, style="factor", **median, markersize=5, markeredgewidth=0.4)
