"""Iterations to one target at each batch size, and what the runs say of the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.batch_sizes import EXPERIMENT, Batches, batches, sentences
from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import mean_ratio
from workflow.bench.analysis.wording import estimated
from workflow.bench.results.sources import from_runs
from workflow.bench.results.tables import Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("batch_size",)

_NOTES: Final = (
    "Iterations at which the smoothed metric crosses the target: the geometric mean over seeds and tuning studies, "
    "with a t interval over studies. Where a run did not reach the target it counts with its budget, and the mean is a "
    "lower bound without an interval",
    "The ratio is that of the iterations to the reference's, paired by study, below 1 in favor of the label; the slope "
    "is that of its logarithm over the logarithm of the batch size, a line in each study",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row for each label and batch size of each workload; the largest size has slope and prediction."""
    found, left_out = batches(results)
    runs = results.some_runs(EXPERIMENT)
    sizes = runs["workload_parameters"].map(lambda given: int(given["batch_size"]))
    rows = []
    for of_workload in found:
        for label, arrivals in of_workload.arrivals.items():
            for size in arrivals:
                # The largest size has what all sizes together say.
                is_last = size == max(arrivals) and label != of_workload.reference
                labels = runs["optimizer"].isin([label, of_workload.reference])
                of_row = runs[(runs["workload"] == of_workload.workload) & labels & (is_last | (sizes == size))]
                rows.append(
                    _row(of_workload, label, size)
                    | {
                        "slope": estimated(of_workload.slope(label)) if is_last else "",
                        "prediction": of_workload.decision(label) if is_last else "",
                        "data": from_runs(f"{EXPERIMENT}.runs.csv", of_row),
                    }
                )
    notes = [*_NOTES, *sentences(found, str, str), *([f"Not shown: {'; '.join(left_out)}"] if left_out else [])]
    text = caption(results, runs, notes=notes, summarized=False)
    return write_table(pd.DataFrame(rows), folder, "batch_size", title="Iterations over the batch size", caption=text)


def _row(of_workload: Batches, label: str, size: int) -> dict[str, Any]:
    arrival = of_workload.arrivals[label][size]
    ratios = of_workload.ratios(label, size) if label != of_workload.reference else {}
    return {
        "workload": of_workload.workload,
        "target": of_workload.target.describe(),
        "label": label,
        "batch size": size,
        "reached": f"{arrival.reached} of {arrival.runs}",
        "iterations": estimated(arrival.iterations),
        "reference": of_workload.reference or "",
        "iterations / reference": estimated(mean_ratio([*ratios.values()])) if ratios else "",
    }
