"""Figure 8, appendix: extreme eigenvalues of KFAC's right factors over training, layer by layer."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.figures.fig08_kfac_spectra import draw
from workflow.bench.results.tables import Results

PROBES = ("spectra",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the largest and the smallest eigenvalue over iterations, by workload and kind of factor."""
    return draw(results, folder, "fig08_kfac_spectra_appendix", ("largest", "smallest"), height=3.4)
