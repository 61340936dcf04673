"""Figure 5: errors of rank-1 approximations of the second moments of activations and of output gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workflow.bench.figures import _probes, _rank1
from workflow.bench.figures import _style as style
from workflow.bench.figures._page import save
from workflow.bench.results.tables import Results

PROBES = ("rank1_error",)
_ALPHA: Final = 0.45


def _draw(axes: Axes, errors: pd.DataFrame) -> None:
    """Draw a box per side and approximation over all errors of a workload, and every error as a dot."""
    looks = _rank1.APPROXIMATIONS
    groups: dict[str, Any] = {
        "data": errors,
        "x": "side",
        "y": "error",
        "hue": "approximation",
        "order": list(_rank1.SIDES),
        "hue_order": list(looks),
        "palette": {name: look.color for name, look in looks.items()},
        "legend": False,
        "ax": axes,
    }
    # Whiskers to the extremes: no error counts as an outlier.
    sns.boxplot(
        **groups,
        whis=(0, 100),
        gap=0.15,
        saturation=1,
        linecolor="#000000",
        linewidth=0.8,
        boxprops={"alpha": _ALPHA},
        medianprops={"linewidth": 1.6},
    )
    # seaborn takes the jitter from NumPy's global generator; a seed makes the same data give the same picture.
    np.random.seed(0)  # noqa: NPY002
    # The boxes have a zorder of 2, their medians of 2.1: dots must not hide a median.
    sns.stripplot(**groups, dodge=True, jitter=0.33, size=1.6, alpha=0.5, zorder=2.05)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the relative errors of all layers, iterations and seeds by workload, side and approximation.

    Raises:
        NoDataError: the probe rank1_error has no rows.
    """
    rows = results.some_rows("rank1_error")
    names = _probes.workloads(rows)
    figure, axes = style.new_figure(1, len(names), height=2.6, sharey=True)
    for panel, workload in zip(axes[0], names, strict=True):
        errors = rows[rows["workload"] == workload]
        _draw(panel, errors)
        panel.set_title(f"{style.workload_name(workload)}, {errors['layer'].nunique()} layers")
        panel.set_xticks(range(len(_rank1.SIDES)), list(_rank1.SIDES.values()))
        panel.axhline(1, color=style.GUIDE, linewidth=0.7, zorder=1)
        panel.grid(axis="x", visible=False)
        panel.set(xlabel="", ylabel="relative error")
    axes[0, 0].set_ylim(-0.03, 1.06 * max(1.0, float(rows["error"].max())))
    legend: list[Artist] = [
        Patch(facecolor=look.color, alpha=_ALPHA, label=look.name) for look in _rank1.APPROXIMATIONS.values()
    ]
    legend.append(Line2D([], [], color=style.GUIDE, linewidth=0.7, label="error of the zero matrix"))
    notes = [
        "Frobenius norm of the difference over that of the moment; every layer, iteration and seed is a dot, boxes are "
        "quartiles, whiskers reach the extremes"
    ]
    caption = _rank1.caption(results, rows, notes)
    return save(figure, folder, "fig05_rank1_error", legend=legend, caption=caption, columns=2)
