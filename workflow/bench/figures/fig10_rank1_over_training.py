"""Figure 10: the rank-1 error of the second moments over training, mean over layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.figures import _page as page
from workflow.bench.figures.fig05_rank1_error import APPROXIMATIONS, SIDES, caption
from workflow.bench.results.tables import Results

PROBES = ("rank1_error",)


def _draw(axes: Axes, errors: pd.DataFrame) -> None:
    """Draw the mean error of each approximation, its quartiles as a band, and each seed's mean as a thin line."""
    looks: dict[str, Any] = {**page.seaborn_looks(APPROXIMATIONS), "legend": False, "ax": axes}
    lines: dict[str, Any] = {"x": "step", "y": "error", "hue": "approximation", "style": "approximation"}
    band: dict[str, Any] = {"errorbar": ("pi", 50), "err_kws": {"alpha": 0.14, "linewidth": 0}}
    sns.lineplot(errors, **lines, **looks, estimator="mean", **band, markersize=5, markeredgewidth=0.4)
    if errors["seed"].nunique() > 1:
        by_seed = errors.groupby(["approximation", "seed", "step"], as_index=False)["error"].mean()
        thin = looks | {"markers": False, "dashes": False}
        sns.lineplot(by_seed, **lines, **thin, units="seed", estimator=None, linewidth=0.5, alpha=0.8)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the mean error over iterations by workload (columns) and side (rows)."""
    rows = results.some_rows("rank1_error")
    names = page.probed_workloads(rows)
    figure, axes = page.new_figure(len(SIDES), len(names), height=3.6, sharex="col", sharey=True)
    for panels, workload in zip(axes.T, names, strict=True):
        panels[0].set_title(styles.workload_name(workload))
        for panel, (side, name) in zip(panels, SIDES.items(), strict=True):
            _draw(panel, rows[(rows["workload"] == workload) & (rows["side"] == side)])
            panel.set(xlabel="iteration", ylabel=f"error, {name}")
            panel.label_outer()
    axes[0, 0].set_ylim(-0.04, 1.06 * max(1.0, float(rows["error"].max())))
    legend = [page.line_entry(look) for look in APPROXIMATIONS.values()]
    legend.append(page.band_entry("quartiles of layers and seeds"))
    if rows["seed"].nunique() > 1:
        legend.append(page.guide_entry("mean of one seed", linewidth=0.5))
    text = caption(results, rows, "relative Frobenius error; lines: mean over layers and seeds")
    reading = "Lines: mean over layers and seeds; 1: no better than nothing."
    return page.save(figure, folder, "fig10_rank1_over_training", legend, text, _message(rows), reading, columns=2)


def _message(rows: pd.DataFrame) -> str:
    """Return the title: the mean error of activations' mean vector at the first and the last iteration, by model."""
    chosen = rows[(rows["approximation"] == "mean") & (rows["side"] == "activation")]
    phrases = []
    for workload in page.probed_workloads(chosen):
        by_step = chosen[chosen["workload"] == workload].groupby("step")["error"].mean()
        phrases.append(f"{by_step.iloc[0]:.2f} to {by_step.iloc[-1]:.2f} ({styles.workload_name(workload)})")
    start = "Error of MKOR's rank-1 matrix of activations, first and last iteration:"
    return f"{start} {', '.join(phrases)}" if phrases else ""
