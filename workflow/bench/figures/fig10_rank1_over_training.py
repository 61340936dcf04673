"""Figure 10: the rank-1 error of the second moments over training, mean over layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.styles import MethodStyle
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _page as page
from workflow.bench.figures.fig05_rank1_error import caption
from workflow.bench.results.tables import Results

PROBES = ("rank1_error",)
_DASHES: Final[Any] = (0, (2.5, 1))
LINES: Final = {
    ("activation", "mean"): MethodStyle("activations, MKOR's mean vector", "#0072B2", "o", _DASHES),
    ("activation", "best"): MethodStyle("activations, best rank-1 matrix", "#0072B2", "s", "-"),
    ("gradient", "mean"): MethodStyle("gradients, MKOR's mean vector", "#D55E00", "^", _DASHES),
    ("gradient", "best"): MethodStyle("gradients, best rank-1 matrix", "#D55E00", "D", "-"),
}
"""Side and approximation of each line, and its look: a color a side, dashes for what MKOR uses."""


def _draw(axes: Axes, errors: pd.DataFrame) -> None:
    """Draw the mean error of each side and approximation, and the quartiles of MKOR's as a band."""
    for (side, approximation), look in LINES.items():
        chosen = errors[(errors["side"] == side) & (errors["approximation"] == approximation)]
        band: dict[str, Any] = {"errorbar": None}
        if approximation == "mean":
            band = {"errorbar": ("pi", 50), "err_kws": {"alpha": 0.14, "linewidth": 0}}
        line: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": look.line, "markersize": 5}
        sns.lineplot(chosen, x="step", y="error", estimator="mean", markeredgewidth=0.4, ax=axes, **line, **band)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the mean error over iterations by workload."""
    rows = results.some_rows("rank1_error")
    names = page.probed_workloads(rows)
    figure, (axes,) = page.new_figure(1, len(names), height=2.4, sharey=True)
    for panel, workload in zip(axes, names, strict=True):
        panel.set_title(styles.workload_name(workload))
        _draw(panel, rows[rows["workload"] == workload])
        panel.axhline(1, color=page.GUIDE, linewidth=0.7, zorder=1)
        panel.set(xlabel="iteration", ylabel="relative error")
        panel.label_outer()
    axes[0].set_ylim(-0.04, 1.06 * max(1.0, float(rows["error"].max())))
    legend = [page.line_entry(look) for look in LINES.values()]
    legend += [
        page.band_entry("quartiles of layers and seeds"),
        page.guide_entry("error of the zero matrix", linewidth=0.7),
    ]
    note = "relative Frobenius error; lines: mean over layers and seeds; band: of MKOR's mean vector"
    text = caption(results, rows, note)
    reading = "Lines: mean over layers and seeds; bands: of MKOR's mean vector."
    return page.save(figure, folder, "fig10_rank1_over_training", legend, text, _message(rows), reading, columns=2)


def _message(rows: pd.DataFrame) -> str:
    """Return the title: the models' mean errors for gradients at the end, of MKOR's matrix and of the best one."""
    last = rows[(rows["step"] == rows["step"].max()) & (rows["side"] == "gradient")]
    means = last.groupby(["approximation", "workload"])["error"].mean()
    if not {"best", "mean"} <= {*means.index.droplevel("workload")}:
        return ""
    best, mkor = (page.span(f"{error:.2f}" for error in sorted(means[of])) for of in ("best", "mean"))
    models = in_words([styles.workload_name(name) for name in page.probed_workloads(last)])
    of_mkor = f"{models}: at iteration {last['step'].max():,} MKOR's rank-1 matrix of gradients has an error of {mkor}"
    return f"{of_mkor}, the best one {best}"
