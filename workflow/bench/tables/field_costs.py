"""What a step of every optimizer of the field costs: memory, work, kernels, bytes, time; and how it turns gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import footer
from workflow.bench.analysis.field import NO_CLOCK
from workflow.bench.analysis.step_times import mean_ms
from workflow.bench.analysis.wording import number
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.sources import from_rows
from workflow.bench.results.tables import NoDataError, Results, is_true
from workflow.bench.tables._files import write_table

EXPERIMENTS = FIELD
PROBES = ("field_steps", "step_time")

_NOTES: Final = (
    "State is that of the optimizer and its preconditioner, over the bytes of the parameters. Work (floating-point "
    "operations), kernels (operators that compute something, as a GPU would launch them) and MB moved (read and "
    "written by them) are counted in 10 steps with whole periods, and exclude the forward and backward pass",
    "KB sent are handed to collectives by a rank of two, beside the gradients; empty for methods that cannot train on "
    "several ranks",
    "Cosine and norm: the step of a matrix against the step that SGD would take with the same gradients, rate and "
    "momentum; medians over matrices and 20 steps, after 20 others. Least cosine is that of one matrix; norm spread "
    "the largest median norm over the least",
    "Update RMS is the root mean square of the change that one step makes, over all weights with two or more "
    "dimensions: the median over the evaluations of the label's runs; empty for runs from before it was recorded",
    "Ms a step is the mean of the idle rounds of step_time, with forward and backward pass; that of methods that "
    "simulate a device is left out",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row for each label of an experiment."""
    steps = results.probe("field_steps")
    if steps.empty:
        raise NoDataError(f"field_steps.csv is missing or empty in {results.root / 'probes'}: run the probe first.")
    times = results.probe("step_time")
    idle = times[times["step_ms"].notna() & ~is_true(times["left_out"]) & ~is_true(times["again"])]
    ms = mean_ms(idle, ["experiment", "optimizer"]).to_dict()
    rms = update_rms(results)
    rows = [
        _row(row, ms.get(which := (row["experiment"], row["optimizer"])), rms.get(which))
        for row in steps.to_dict("records")
    ]
    title = "What a step of every optimizer costs, and what it does to the gradient"
    text = footer(results, steps, notes=_NOTES)
    return write_table(pd.DataFrame(rows), folder, "field_costs", title=title, caption=text)


def update_rms(results: Results) -> dict[tuple[str, str], float]:
    """Return the median over all evaluations of the update's root mean square, by experiment and label."""
    found = {}
    for experiment in EXPERIMENTS:
        metrics = results.metrics(experiment)
        recorded = metrics[(metrics["split"] == "train") & (metrics["metric"] == "update_rms")]
        for label, values in recorded.groupby("optimizer")["value"]:
            found[experiment, str(label)] = float(values.median())
    return found


def _row(row: dict[Any, Any], ms: float | None, rms: float | None) -> dict[str, Any]:
    method = str(row["optimizer"])
    return {
        "experiment": row["experiment"],
        "optimizer": method,
        "state / parameters": number(row["state_bytes"] / row["parameter_bytes"]),
        "work (Mflop)": number(row["operations"] / 1e6),
        "kernels": number(row["kernels"]),
        "moved (MB)": number(row["moved_bytes"] / 1e6),
        "sent (kB)": number(row["sent_bytes"] / 1e3),
        "ms a step": "" if ms is None or method in NO_CLOCK else number(ms),
        "cosine": number(row["cosine"]),
        "least cosine": number(row["least_cosine"]),
        "norm": number(row["norm"]),
        "norm spread": number(row["norm_spread"]),
        "update RMS": "" if rms is None else number(rms),
        "data": from_rows("probes/field_steps.csv", experiment=row["experiment"], optimizer=method),
    }
