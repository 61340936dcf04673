"""Figure 18, appendix: the spectra of MKOR's factors over training."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from workflow.bench.analysis import styles
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig18_factors import draw_layers, entries, factors_of
from workflow.bench.results.tables import Results

PROBES = ("factors",)
_MEDIAN: Final = (0, (4, 1.5))
_LARGEST: Final = (0, (1, 1.2))


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the smallest, the median and the largest eigenvalue over iterations by workload."""
    rows = results.some_rows("factors")
    names = page.probed_workloads(rows)
    figure, (axes,) = page.new_figure(1, len(names), height=2.4, sharey="row")
    for panel, workload in zip(axes, names, strict=True):
        of_workload = rows[rows["workload"] == workload]
        panel.set_title(f"{styles.workload_name(workload)},\n{of_workload['layer'].nunique()} layers", fontsize=7)
        for look, of_factor in factors_of(of_workload):
            draw_layers(panel, of_factor, "smallest", look)
            median = of_factor.groupby("step")["median"].median()
            panel.plot(median.index, median, color=look.color, linestyle=_MEDIAN, linewidth=1.0)
        largest = of_workload.groupby("step")["largest"].median()
        panel.plot(largest.index, largest, color=page.GUIDE, linestyle=_LARGEST, linewidth=1.2)
        panel.set_xlabel("iteration")
    axes[0].set(ylabel="eigenvalue", yscale="log")  # the panels share their axis
    panels.decade_ticks(axes[0].yaxis)
    legend = [
        *entries(),
        page.guide_entry("median eigenvalue", linestyle=_MEDIAN, linewidth=1.2),
        page.guide_entry("largest eigenvalue, of all", linestyle=_LARGEST, linewidth=1.2),
    ]
    note = "thin lines: smallest eigenvalues of layers, thick lines: their median; all factors follow one training"
    text = page.footer(results, rows, notes=[note])
    reading = "With markers: smallest eigenvalues, thin lines are layers, thick ones their median."
    return page.save(figure, folder, "fig18_spectra_appendix", legend, text, reading=reading, columns=2)
