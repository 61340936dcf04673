"""Figure 9, appendix: a model of 7 billion parameters on 8 to 1,024 GPUs, computed and not measured."""

from __future__ import annotations

from pathlib import Path

from workflow.bench.figures import _page as page
from workflow.bench.figures import _projected as model
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import Results

PROBES = ("projection",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a step over the base optimizer's, and the memory and bytes of a rank.

    Raises:
        NoDataError: the probe projection has no rows.
    """
    rows = results.some_rows("projection")
    figure, (axes,) = style.new_figure(1, 3, height=2.5)
    legend = page.entries_of(model.draw_large(axes, rows)) + model.entries(rows)
    text = page.footer(results, rows, notes=model.notes(rows))
    reading = "Computed by a model from published speeds of GPUs and links; nothing of it is measured."
    return page.save(figure, folder, "fig09_model_appendix", legend=legend, caption=text, reading=reading)
