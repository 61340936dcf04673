"""Draw a figure of the bench for a test to look at."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from workflow.bench.figures import _page
from workflow.bench.results.tables import Results


def figure_of(name: str, results: Results) -> Figure:
    """Return the figure that the module ``name`` would write, still open, with its legend and caption."""
    kept: list[Figure] = []

    def keep(figure: Figure, folder: Path, name: str, caption: str) -> list[Path]:
        kept.append(figure)
        return [folder / name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_page, "write", keep)
        import_module(f"workflow.bench.figures.{name}").make(results, results.root / "figures")
    return kept[0]
