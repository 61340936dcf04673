"""Figure 5: how well rank-1 matrices approximate the second moments of activations and of output gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workflow.bench.figures import _probes, _rank1
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import Results

PROBES = ("rank1_error",)
_WIDTH = 0.26  # of a box, the two sides being 1 apart


def _draw(axes: Axes, errors: np.ndarray, place: float, look: style.MethodStyle) -> None:
    """One box over all of ``errors [n]``, its whiskers from the smallest to the largest, and every value as a dot."""
    drawn = axes.boxplot(
        errors,
        positions=[place],
        widths=_WIDTH * 0.8,
        whis=(0, 100),
        patch_artist=True,
        medianprops={"color": "#000000", "linewidth": 1.4},
        manage_ticks=False,
    )
    drawn["boxes"][0].set(facecolor=look.color, alpha=0.4, linewidth=0.6)
    shifts = np.random.default_rng(0).uniform(-0.35, 0.35, len(errors)) * _WIDTH
    axes.plot(place + shifts, errors, look.marker, color=look.color, markersize=1.5, alpha=0.5, markeredgewidth=0)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw all layers', iterations' and seeds' relative errors by workload, side and approximation; none is cut off.

    Raises NoDataError where the probe rank1_error has no rows.
    """
    rows = _rank1.read(results)
    names = _probes.workloads(rows)
    figure, axes = style.new_figure(1, len(names), height=2.6, sharey=True)
    middle = (len(_rank1.APPROXIMATIONS) - 1) / 2
    for panel, workload in zip(axes[0], names, strict=True):
        for at, side in enumerate(_rank1.SIDES):
            for index, (approximation, look) in enumerate(_rank1.APPROXIMATIONS.items()):
                here = (rows["workload"] == workload) & (rows["side"] == side)
                errors = rows.loc[here & (rows["approximation"] == approximation), "error"].dropna().to_numpy(float)
                if len(errors):
                    _draw(panel, errors, at + (index - middle) * _WIDTH, look)
        layers = rows.loc[rows["workload"] == workload, "layer"].nunique()
        panel.set_title(f"{style.workload_name(workload)}, {layers} layers")
        panel.set_xticks(range(len(_rank1.SIDES)), list(_rank1.SIDES.values()))
        panel.set_xlim(-0.5, len(_rank1.SIDES) - 0.5)
        panel.axhline(1, color="#444444", linewidth=0.7, zorder=1)
        panel.grid(axis="x", visible=False)
    axes[0, 0].set_ylim(-0.03, 1.06 * max(1.0, float(rows["error"].max())))
    axes[0, 0].set_ylabel("relative error")
    handles: list = [Patch(facecolor=look.color, alpha=0.6, label=look.name) for look in _rank1.APPROXIMATIONS.values()]
    handles.append(Line2D([], [], color="#444444", linewidth=0.7, label="as far off as zero"))
    notes = [
        "Frobenius norm of what is missed over that of the moment; every layer, iteration and seed is a dot, "
        "boxes are quartiles, whiskers reach the extremes"
    ]
    style.finish(figure, handles, _rank1.footer(results, rows, notes), columns=2)
    return style.save(figure, folder, "fig05_rank1_error")
