"""Figure 9: strong scaling: on many GPUs by a model, or measured where many workers were."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from workflow.bench.analysis import styles
from workflow.bench.figures import _page as page
from workflow.bench.figures import fig09_model_appendix as model
from workflow.bench.figures import fig09_speedup_appendix as speedup
from workflow.bench.results.tables import Results

PROBES = ("scaling", "projection")
_FEW: Final = 8
"""Workers up to which measurements say nothing of many: the fewest GPUs of the model."""
_MODELLED: Final = ("kaisa", "eva", "mkor")
"""The methods whose model is drawn; the appendix has others."""


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the measured speedup of more than `_FEW` workers, else a step of BERT-Large on many GPUs by the model."""
    rows, projected = (results.probe(name) for name in PROBES)
    if projected.empty or (len(rows) and speedup.most_workers(speedup.measured_steps(rows)) > _FEW):
        absent = ["probe projection"] if projected.empty else []
        return speedup.draw(results, folder, "fig09_scalability", absent)
    figure, ((axes,),) = page.new_figure(1, 1, height=2.3)
    steps = model.steps_over_base(projected, model.SMALL)
    steps = steps[steps["optimizer"].isin(_MODELLED)]
    model.draw_steps(axes, steps, projected)
    axes.set_title(f"{styles.workload_name(model.SMALL[0])} on {model.SMALL[1]}, computed by a model")
    legend = [*page.entries_of(steps["optimizer"], linestyle=page.MODEL_LINE)]
    legend.append(page.guide_entry("base optimizer's step", linewidth=0.8))
    absent = [] if len(rows) else ["probe scaling"]
    text = page.footer(results, projected, notes=model.notes(projected), absent=absent)
    reading = "All of it is computed by a model, without any measurement."
    message = model.message(projected, model.SMALL)
    return page.save(figure, folder, "fig09_scalability", legend, text, message, reading)
