"""Speedups over AdamW at each width, and the largest width as the smaller ones predict it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.widths import BASE, EXPERIMENT, HELD_OUT, PLACES, Where, Widths, sentences, widths
from workflow.bench.analysis.wording import estimated
from workflow.bench.results.sources import from_runs
from workflow.bench.results.tables import Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("width",)

_NOTES: Final = (
    "A speedup is AdamW's iterations over the label's, the geometric mean over seeds and tuning studies, with a t "
    "interval over studies: at the final quality to what AdamW has reached after 90 % of its steps, over the sweep the "
    "geometric mean over the targets. Missed: the share of runs and targets that the label did not reach",
    f"Predicted: what a straight line through the smaller widths has at {HELD_OUT}, on logarithmic axes, one line in "
    "each study; the slope is that of the line through all widths",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row for each label, place of the sweep and width; `HELD_OUT` also before it has runs."""
    found = widths(results)
    sizes = found.runs["workload_parameters"].map(lambda given: int(given["hidden_size"]))
    rows = []
    for label in found.labels:
        for where in PLACES:
            for width in sorted({*found.sweeps, HELD_OUT}):
                labels = found.runs["optimizer"].isin((label, BASE))
                of_row = found.runs[labels & ((width == HELD_OUT) | (sizes == width))]
                rows.append(
                    {"label": label, "where": where, "width": width}
                    | _cells(found, label, where, width)
                    | {"data": from_runs(f"{EXPERIMENT}.runs.csv", of_row)}
                )
    text = caption(results, found.runs, notes=[*_NOTES, *sentences(found, str)], summarized=False)
    return write_table(pd.DataFrame(rows), folder, "width", title="Speedups over the width", caption=text)


def _cells(found: Widths, label: str, where: Where, width: int) -> dict[str, Any]:
    missed = found.missed(label, where).get(width)
    extrapolated = found.extrapolated(label, where) if width == HELD_OUT else None
    return {
        "speedup over AdamW": estimated(found.speedups(label, where).get(width)),
        "missed (%)": "" if missed is None else f"{100 * missed:.0f}",
        "predicted": estimated(extrapolated.predicted) if extrapolated else "",
        "measured / predicted": estimated(extrapolated.ratio) if extrapolated else "",
        "slope": estimated(found.slope(label, where)) if width == HELD_OUT else "",
        "prediction": extrapolated.decision if extrapolated else "not tested" if width == HELD_OUT else "",
    }
