"""Figure 8: extreme eigenvalues and condition number of KFAC's right factors over training, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from workflow.bench.analysis.captions import footer
from workflow.bench.figures import _probes
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


def resolved(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with what float32 can tell from singular: no eigenvalue below the resolution, nor a condition beyond it.

    ``limit`` is the largest condition number that can be told; ``unresolved`` marks the rows that were beyond it.
    """
    limit = rows["largest"] / rows["resolution"]
    return rows.assign(
        unresolved=rows["smallest"] < rows["resolution"],
        smallest=np.maximum(rows["smallest"], rows["resolution"]),
        condition_number=np.minimum(rows["condition_number"], limit),
        limit=limit,
    )


def _draw(axes: Axes, rows: pd.DataFrame, quantity: str, look: MethodStyle) -> None:
    """A thin line a layer, the median of all layers, and hollow triangles where float32 resolves no more."""
    for _, of_layer in rows.groupby("layer"):
        axes.plot(of_layer["step"], of_layer[quantity], color=look.color, linewidth=0.5, alpha=0.55)
    median = rows.groupby("step")[quantity].median()
    axes.plot(median.index, median, color=look.color, linestyle=look.line, marker=look.marker, linewidth=1.6)
    if quantity != "largest":
        beyond = rows[rows["unresolved"]]
        axes.plot(
            beyond["step"],
            beyond[quantity],
            "v" if quantity == "smallest" else "^",
            color="#444444",
            markerfacecolor="none",
            markersize=4.5,
            markeredgewidth=0.7,
            zorder=4,
        )


def _decades(axes: Axes) -> None:
    """At most five ticks, each at a power of ten, so that no two labels of a log axis touch."""
    low, high = np.log10(axes.get_ylim())
    axes.yaxis.set_major_locator(LogLocator(base=10.0 ** max(1, np.ceil((high - low) / 5)), numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())


def make(results: Results, folder: Path) -> list[Path]:
    """Draw both eigenvalues and the condition number over iterations by workload, of both kinds of factor.

    Raises NoDataError where the probe spectra has no rows.
    """
    rows = resolved(_probes.read(results, "spectra"))
    names = _probes.workloads(rows)
    figure, axes = style.new_figure(len(QUANTITIES), len(names), height=4.6, sharex="col", sharey="row")
    for column, workload in enumerate(names):
        here = rows[rows["workload"] == workload]
        axes[0, column].set_title(f"{style.workload_name(workload)}, {here['layer'].nunique()} layers")
        for row, quantity in enumerate(QUANTITIES):
            panel = axes[row, column]
            panel.set_yscale("log")
            for factor, look in FACTORS.items():
                _draw(panel, here[here["factor"] == factor], quantity, look)
        by_step = here.groupby("step")
        weight = here[here["factor"] == "running"].groupby("step")["start_weight"].first()
        axes[1, column].plot(weight.index, weight, color="#000000", linestyle=style.MODEL_LINE, linewidth=1.0)
        for row, bound in ((1, "resolution"), (2, "limit")):
            low, high = by_step[bound].min(), by_step[bound].max()
            axes[row, column].fill_between(low.index, low, high, color="#999999", alpha=0.3, linewidth=0, zorder=0)
        axes[-1, column].set_xlabel("iteration")
    for row, name in enumerate(QUANTITIES.values()):
        axes[row, 0].set_ylabel(name)
        _decades(axes[row, 0])
    handles: list = [
        Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker, label=look.name)
        for look in FACTORS.values()
    ]
    handles += [
        Line2D([], [], color="#000000", linestyle=style.MODEL_LINE, label="weight of the start, the identity"),
        Patch(color="#999999", alpha=0.35, linewidth=0, label="what float32 resolves, over layers"),
        Line2D(
            [],
            [],
            color="#444444",
            linestyle="none",
            marker="v",
            markerfacecolor="none",
            label="eigenvalue at or below it",
        ),
        Line2D(
            [],
            [],
            color="#444444",
            linestyle="none",
            marker="^",
            markerfacecolor="none",
            label="condition number beyond it",
        ),
    ]
    trained = ", ".join(style.style_of(label).name for label in style.in_order(rows["optimizer"]))
    notes = [
        "right factors (of activations), without damping; thin lines: layers, thick: their median; a running factor "
        "has no eigenvalue below the weight that its start still has",
        f"trained with {trained}; {_unresolved(rows)}",
    ]
    style.finish(figure, handles, footer(results, rows, notes=notes), columns=2)
    return style.save(figure, folder, "fig08_kfac_spectra")


def _unresolved(rows: pd.DataFrame) -> str:
    """How many factors float32 cannot tell from singular, for the caption; they are drawn at the resolution."""
    parts = []
    for factor in FACTORS:
        of_factor = rows[rows["factor"] == factor]
        parts.append(f"{int(of_factor['unresolved'].sum())} of {len(of_factor)} {factor}")
    return f"singular to float32, so drawn at its resolution: {', '.join(parts)} factors"
