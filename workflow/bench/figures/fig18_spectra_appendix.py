"""Figure 18, appendix: the spectra of MKOR's factors over training."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.analysis.wording import number
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures.fig18_factors import draw_factors, entries
from workflow.bench.results.tables import Results

PROBES = ("factors",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the smallest eigenvalue of each layer's factors over the largest one, over iterations by workload."""
    rows = results.some_rows("factors")
    figure, axes = draw_factors(rows.assign(spread=rows["smallest"] / rows["largest"]), "spread")
    axes[0].set_ylabel("smallest eigenvalue,\nlargest: 1")
    panels.decade_ticks(axes[0].yaxis)
    low, high = (number(end) for end in rows["largest"].quantile([0.05, 0.95]))
    flat = 100 * (rows["median"] > 0.99 * rows["largest"]).mean()
    notes = [
        "thin lines: layers, thick lines: their median; all factors follow one training",
        f"in nine of ten factors the largest eigenvalue lies between {low} and {high}; in {flat:.0f} % the median one "
        "is as large, to 1 %",
    ]
    text = page.footer(results, rows, notes=notes)
    reading = "1: all directions are scaled alike. Thin: layers; thick: their median."
    return page.save(figure, folder, "fig18_spectra_appendix", entries(), text, reading=reading, columns=2)
